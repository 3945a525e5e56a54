"""A run's folder for those who read its rows: record, spec, plan, run manifest, and committed chunks.

What never changes is read once. A sealed run's chunks are those of its run manifest; those of an open run come from a LIST.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.run.chunks import NotAChunk, Provenance, decode
from nightshift.run.ledger import Chunks
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.names import RunRef, Work
from nightshift.run.opening import NoSuchRun, load_run, planned
from nightshift.run.plan import Plan
from nightshift.run.record import RunRecord
from nightshift.spec import JobSpec
from nightshift.status.chunk_footer import asked, chunks_listed
from nightshift.tasks import Rendering

CHUNK_BYTES_MOST: Final = 64 << 20
"""A larger chunk is not read for a look at it."""


@dataclass(frozen=True)
class Chunk:
    """A committed chunk that was read. sha256: of the object, in hex. size: in bytes."""

    number: int
    path: str
    sha256: str
    size: int
    table: pa.Table
    provenance: Provenance

    @property
    def truncated(self) -> int:
        """Answers that were cut at ``max_tokens``, as its attempts claim."""
        return sum(part.truncated for part in self.provenance.parts)


class RunFolder:
    """Of one run. The store is rooted at the bucket. Safe to share between threads.

    Everything raises NoSuchRun, UnreadableFormat or PlanError for a run that is not there or not readable, StoreUnavailable.
    """

    def __init__(self, store: ObjectStore, run: RunRef) -> None:
        self.store = store
        self.run = run
        self._lock = threading.RLock()
        self._opened: tuple[JobSpec, RunRecord] | None = None
        self._plan: Plan | None = None
        self._manifest: RunManifest | None = None

    @property
    def spec(self) -> JobSpec:
        """The frozen spec, which renders as the run's driver does."""
        return self._open()[0]

    @property
    def record(self) -> RunRecord:
        return self._open()[1]

    def _open(self) -> tuple[JobSpec, RunRecord]:
        with self._lock:
            if self._opened is None:
                spec, record = asked(self.run.spec_path, lambda: load_run(self.store, self.run))
                self._opened = spec.rendered_as(_rendering(record)), record
            return self._opened

    @property
    def plan(self) -> Plan | None:
        """None before the rows are exported."""
        record = self.record
        with self._lock:
            if self._plan is None:
                self._plan = asked(self.run.plan_path, lambda: planned(self.store, self.run, record))
            return self._plan

    @property
    def manifest(self) -> RunManifest | None:
        """None before the run is sealed."""
        with self._lock:
            if self._manifest is None:
                self._manifest = asked(self.run.manifest_path, lambda: load_manifest(self.store, self.run))
            return self._manifest

    @property
    def work(self) -> Work:
        """Raises NoSuchRun for a run without a plan."""
        return self.run.work(self.planned.uid)

    @property
    def planned(self) -> Plan:
        """The plan. Raises NoSuchRun for a run that has none yet."""
        if (plan := self.plan) is None:
            raise NoSuchRun(f"{self.run.prefix} has no rows yet: its task extract has not ended.")
        return plan

    def committed(self) -> Sequence[int]:
        """The numbers of the committed chunks, ascending."""
        plan = self.plan
        if plan is None:
            return ()
        if self.manifest is not None:
            return range(plan.chunk_count)
        found = Chunks(plan.chunk_count)
        for number, _ in chunks_listed(self.store, self.work, plan):
            found.add(number)
        return list(found)

    def chunk(self, number: int) -> Chunk:
        """Raises NotAChunk for one that is not there, too large to look at, or not what was written."""
        path = self.work.chunk_path(number)

        def read() -> bytes:
            result = obstore.get(self.store, path)
            if (size := result.meta["size"]) > CHUNK_BYTES_MOST:
                raise NotAChunk(f"it has {size:,} bytes; at most {CHUNK_BYTES_MOST:,} are read to look at rows")
            return bytes(result.bytes())

        try:
            body = asked(path, read)
        except FileNotFoundError as error:
            raise NotAChunk("it is not there") from error
        table, provenance = decode(body)
        if (provenance.run_id, provenance.chunk) != (self.run.run_id, number):
            raise NotAChunk(f"it belongs to chunk {provenance.chunk} of {provenance.whose}")
        return Chunk(number, path, hashlib.sha256(body).hexdigest(), len(body), table, provenance)


def _place(salt: str, number: int) -> bytes:
    """A draw that is the same every time."""
    return hashlib.blake2b(f"{salt}:{number}".encode(), digest_size=8).digest()


def chosen(numbers: Sequence[int], count: int, salt: str) -> list[int]:
    """At most `count` of the numbers, always the same ones, in order."""
    return sorted(sorted(numbers, key=lambda number: _place(salt, number))[:count])


def _rendering(record: RunRecord) -> Rendering:
    """A run of 0.2.0 does not say: as Python writes values."""
    return Rendering(record.rendering) if record.rendering else Rendering.PYTHON
