"""How many workers a run gets and how many rows a chunk holds. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nightshift.profiles import START_UP_SECONDS, WORK_SECONDS_MIN, profile_of
from nightshift.spec.limits import CHUNK_ANSWER_BYTES_MAX, chunk_rows_most

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

CHUNK_SECONDS: Final = 60.0
"""A chunk is about this much work of one worker: what a kill -9 can cost."""
CHUNKS_WANTED: Final = 400
"""If the run is large enough: then one chunk is a quarter of a percent of it."""
CHUNK_ROWS_MAX: Final = 50_000
CHUNK_BYTES_MAX: Final = 32 << 20
"""Of compressed input, as in the exported files."""
SAFETY: Final = 0.7
"""The share of the remaining deadline that planned work may fill; the rest is for preemptions and wrong estimates."""


@dataclass(frozen=True)
class Sizing:
    """workers >= 1, chunk_rows >= 1, and the reasons in words."""

    workers: int
    chunk_rows: int
    reasons: tuple[str, ...]


def size(rows: int, spec: JobSpec, input_bytes: int = 0, *, workers_max: int = 0) -> Sizing:
    """Chooses workers and rows per chunk for `rows` rows. input_bytes: of the exported files, 0 if they do not exist yet.
    workers_max: the most that the deployment has room for, 0 for any number.

    Workers: as many as the deadline requires, but never so many that a worker has fewer rows than the engine computes
    at once (``max_num_seqs``), because an accelerator without a full batch is partly idle. What the job sets itself wins.
    """
    speed = spec.compute.rows_per_worker_per_second or profile_of(spec.compute.profile).rows_per_second
    reasons = []
    # A run that was opened by an earlier version may have a shorter deadline than is accepted today.
    usable = max(WORK_SECONDS_MIN, spec.deadline_seconds - START_UP_SECONDS) * SAFETY
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
            reasons.append(f"the deadline needs {needed:,}, but this deployment has room for {workers_max:,}")
        elif needed > useful:
            reasons.append(f"more workers would get fewer rows each than max_num_seqs = {spec.engine.max_num_seqs}")
    if spec.chunk_rows is not None:
        chunk_rows = spec.chunk_rows
        reasons.append(f"{_n(chunk_rows, 'row')} a chunk: the job says so")
    else:
        group = spec.rows_per_request
        share = max(1, math.ceil(rows / workers))
        # At least four chunks per worker, so that helpers take a quarter at most; hundreds per run, so that a kill costs little
        # of a short run too; but at least a second's work each, so that commits cost little. Whole requests only.
        wanted = min(speed * CHUNK_SECONDS, share / 4, CHUNK_ROWS_MAX, max(rows / CHUNKS_WANTED, speed))
        chunk_rows = max(1, math.ceil(wanted / group)) * group
        most = CHUNK_BYTES_MAX * rows // input_bytes if input_bytes else chunk_rows
        if chunk_rows > most:
            # A worker holds a few chunks of input rows in memory, and a row may have a megabyte.
            chunk_rows = max(1, most // group) * group
            reasons.append(f"rows of {input_bytes // rows:,} bytes: at most {CHUNK_BYTES_MAX >> 20} MiB of input a chunk")
        fit = chunk_rows_most(type(spec.request), spec.request.model_dump())
        if chunk_rows > fit:
            chunk_rows = max(1, fit // group) * group
            reasons.append(f"answers of up to {CHUNK_ANSWER_BYTES_MAX // fit:,} bytes: at most {_n(chunk_rows, 'row')} a chunk")
        reasons.append(f"{_n(chunk_rows, 'row')} a chunk: about {chunk_rows / speed:.0f} s of a worker's time")
    chunks = math.ceil(rows / chunk_rows)
    if chunks and workers > chunks:
        reasons.append(f"{workers} workers reduced to {chunks}: there are no more chunks")
        workers = chunks
    return Sizing(workers, chunk_rows, tuple(reasons))


def _n(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
