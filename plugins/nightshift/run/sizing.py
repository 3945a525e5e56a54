"""How many workers a run gets and how many rows a chunk holds. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.profiles import profile_of

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

CHUNK_SECONDS: Final = 60.0
"""A chunk is about this much of one worker's work: what a kill -9 can cost."""
CHUNKS_WANTED: Final = 400
"""Of a run that is large enough: then one chunk is a quarter of a percent of it."""
CHUNK_ROWS_MAX: Final = 50_000
CHUNK_BYTES_MAX: Final = 32 << 20
"""Of input as it lies in the exported files, compressed."""
START_UP_SECONDS: Final = 600.0
"""Node, image and weights, before the first row; taken off the deadline."""
SAFETY: Final = 0.7
"""The share of the remaining deadline that planned work may fill; the rest is for preemption and for wrong estimates."""


@dataclass(frozen=True)
class Sizing:
    """workers >= 1, chunk_rows >= 1 and, in words, why."""

    workers: int
    chunk_rows: int
    reasons: tuple[str, ...]


def size(rows: int, spec: JobSpec, input_bytes: int = 0, *, workers_max: int = 0) -> Sizing:
    """Chooses workers and rows per chunk for `rows` rows. input_bytes: of the exported files, 0 where they are not there yet.
    workers_max: the most that the deployment has room for, 0 for any number.

    Workers: as many as the deadline demands, but never so many that one of them has fewer rows than the engine computes
    at once (``max_num_seqs``), since an accelerator without a full batch idles. What the job states outright wins.
    """
    speed = spec.compute.rows_per_worker_per_second or profile_of(spec.compute.profile).rows_per_second
    reasons = []
    usable = max(60.0, spec.deadline_seconds - START_UP_SECONDS) * SAFETY
    if spec.compute.workers is not None:
        workers = spec.compute.workers
        reasons.append(f"{_n(workers, 'worker')}: the job says so")
    else:
        needed = max(1, math.ceil(rows / (speed * usable)))
        useful = max(1, rows // spec.engine.max_num_seqs)
        workers = min(needed, useful, workers_max or needed)
        minutes = rows / (speed * workers) / 60
        reasons.append(
            f"{_n(workers, 'worker')} x {minutes:.0f} min at {speed:g} rows/s each; the deadline of "
            f"{spec.deadline} allows {usable / 60:.0f} min of work"
        )
        if workers < min(needed, useful):
            reasons.append(f"the deadline needs {needed:,}, and this deployment has room for {workers_max:,}")
        elif needed > useful:
            reasons.append(f"more workers would get fewer rows each than max_num_seqs = {spec.engine.max_num_seqs}")
    if spec.chunk_rows is not None:
        chunk_rows = spec.chunk_rows
        reasons.append(f"{_n(chunk_rows, 'row')} a chunk: the job says so")
    else:
        group = spec.rows_per_request
        share = max(1, math.ceil(rows / workers))
        # At least four chunks a worker, so that help comes in quarters at most, and hundreds a run, so that a kill costs little
        # of a short one too; but a second's work each, so that commits cost nothing beside it. Whole requests only.
        wanted = min(speed * CHUNK_SECONDS, share / 4, CHUNK_ROWS_MAX, max(rows / CHUNKS_WANTED, speed))
        chunk_rows = max(1, math.ceil(wanted / group)) * group
        most = CHUNK_BYTES_MAX * rows // input_bytes if input_bytes else chunk_rows
        if chunk_rows > most:
            # A worker holds a few chunks of input rows in memory, and rows may be of a megabyte each.
            chunk_rows = max(1, most // group) * group
            reasons.append(f"rows of {input_bytes // rows:,} bytes: at most {CHUNK_BYTES_MAX >> 20} MiB of input a chunk")
        reasons.append(f"{_n(chunk_rows, 'row')} a chunk: about {chunk_rows / speed:.0f} s of a worker's time")
    chunks = math.ceil(rows / chunk_rows)
    if chunks and workers > chunks:
        reasons.append(f"{workers} workers cut to {chunks}: there are no more chunks")
        workers = chunks
    return Sizing(workers, chunk_rows, tuple(reasons))


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
