"""What one chunk says about itself, from the footer of its Parquet file: a few kilobytes, whatever the chunk's size.

What contradicts itself is no chunk, because a wrong count is worse than none. Footers are read for a night that has failed,
whose record counts them all, and for its dead letters; never to say how a run is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run import parquet_cost
from nightshift.run.chunks import NotAChunk, Provenance, check_footer, provenance_of
from nightshift.run.names import Work
from nightshift.run.observed.progress import ListedObject, listed
from nightshift.run.plan import Plan
from nightshift.spec.columns import DEAD_REASON
from nightshift.status.readers import readers
from nightshift.store import ObjectChanged, ObjectFile, StoreUnavailable

T = TypeVar("T")

TAIL_BYTES: Final = 16 * 1024
"""Read first. A chunk's footer is about 2.5 KB; one with many or long keys takes a second request."""
AT_ONCE: Final = 256
"""Footers between two looks at the clock."""
_END_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


def chunks_listed(store: ObjectStore, work: Work, plan: Plan) -> Iterator[tuple[int, ListedObject]]:
    """The committed chunks of a plan, by their numbers, from one LIST. Raises StoreUnavailable."""
    for entry in itertools.chain.from_iterable(listed(store, work.ledger_folder)):
        number = work.parse_chunk(entry.path)
        if number is not None and number < plan.chunk_count:
            yield number, entry


@dataclass(frozen=True, slots=True)
class Footer:
    """rows: of the chunk, as many as its provenance claims. reasons: dead letters by reason."""

    rows: int
    reasons: Counter[str]
    provenance: Provenance


@dataclass
class Committed:
    """Sums over the footers of a run's committed chunks. left: chunks that were not read, for lack of time. bad: those that
    cannot be counted: torn, contradictory, or of another run. attempts: those that have committed a chunk."""

    chunks: int = 0
    left: int = 0
    bad: int = 0
    rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0
    engine_versions: Counter[str] = field(default_factory=Counter)
    attempts: set[str] = field(default_factory=set)

    @property
    def dead_letters(self) -> int:
        return self.reasons.total()

    def add(self, footer: Footer) -> None:
        self.chunks, self.rows = self.chunks + 1, self.rows + footer.rows
        self.reasons += footer.reasons
        self.attempts.add(footer.provenance.attempt)
        for part in footer.provenance.parts:
            self.prompt_tokens += part.prompt_tokens
            self.output_tokens += part.output_tokens
            self.truncated += part.truncated
            self.engine_versions[part.engine_version] += part.rows


def committed(store: ObjectStore, work: Work, plan: Plan, within_s: float = math.inf) -> Committed:
    """What of a run is committed, by the footers of all chunks. within_s: no further ones are read after so long.

    Raises StoreUnavailable.
    """
    found, until = Committed(), time.monotonic() + within_s
    entries = list(chunks_listed(store, work, plan))
    for start in range(0, len(entries), AT_ONCE):
        if time.monotonic() > until:
            found.left = len(entries) - start
            break
        for number, footer in footers(store, entries[start : start + AT_ONCE]):
            if footer and footer.provenance.run_id == plan.run_id and footer.rows == len(plan.chunk_range(number)):
                found.add(footer)
            else:
                found.bad += 1
    return found


def footers(store: ObjectStore, chunks: Sequence[tuple[int, ListedObject]]) -> Iterator[tuple[int, Footer | None]]:
    """Those of listed chunks, by their numbers; None for what is no chunk. Raises StoreUnavailable."""

    def read(entry: ListedObject) -> Footer | None:
        with suppress(NotAChunk):
            return read_footer(store, entry)
        return None

    numbers, entries = [number for number, _ in chunks], [entry for _, entry in chunks]
    yield from zip(numbers, readers().map(read, entries), strict=True)


def read_footer(store: ObjectStore, entry: ListedObject) -> Footer:
    """Raises NotAChunk for anything but a chunk, StoreUnavailable if the store does not answer."""
    try:
        return asked(entry.path, lambda: _read(store, entry))
    except FileNotFoundError as error:
        raise NotAChunk("it vanished while it was read") from error


