"""The plan of a run: ordinals, chunks, shards, and how many workers. Pure; `plan.json` is its JSON form.

An ordinal is a row's position in plan order: files in listed order, rows in file order, from 0. A chunk is a contiguous
range of ordinals, the unit of commit; a shard is the contiguous block of chunks at which one worker starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from nightshift.profiles import profile_of

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

VERSION: Final = 1
CHUNK_SECONDS: Final = 60.0
"""A chunk is about this much of one worker's work: what a kill -9 can cost."""
CHUNKS_WANTED: Final = 400
"""Of a run that is large enough: then one chunk is a quarter of a percent of it."""
CHUNK_ROWS_MAX: Final = 50_000
CHUNK_BYTES_MAX: Final = 32 << 20
"""Of input as it lies in the exported files, compressed."""
CHUNKS_MAX: Final = 10**8
"""What eight digits in a chunk's name can tell apart."""
START_UP_SECONDS: Final = 600.0
"""Node, image and weights, before the first row; taken off the deadline."""
SAFETY: Final = 0.7
"""The share of the remaining deadline that planned work may fill; the rest is for preemption and for wrong estimates."""


class PlanError(ValueError):
    """A plan that contradicts itself or its job."""


@dataclass(frozen=True)
class Sizing:
    """workers >= 1, chunk_rows >= 1 and, in words, why."""

    workers: int
    chunk_rows: int
    reasons: tuple[str, ...]


def size(rows: int, spec: JobSpec, input_bytes: int = 0) -> Sizing:
    """Chooses workers and rows per chunk for `rows` rows. input_bytes: of the exported files, 0 where they are not there yet.

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
        workers = min(needed, useful)
        minutes = rows / (speed * workers) / 60
        reasons.append(
            f"{_n(workers, 'worker')} x {minutes:.0f} min at {speed:g} rows/s each; the deadline of "
            f"{spec.deadline} allows {usable / 60:.0f} min of work"
        )
        if needed > useful:
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


@dataclass(frozen=True)
class InputFile:
    """One Parquet file of the input. path is relative to the run's folder; etag names the version whose rows were counted."""

    path: str
    rows: int
    row_groups: tuple[int, ...]
    size: int
    etag: str

    def __post_init__(self) -> None:
        if sum(self.row_groups) != self.rows:
            raise PlanError(f"{self.path}: row groups hold {sum(self.row_groups)} rows, the file {self.rows}")


@dataclass(frozen=True)
class Plan:
    """What `plan.json` holds. Immutable once written: it fixes the ordinals for ever.

    Invariants: rows is the sum over files; 1 <= workers <= max(1, chunk_count); chunks tile 0..rows without a gap.
    """

    run_id: str
    rows: int
    chunk_rows: int
    workers: int
    files: tuple[InputFile, ...]
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.chunk_rows < 1 or self.workers < 1:
            raise PlanError(f"chunk_rows {self.chunk_rows} and workers {self.workers} must be at least 1")
        if self.chunk_count > CHUNKS_MAX:
            raise PlanError(
                f"{self.chunk_count} chunks are more than {CHUNKS_MAX}; use larger ones (chunk_rows {self.chunk_rows})"
            )
        if sum(file.rows for file in self.files) != self.rows:
            raise PlanError(f"the files hold {sum(file.rows for file in self.files)} rows, the plan says {self.rows}")
        if self.workers > max(1, self.chunk_count):
            raise PlanError(f"{self.workers} workers for {self.chunk_count} chunks")

    @property
    def chunk_count(self) -> int:
        return math.ceil(self.rows / self.chunk_rows)

    def chunk_range(self, chunk: int) -> range:
        """Ordinals of a chunk. Raises IndexError for a chunk that the plan lacks."""
        if not 0 <= chunk < self.chunk_count:
            raise IndexError(f"chunk {chunk} of {self.chunk_count}")
        return range(chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows))

    def shard(self, index: int) -> range:
        """The home chunks of worker `index`; block sizes differ by one at most. Raises IndexError beyond the last worker."""
        if not 0 <= index < self.workers:
            raise IndexError(f"worker {index} of {self.workers}")
        base, extra = divmod(self.chunk_count, self.workers)
        start = index * base + min(index, extra)
        return range(start, start + base + (index < extra))

    def locate(self, ordinals: range) -> Iterator[tuple[InputFile, int, range]]:
        """Which row groups hold these ordinals: (file, row group number, row offsets inside that group), in order."""
        start = 0
        for file in self.files:
            if start >= ordinals.stop:
                return
            if start + file.rows <= ordinals.start:
                start += file.rows
                continue
            for number, count in enumerate(file.row_groups):
                first, last = max(ordinals.start, start), min(ordinals.stop, start + count)
                if first < last:
                    yield file, number, range(first - start, last - start)
                start += count

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """Inverse of `to_json`. Raises PlanError for another version or a plan that contradicts itself."""
        if value.get("version") != VERSION:
            raise PlanError(f"plan.json has version {value.get('version')!r}; this nightshift reads version {VERSION}")
        try:
            files = tuple(
                InputFile(file["path"], file["rows"], tuple(file["row_groups"]), file["size"], file["etag"])
                for file in value["files"]
            )
            return cls(
                value["run_id"], value["rows"], value["chunk_rows"], value["workers"], files, tuple(value.get("reasons", ()))
            )
        except (KeyError, TypeError) as error:
            raise PlanError(f"plan.json is not a plan: {error!r}") from error
