"""The plan of a run, which fixes ordinals, chunks and shards; `plan.json` is its JSON form.

An ordinal is a row's position in plan order: files in listed order, rows in file order, from 0. A chunk is a contiguous
range of ordinals, the unit of commit; a shard is the contiguous block of chunks at which one worker starts.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import obstore
from obstore.store import ObjectStore

from nightshift.fields.stored import read
from nightshift.fields.text import n
from nightshift.formats import PLAN, loaded
from nightshift.run.names import CHUNKS_MAX, RunRef, canonical_json
from nightshift.run.order import Order
from nightshift.store import create_or_read, get_bytes


class PlanError(ValueError):
    """A plan that contradicts itself or its job."""


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
            raise PlanError(f"{self.path}: row groups hold {n(sum(self.row_groups), 'row')}, but the file {self.rows}")


@dataclass(frozen=True)
class ExportedSource:
    """What the query returned when its rows were exported, so that publishing does not need the source.

    columns: GoogleSQL types by name, which the Parquet files do not show (DATETIME and TIMESTAMP are one type there).
    tables: ``project.dataset.table``, sorted, including tables behind views.
    """

    columns: Mapping[str, str]
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The content of `plan.json`. It fixes the ordinals and never changes once written.

    Invariants: rows is the sum over files; 1 <= workers <= max(1, chunk_count); chunks tile 0..rows without a gap.
    source: None if the rows did not come from BigQuery.
    decision: path of the decision that it follows (`nightshift.planner.decisions`); None for plans that no task decided.
    uid: random; it names the folder of what workers write for this plan (`nightshift.run.names.Work`). opening: the `uid` of
    the `spec.json` that it follows. Both are empty for a run of release 0.2.0 and for one of `nightshift batch`.
    order: in which the rows stand, and why; None if nothing was decided about it.
    """

    run_id: str
    rows: int
    chunk_rows: int
    workers: int
    files: tuple[InputFile, ...]
    reasons: tuple[str, ...] = ()
    source: ExportedSource | None = None
    decision: str | None = None
    uid: str = ""
    opening: str = ""
    order: Order | None = None

    def __post_init__(self) -> None:
        if self.chunk_rows < 1 or self.workers < 1:
            raise PlanError(f"chunk_rows {self.chunk_rows} and workers {self.workers} must be at least 1")
        if self.chunk_count > CHUNKS_MAX:
            raise PlanError(
                f"{n(self.chunk_count, 'chunk')} are more than {CHUNKS_MAX}; use larger ones (chunk_rows {self.chunk_rows})"
            )
        if sum(file.rows for file in self.files) != self.rows:
            raise PlanError(f"the files hold {n(sum(file.rows for file in self.files), 'row')}, but the plan says {self.rows}")
        if self.workers > max(1, self.chunk_count):
            raise PlanError(f"{n(self.workers, 'worker')} for {n(self.chunk_count, 'chunk')}")

    @property
    def exported(self) -> ExportedSource:
        """Raises PlanError if the rows did not come from BigQuery."""
        if self.source is None:
            raise PlanError("plan.json does not say which columns and tables its rows come from")
        return self.source

    @property
    def chunk_count(self) -> int:
        return math.ceil(self.rows / self.chunk_rows)

    def chunk_range(self, chunk: int) -> range:
        """Ordinals of a chunk. Raises IndexError for a chunk that the plan lacks."""
        if not 0 <= chunk < self.chunk_count:
            raise IndexError(f"chunk {chunk} of {self.chunk_count}")
        return range(chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows))

    def shard(self, index: int) -> range:
        """The home chunks of worker `index`; block sizes differ by at most one. Raises IndexError beyond the last worker."""
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
        return {**PLAN.stamp(), **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Plan:
        """Inverse of `to_json`. Raises UnreadableFormat, and PlanError for a plan that contradicts itself."""
        if not isinstance(value, dict):
            raise PlanError("plan.json is not a JSON object")
        PLAN.check(value, "plan.json")
        try:
            return read(cls, value)
        except PlanError:
            raise
        except ValueError as error:
            raise PlanError(f"plan.json is not a valid plan: {error}") from error


def new_uid() -> str:
    """Of a plan: 16 unpredictable hex digits, so that nothing is put where its workers will write."""
    return secrets.token_hex(8)


def load_plan(store: ObjectStore, run: RunRef) -> Plan | None:
    """The run's plan; None before `extract` has written it. The store is rooted at the bucket. Raises PlanError."""
    body = get_bytes(store, run.plan_path)
    return None if body is None else _decode(body)


def save_plan(store: ObjectStore, run: RunRef, plan: Plan) -> Plan:
    """Writes `plan.json` unless it exists; returns the stored plan: the first one written is final.

    Raises PlanError if there is none although something in the run's folder followed one: then it was deleted, and the rows of
    the new plan need not be those.
    """
    if load_plan(store, run) is None and (found := _follows(store, run)):
        raise PlanError(
            f"{run.plan_path} is missing, but {found} followed it: the run's folder was deleted in part. What is left is not "
            "used for other rows. Trigger the DAG with fresh."
        )
    return _decode(create_or_read(store, run.plan_path, canonical_json(plan.to_json())))


def _follows(store: ObjectStore, run: RunRef) -> str | None:
    """The path of an object that is written only when there is a plan; the workers of a plan with a `uid` write elsewhere."""
    if get_bytes(store, run.manifest_path) is not None:
        return run.manifest_path
    found = (meta["path"] for page in obstore.list(store, run.work("").ledger_folder, chunk_size=1) for meta in page)
    return next(found, None)


def _decode(body: bytes) -> Plan:
    try:
        value = loaded(body)
    except ValueError as error:
        raise PlanError(f"plan.json is not JSON: {error}") from error
    return Plan.from_json(value)
