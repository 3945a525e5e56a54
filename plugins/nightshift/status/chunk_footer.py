"""What one chunk says about itself, from the footer of its Parquet file: a few kilobytes, whatever the chunk's size.

The reader is lenient where a field may be missing (older and newer drivers write different ones) and strict where two
statements contradict each other, because a wrong count is worse than none. Footers are read for a night that has failed, whose
record counts them all, and for what a person asks to see of a chunk; never to say how a run is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.formats import CHUNK, UnreadableFormat, loaded
from nightshift.run import parquet_cost
from nightshift.run.chunks import FORMAT_KEY, METADATA_KEY, PARTS_KEY, NotAChunk, check_footer
from nightshift.run.names import Work
from nightshift.run.observed.progress import ListedObject, listed
from nightshift.run.plan import Plan
from nightshift.spec.columns import DEAD_REASON, PREDICTION
from nightshift.status.readers import readers
from nightshift.store import ObjectChanged, ObjectFile, StoreUnavailable

T = TypeVar("T")

TAIL_BYTES: Final = 16 * 1024
"""Read first. A chunk's footer is about 2.5 KB; one with many or long keys takes a second request."""
AT_ONCE: Final = 256
"""Footers between two looks at the clock."""
_END_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


class NotReadable(ValueError):
    """An object that is not a chunk, is not what was written, or contradicts itself."""


def chunks_listed(store: ObjectStore, work: Work, plan: Plan) -> Iterator[tuple[int, ListedObject]]:
    """The committed chunks of a plan, by their numbers, from one LIST. Raises StoreUnavailable."""
    for entry in itertools.chain.from_iterable(listed(store, work.ledger_folder)):
        number = work.parse_chunk(entry.path)
        if number is not None and number < plan.chunk_count:
            yield number, entry


@dataclass(frozen=True, slots=True)
class Footer:
    """The counts of one chunk or partial.

    rows = predictions + dead letters; reasons: dead letters by reason; prompt_tokens, output_tokens: of every attempt that
    contributed, as far as it says; truncated: answers that were cut at ``max_tokens``; engine_versions: rows by the engine's
    version, as far as attempts say it.
    """

    rows: int
    reasons: Counter[str]
    attempt: str
    run_id: str | None
    prompt_tokens: int
    output_tokens: int
    truncated: int = 0
    engine_versions: Counter[str] = field(default_factory=Counter)


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
        self.prompt_tokens += footer.prompt_tokens
        self.output_tokens += footer.output_tokens
        self.truncated += footer.truncated
        self.reasons += footer.reasons
        self.engine_versions += footer.engine_versions
        self.attempts.add(footer.attempt)


def committed(store: ObjectStore, work: Work, plan: Plan, within_s: float = math.inf) -> Committed:
    """What of a run is committed, by the footers of all chunks. within_s: no further ones are read after so long.

    Raises StoreUnavailable.
    """
    found, until = Committed(), time.monotonic() + within_s
    entries = list(chunks_listed(store, work, plan))

    def read(each: tuple[int, ListedObject]) -> Footer | None:
        try:
            footer = read_footer(store, each[1])
        except NotReadable:
            return None
        mine = footer.run_id in (None, plan.run_id) and footer.rows == len(plan.chunk_range(each[0]))
        return footer if mine else None

    for start in range(0, len(entries), AT_ONCE):
        if time.monotonic() > until:
            found.left = len(entries) - start
            break
        for footer in readers().map(read, entries[start : start + AT_ONCE]):
            if footer is None:
                found.bad += 1
            else:
                found.add(footer)
    return found


def read_footer(store: ObjectStore, entry: ListedObject) -> Footer:
    """Raises NotReadable for anything but a chunk, StoreUnavailable if the store does not answer."""
    try:
        return asked(entry.path, lambda: _read(store, entry))
    except FileNotFoundError as error:
        raise NotReadable("it vanished while it was read") from error