def asked(path: str, ask: Callable[[], T]) -> T:
    """What the store answers. Raises StoreUnavailable, and FileNotFoundError."""
    try:
        return ask()
    except FileNotFoundError:
        raise
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"read {path}: {error}") from error


def _read(store: ObjectStore, entry: ListedObject) -> Footer:
    footer = _footer_bytes(store, entry)
    metadata = _parse(footer)
    check_footer(metadata.metadata or {}, footer)
    claimed = provenance_of(metadata.metadata or {})
    rows, predictions, dead = metadata.num_rows, claimed.predictions, claimed.dead_letters
    if predictions + dead != rows:
        raise NotAChunk(f"it holds {n(rows, 'row')} but claims {n(predictions, 'prediction')} and {n(dead, 'dead letter')}")
    reasons = Counter[str]()
    if dead and (known := _reasons_by_statistics(metadata)) is not None:
        reasons = known
    elif dead:
        reasons = _reasons_by_rows(store, entry)
    if reasons.total() != dead:
        raise NotAChunk(f"it holds {n(reasons.total(), 'dead letter')} but claims {dead}")
    return Footer(rows, reasons, claimed)


def _footer_bytes(store: ObjectStore, entry: ListedObject) -> bytes:
    """The footer with its length and magic word at the end."""
    if entry.size < len(_MAGIC) + _END_BYTES:
        raise NotAChunk(f"it has {entry.size} bytes")
    tail = _last(store, entry, min(TAIL_BYTES, entry.size))
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise NotAChunk("it does not end like a Parquet file")
    length = parquet_cost.footer_size(tail)
    try:
        parquet_cost.check_footer(length)
    except parquet_cost.TooLarge as error:
        raise NotAChunk(str(error)) from error
    if length + len(_MAGIC) > entry.size:
        raise NotAChunk("its Parquet footer is longer than the object")
    if length > len(tail):
        tail = _last(store, entry, length)
    return tail[-length:]


def _last(store: ObjectStore, entry: ListedObject, length: int) -> bytes:
    return bytes(obstore.get_range(store, entry.path, start=entry.size - length, length=length))


def _parse(footer: bytes) -> pq.FileMetaData:
    try:
        # For pyarrow this is a file without its data, which is not read.
        return pq.read_metadata(pa.BufferReader(_MAGIC + footer))
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: an error whose own message is not UTF-8
        raise NotAChunk(f"its Parquet footer cannot be decoded: {error}".strip()) from error


def _reasons_by_statistics(metadata: pq.FileMetaData) -> Counter[str] | None:
    """Exact if every row group has at most one reason, which is the usual case; else None."""
    reasons = Counter[str]()
    for group in range(metadata.num_row_groups):
        columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
        found = [column for column in columns if column.path_in_schema == DEAD_REASON]
        statistics = found[0].statistics if found else None
        if statistics is None:
            return None
        if statistics.num_values:
            if not statistics.has_min_max or statistics.min != statistics.max:
                return None
            reasons[str(statistics.min)] += statistics.num_values
    return reasons


def _reasons_by_rows(store: ObjectStore, entry: ListedObject) -> Counter[str]:
    try:
        file = pq.ParquetFile(
            ObjectFile(store, entry.path, entry.size), page_checksum_verification=True, read_dictionary=[DEAD_REASON]
        )
        reasons: Counter[str] = Counter()
        for batch in file.iter_batches(columns=[DEAD_REASON]):
            pairs = batch.column(DEAD_REASON).drop_null().value_counts().to_pylist()
            reasons.update({str(pair["values"]): pair["counts"] for pair in pairs})
    except (pa.ArrowException, KeyError, ObjectChanged, OSError) as error:
        raise NotAChunk(f"its dead letters cannot be read: {error}".strip()) from error
    return reasons
