"""P6: the driver's memory against the number of rows, up to ten million."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import Canned, Driver, Ended
from benchmarks.report import Report, say
from benchmarks.runs import prepare, sentences

SIZES: Final = (10_000, 100_000, 1_000_000, 10_000_000)
CHUNK_ROWS: Final = 1_024
AS_PLANNED: Final = 50_000
PER_GROUP: Final = 2_048
SETTINGS: Final[dict[str, Any]] = {"engine__max_num_seqs": 1024, "request__rows_per_request": 256}
METHOD: Final = """
`python -m nightshift.driver` as a process, from real Parquet files in a folder to committed chunks in that folder, 256 texts
a request. The canned engine answers at once with vectors of 8 floats, so the driver is the bottleneck. Peak RSS is VmHWM,
read every 0.2 s. All sizes have chunks of 1,024 rows and input row groups of 2,048, so 10,000 rows go through everything ten
times: memory depends on the sizes of chunks and row groups, and must not depend on the number of rows. One more run has
chunks of 50,000. A LIST of a folder reads all its names, and the driver checks each chunk before it opens it. With many
chunks that is a large part of the CPU here; on Cloud Storage it costs none.
"""


def measure(report: Report, folder: Path, quick: bool) -> None:
    sizes = SIZES[:2] if quick else SIZES
    peaks: dict[int, float] = {}
    # One batch of texts for all: the measure covers reading them, not making them.
    texts = sentences(range(PER_GROUP))
    for rows in sizes:
        ended, trace = _run(folder, rows, CHUNK_ROWS, texts)
        peaks[rows] = ended.peak_mib
        report.note(f"{rows:,} rows: {_words(ended, rows)}; {trace}")
    first, last = sizes[0], sizes[-1]
    ratio = peaks[last] / peaks[first]
    line = ", ".join(f"{rows:,}: {peak:.0f} MiB" for rows, peak in peaks.items())
    report.add(f"peak RSS at {last:,} rows / at {first:,}", f"{ratio:.3f} ({line})", "<= 1.1", ratio <= 1.1)
    for rows in sizes[-2:-1]:
        ended, trace = _run(folder, rows, AS_PLANNED, texts)
        report.add(f"{rows:,} rows with chunks of {AS_PLANNED:,}", f"peak {ended.peak_mib:.0f} MiB")
        report.note(f"{rows:,} rows, chunks of {AS_PLANNED:,}: {_words(ended, rows)}; {trace}")


def _run(folder: Path, rows: int, chunk_rows: int, texts: list[str]) -> tuple[Ended, str]:
    bucket = folder / f"{rows}-{chunk_rows}"
    run = prepare(bucket, rows, chunk_rows=chunk_rows, per_group=PER_GROUP, texts=lambda part: texts[: len(part)], **SETTINGS)
    with Canned(width=8) as engine:
        driver = Driver(run.url, engine.url, folder / f"{rows}-{chunk_rows}.log")
        ended = driver.complete()
    run.check(ended.code)
    shutil.rmtree(bucket)
    say(_words(ended, rows))
    tenths = [driver.rss[len(driver.rss) * part // 10][1] for part in range(1, 10)] if len(driver.rss) > 20 else []
    return ended, "RSS at each tenth of it: " + (", ".join(f"{mib:.0f}" for mib in tenths) or "too short")


def _words(ended: Ended, rows: int) -> str:
    return (
        f"{ended.wall_s:.1f} s, {rows / ended.wall_s:,.0f} rows/s, {1e6 * ended.cpu_s / rows:.1f} us CPU a row "
        f"(the process's start included), peak {ended.peak_mib:.1f} MiB"
    )