def only_answer(store: ObjectStore, path: str) -> tuple[str, int] | None:
    """The text that all answers of a chunk are, or the label that they all have, and how many there are; from its statistics.

    None if they differ, are no texts, or cannot be told. Two requests. Raises StoreUnavailable.
    """
    try:
        footer = asked(path, lambda: _footer_bytes(store, ListedObject(path, obstore.head(store, path)["size"], 0.0)))
        metadata = _parse(footer)
    except (NotReadable, FileNotFoundError):
        return None
    found, count = set(), 0
    for group in range(metadata.num_row_groups):
        columns = (metadata.row_group(group).column(number) for number in range(metadata.num_columns))
        for column in columns:
            if column.path_in_schema in (PREDICTION, f"{PREDICTION}.label"):
                known = column.statistics
                if known is None or not known.has_min_max or known.min != known.max or not isinstance(known.min, str):
                    return None
                found.add(known.min)
                count += known.num_values
    return (found.pop(), count) if len(found) == 1 else None


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
    try:
        check_footer(metadata.metadata or {}, footer)
    except NotAChunk as error:
        raise NotReadable(str(error)) from error
    provenance = _provenance(metadata)
    parts = _parts(metadata)
    dead = count(provenance.get("dead_letters"))
    rows = metadata.num_rows
    predictions = count(provenance.get("predictions"))
    if predictions + dead != rows:
        raise NotReadable(f"it holds {n(rows, 'row')} but claims {n(predictions, 'prediction')} and {n(dead, 'dead letter')}")
    reasons = Counter[str]()
    if dead and (known := _reasons_by_statistics(metadata)) is not None:
        reasons = known
    elif dead:
        reasons = _reasons_by_rows(store, entry)
    if reasons.total() != dead:
        raise NotReadable(f"it holds {n(reasons.total(), 'dead letter')} but claims {dead}")
    return Footer(
        rows=rows,
        reasons=reasons,
        attempt=str(provenance.get("attempt", "?")),
        run_id=provenance.get("run_id"),
        prompt_tokens=sum(count(part.get("prompt_tokens")) for part in parts),
        output_tokens=sum(count(part.get("output_tokens")) for part in parts),
        truncated=sum(count(part.get("truncated")) for part in parts),
        engine_versions=_versions(parts),
    )


def _versions(parts: list[dict[str, Any]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in parts:
        if isinstance(version := part.get("engine_version"), str):
            found[version] += count(part.get("rows"))
    return found


def count(value: Any) -> int:
    """A JSON number as a count; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _footer_bytes(store: ObjectStore, entry: ListedObject) -> bytes:
    """The footer with its length and magic word at the end."""
    if entry.size < len(_MAGIC) + _END_BYTES:
        raise NotReadable(f"it has {entry.size} bytes")
    tail = _last(store, entry, min(TAIL_BYTES, entry.size))
    if tail[-len(_MAGIC) :] != _MAGIC:
        raise NotReadable("it does not end like a Parquet file")
    length = parquet_cost.footer_size(tail)
    try:
        parquet_cost.check_footer(length)
    except parquet_cost.TooLarge as error:
        raise NotReadable(str(error)) from error
    if length + len(_MAGIC) > entry.size:
        raise NotReadable("its Parquet footer is longer than the object")
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
        raise NotReadable(f"its Parquet footer cannot be decoded: {error}".strip()) from error


def _provenance(metadata: pq.FileMetaData) -> dict[str, Any]:
    said = metadata.metadata or {}
    try:
        CHUNK.check(loaded(said[FORMAT_KEY]), "it")
        provenance = loaded(said[METADATA_KEY])
    except UnreadableFormat as error:
        raise NotReadable(str(error)) from error
    except (AttributeError, KeyError, ValueError) as error:
        raise NotReadable("its footer lacks nightshift's provenance") from error
    if not isinstance(provenance, dict):
        raise NotReadable("its provenance is not a JSON object")
    return provenance


def _parts(metadata: pq.FileMetaData) -> list[dict[str, Any]]:
    """What each attempt contributed."""
    try:
        parts = loaded((metadata.metadata or {}).get(PARTS_KEY, b""))
    except ValueError as error:
        raise NotReadable("its list of parts is not JSON") from error
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise NotReadable("its parts are not a list of JSON objects")
    return parts


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
        raise NotReadable(f"its dead letters cannot be read: {error}".strip()) from error
    return reasons
