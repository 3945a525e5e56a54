"""How many rows a chunk holds. Pure.

A chunk is what a kill -9 can cost, and what workers at the end of a run compute twice: 2.1 to 2.8 chunks of each worker,
whatever the length of the night (docs/develop/benchmarks.md, P7). So its length follows from how long a worker works, and is at
most a minute.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n
from nightshift.spec.limits import CHUNK_ANSWER_BYTES_MAX, chunk_rows_most

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

CHUNK_SECONDS_MAX: Final = 60.0
"""Of one worker's work: what a kill -9 can cost."""
CHUNK_SECONDS_MIN: Final = 1.0
"""So that commits cost little."""
OPERATIONS_PER_CHUNK: Final = 4
"""Of Cloud Storage's class A: it is created, its range is listed before it is opened, its partials are listed, and its range
about once again while it is open (`nightshift.driver.feeder`)."""
CHUNKS_PER_WORKER: Final = 200
"""If they are long enough. 2.8 of 200 chunks computed twice are 1.4 % of a run; 2 % is what it may be. Measured (P7, workers x
hours: chunks for each, waste, in chunks): 1,000 x 1: 60, 3.8 %, 2.3; 200 x 1: 150, 1.85 %, 2.8; 500 x 1: 150,
1.78 %, 2.7; 200 x 1: 200, 1.27 %, 2.5; 500 x 1: 200, 1.32 %, 2.6; 1,000 x 3: 180, 1.4 %, 2.6.

More would cost more than they save. A chunk costs `OPERATIONS_PER_CHUNK` ($0.05 for 10,000 in a region of Cloud Storage). So n
chunks cost $0.00002 n and waste 2.7 / n of the worker's price for the night: least for the cheapest accelerator, an
L4 on Spot for an hour ($0.3), at n = 200. A range of 200 names is a fifth of a page; all ranges of 1,000 workers are 200 pages,
which a helper lists every 100 s (`nightshift.driver.feeder`)."""
CHUNKS_WANTED: Final = 400
"""Of a whole run, if they are long enough: then one chunk is a quarter of a percent of it."""
CHUNK_ROWS_MAX: Final = 50_000
CHUNK_BYTES_MAX: Final = 32 << 20
"""Of compressed input, as in the exported files."""


def chunk_seconds(work_s: float) -> float:
    """How long a chunk takes a worker that works for `work_s` seconds."""
    return max(CHUNK_SECONDS_MIN, min(CHUNK_SECONDS_MAX, work_s / CHUNKS_PER_WORKER))


def chunk_rows(
    spec: JobSpec, rows: int, workers: int, speed: float, input_bytes: int = 0, copied: float = 0.0
) -> tuple[int, tuple[str, ...]]:
    """Rows of a chunk, at least 1, and the reasons in words; what the job states wins.

    speed: rows a second of one worker, 0 if unknown. input_bytes: of the exported files, 0 if they do not exist yet. copied:
    bytes of a mean row that are copied into its chunk, 0 if unknown.
    """
    if spec.chunk_rows is not None:
        return spec.chunk_rows, (f"{n(spec.chunk_rows, 'row')} per chunk: the job says so",)
    group, share = spec.rows_per_request, rows / workers
    wanted = min(share / CHUNKS_PER_WORKER, rows / CHUNKS_WANTED)
    if speed:
        wanted = max(wanted, speed * CHUNK_SECONDS_MIN)
        wanted = min(wanted, speed * CHUNK_SECONDS_MAX)
    # Four chunks for each worker at least, so that helpers take a quarter at most.
    wanted = min(wanted, share / 4, CHUNK_ROWS_MAX)
    found = max(1, math.ceil(wanted / group)) * group  # whole requests
    reasons = []
    for most, why in _limits(spec, rows, input_bytes, copied):
        if found > most:
            found = max(1, most // group) * group
            reasons.append(why)
    seconds = f": about {found / speed:.0f} s of a worker's time" if speed else ""
    return found, (*reasons, f"{n(found, 'row')} per chunk{seconds}")


def _limits(spec: JobSpec, rows: int, input_bytes: int, copied: float) -> Iterator[tuple[int, str]]:
    """The most rows, and why."""
    if input_bytes and rows:
        # A worker holds a few chunks of input rows in memory, and a row may have a megabyte.
        words = f"rows of {input_bytes // rows:,} bytes: at most {CHUNK_BYTES_MAX >> 20} MiB of input per chunk"
        yield CHUNK_BYTES_MAX * rows // input_bytes, words
    if copied:
        # A text that repeats is small in a file, and counts each time in a chunk that is read.
        words = f"{copied:,.0f} bytes of a row are copied: at most {CHUNK_BYTES_MAX >> 20} MiB of them per chunk"
        yield int(CHUNK_BYTES_MAX / copied), words
    fit = chunk_rows_most(type(spec.request), spec.request.model_dump())
    yield fit, f"answers of up to {CHUNK_ANSWER_BYTES_MAX // fit:,} bytes: at most {n(fit, 'row')} per chunk"
