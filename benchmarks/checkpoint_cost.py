"""P4: what checkpoints cost."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.processes import Canned, Driver
from benchmarks.report import Report, spread
from benchmarks.runs import Run, prepare
from nightshift.planner.sizing import chunk_rows as planned_rows
from tests.builders import a_spec

SEATS: Final = 256
SECONDS: Final = 0.25
SPEED: Final = SEATS / SECONDS
METHOD: Final = """
A driver process against a canned engine with 256 seats and 250 ms a row (1,024 rows/s, a request a row). The same rows run
with chunks as `nightshift.planner.sizing` plans them, with chunks of 600 rows (a checkpoint every 0.6 s), and with one chunk
for everything. Throughput = rows / time from the first request's arrival to the process's end, so the last commit counts.
Runs alternate; medians are compared.
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    rows, times = (4_000, 1) if quick else (40_000, 3)
    settings: dict[str, Any] = {
        "engine__max_num_seqs": SEATS,
        "request__rows_per_request": 1,
        "compute__rows_per_worker_per_second": SPEED,
    }
    planned, _ = planned_rows(a_spec(**settings), rows, 1, SPEED)
    sizes = {"planned": planned, "often": 600, "none": rows}
    rates: dict[str, list[float]] = {name: [] for name in sizes}
    for number in range(times):
        for name, chunk_rows in sizes.items():
            run = prepare(folder / f"{name}-{number}", rows, chunk_rows=chunk_rows, **settings)
            rates[name].append(_rate(run, folder / f"{name}-{number}.log"))
    without = median(rates["none"])
    for name, words in (("planned", f"chunks as planned ({planned:,} rows)"), ("often", "chunks of 600 rows")):
        ratio = median(rates[name]) / without
        report.add(f"throughput with {words} / without", f"{ratio:.4f}", ">= 0.99", ratio >= 0.99)
    for name, values in rates.items():
        report.note(f"rows/s, {name}: {spread(values, '.1f')}")


def _rate(run: Run, log: Path) -> float:
    with Canned(seats=SEATS, seconds=SECONDS) as engine:
        driver = Driver(run.url, engine.url, log)
        ended = driver.complete()
        counts = engine.counts()
    run.check(ended.code)
    # Both times are from the machine's monotonic clock.
    return run.plan.rows / (driver.ended_at - counts["first"])
