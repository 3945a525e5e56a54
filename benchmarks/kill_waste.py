"""P3: what a kill -9 in the middle of 100,000 rows costs."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import Canned, Driver, ending
from benchmarks.report import Report
from benchmarks.runs import prepare
from nightshift.planner.sizing import chunk_rows
from tests.builders import a_spec

SEATS: Final = 16
SPEED: Final = 20.0
"""Rows per second of the planned engine (the profile "cpu"); the canned one is faster, so that a night takes a minute."""
FASTER: Final = 100
METHOD: Final = """
`nightshift.planner.sizing` plans the chunks of 100,000 rows for the "cpu" profile (20 rows/s, deadline 2h). One driver
process works on all of them. Its canned engine has 16 seats and is 100 times as fast as planned, so an hour and a half takes
a minute. The store is not faster, so relatively more is in flight at a kill. SIGKILL ends the driver at a random moment in
the middle third; then it starts again. Computed again = rows that reached the engine - 100,000.
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows, times = (5_000, 2) if quick else (100_000, 5)
    settings: dict[str, Any] = {
        "engine__max_num_seqs": SEATS,
        "request__rows_per_request": 1,
        "compute__rows_per_worker_per_second": SPEED,
    }
    planned, why = chunk_rows(a_spec(**settings), 100_000, 1, SPEED)
    again = []
    bounds = []
    rng = random.Random(3)
    for number in range(times):
        run = prepare(folder / str(number), rows, chunk_rows=planned, **settings)
        with Canned(seats=SEATS, seconds=SEATS / (SPEED * FASTER), width=8) as engine:
            first = Driver(run.url, engine.url, folder / f"{number}-first.log")
            with ending(first):
                first.wait_for("resumed")
                target = rows * rng.uniform(0.34, 0.66)
                while engine.counts()["rows"] < target:
                    time.sleep(0.05)
                progress = [line for line in first.lines() if line["message"] == "progress"]
                first.kill()
                first.process.wait()
            second = Driver(run.url, engine.url, folder / f"{number}-second.log")
            ended = second.complete()
            again.append(int(engine.counts()["rows"]) - rows)
        run.check(ended.code)
        window = max((line["window"] for line in progress), default=2 * SEATS)
        open_chunks = max((line["chunks_open"] for line in progress), default=1)
        bounds.append(window + open_chunks * planned)
    worst = max(again)
    counts = ", ".join(f"{count:,}" for count in again)
    report.add(
        "rows computed again after kill -9, worst", f"{worst:,} of {rows:,} ({worst / rows:.2%})", "< 1%", worst < rows / 100
    )
    report.add("the same, each kill", counts, f"<= window + open chunks ({min(bounds):,})", worst <= min(bounds))
    report.note(f"chunks of {planned:,} rows ({'; '.join(why)}); all rows in the ledger once after each kill")
