"""The Parquet format of a chunk: one row per ordinal, a prediction or a dead letter, and who made it.

A partial has the same format with only the rows that its attempt has finished itself. The file's metadata says who made it:
``nightshift`` has the fields that release 0.1.0 knows, because its readers refuse others, and ``nightshift.parts`` a list of
every `Part`. Two more entries hold SHA-256 digests of the footer and of everything before it, so that an altered byte is never
read as other data (docs/adr/0012-chunk-digests.md).
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.spec import columns

T = TypeVar("T")

METADATA_KEY: Final = b"nightshift"
PARTS_KEY: Final = b"nightshift.parts"
BODY_DIGEST_KEY: Final = b"nightshift.body.sha256"
FOOTER_DIGEST_KEY: Final = b"nightshift.footer.sha256"
_PLACES: Final = {key: hashlib.sha256(key).hexdigest().encode() for key in (BODY_DIGEST_KEY, FOOTER_DIGEST_KEY)}
"""Placeholders for the digests: in a new footer, and while the footer's own digest is computed."""
STATUS: Final = "dead_status"
"""The column that only the chunks of `nightshift batch` have."""
UNKNOWN: Final = "unknown"
"""The version of an engine that did not say it, or of which an older release wrote nothing down."""


class NotAChunk(ValueError):
    """Bytes that are not a chunk of this run."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one row: a prediction, or a dead letter with its reason; exactly one of the two is None.

    reason: from `nightshift.tasks.base.Reason`. message: the engine's own words. attempts: requests the row was part of.
    status: of the engine's HTTP reply, if there was one and the reason does not imply it.
    """

    ordinal: int
    prediction: Any
    reason: str | None
    message: str | None
    attempts: int
    status: int | None = None

    @property
    def text(self) -> str | None:
        """The message for people, after the status if there is one."""
        return self.message if self.status is None else f"{self.status}: {self.message}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one attempt contributed to a chunk. Times are ISO 8601 in UTC by its worker's clock, "" if unknown.

    rows: how many rows of the file it computed. prompt_tokens, output_tokens: what its requests for this chunk reported, even
    if another attempt's result counts for some of their rows. truncated: how many of the rows are answers that were cut at
    ``max_tokens``; if another's result counts for some rows of a partial, at most that many. started, finished: when it opened
    the chunk and when it encoded it.
    """

    attempt: str
    node: str
    engine_version: str
    rows: int
    prompt_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0
    started: str = ""
    finished: str = ""


@dataclass(frozen=True)
class Provenance:
    """Who made a chunk and from what. Times are ISO 8601 in UTC by the worker's clock, for people, not for ordering.

    started, finished: when the chunk was opened and when it was encoded. predictions + dead_letters = rows of the file.
    prompt_tokens, output_tokens: what this attempt's requests reported. truncated: how many of the rows that it computed are
    answers that were cut at ``max_tokens``. taken: what other attempts saved.
    """

    run_id: str
    chunk: int
    attempt: str
    node: str
    model: dict[str, str]
    engine_version: str
    started: str
    finished: str
    predictions: int
    dead_letters: int
    prompt_tokens: int
    output_tokens: int = 0
    truncated: int = 0
    taken: tuple[Part, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows this attempt computed itself."""
        return self.predictions + self.dead_letters - sum(part.rows for part in self.taken)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every attempt that contributed, the one that wrote the file first. Their rows are all rows of the file."""
        return (Part(**{name: getattr(self, name) for name in _named(Part)}), *self.taken)

    @property
    def prompt_tokens_all(self) -> int:
        return sum(part.prompt_tokens for part in self.parts)

    @property
    def output_tokens_all(self) -> int:
        return sum(part.output_tokens for part in self.parts)


@dataclass(frozen=True, slots=True)
class Saved:
    """A decoded partial: the rows that one attempt had finished."""

    results: Sequence[Result]
    part: Part

    def only(self, rows: int) -> Part:
        """The part, if just this many of its rows count."""
        return replace(self.part, rows=rows, truncated=min(self.part.truncated, rows))


def encode(
    keys: pa.Table,
    results: Sequence[Result],
    prediction_type: pa.DataType,
    provenance: Provenance,
    *,
    with_status: bool = False,
) -> bytes:
    """One Parquet file. keys: the key columns of the same rows in the same order; results: sorted by ordinal.

    with_status: keeps the status in a separate column. A job's chunks have no such column: there it is part of the message.
    """
    arrays = {
        columns.ORDINAL: pa.array([result.ordinal for result in results], pa.int64()),
        **{name: keys.column(name) for name in keys.column_names},
        columns.PREDICTION: pa.array([result.prediction for result in results], prediction_type),
        columns.DEAD_REASON: pa.array([result.reason for result in results], pa.string()),
        columns.DEAD_MESSAGE: pa.array([result.message if with_status else result.text for result in results], pa.string()),
        columns.ATTEMPTS: pa.array([result.attempts for result in results], pa.int32()),
    }
    if with_status:
        arrays[STATUS] = pa.array([result.status for result in results], pa.int32())
    parts = json.dumps([asdict(part) for part in provenance.parts]).encode()
    return to_parquet(pa.table(arrays).replace_schema_metadata({METADATA_KEY: as_before(provenance), PARTS_KEY: parts}))


def to_parquet(table: pa.Table) -> bytes:
    """The table as a Parquet file with its digests."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(_PLACES)
    return _with_digests(sink.getbuffer())


def as_before(provenance: Provenance) -> bytes:
    """The JSON object of `METADATA_KEY`, with exactly the fields of release 0.1.0: its readers take no other."""
    said = asdict(provenance)
    del said["truncated"], said["taken"]
    merged = {part.attempt: part.rows for part in provenance.taken}
    return json.dumps({**said, "computed_rows": provenance.rows, "merged": merged}).encode()


def decode(body: bytes) -> tuple[pa.Table, Provenance]:
    """The rows and the provenance. Raises NotAChunk for anything else, such as a torn upload or a chunk with an altered byte.

    A chunk of release 0.1.0 has no digests: it is read unless Parquet itself finds it broken. Fields of provenance that only a
    later release knows are passed over.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(body))
        metadata = file.metadata.metadata or {}
        check_footer(metadata, body[-_footer_size(body) :])
        digest = metadata.get(BODY_DIGEST_KEY)
        if digest is not None and _digest(memoryview(body)[: -_footer_size(body)]) != digest:
            raise NotAChunk("not a chunk: its body is not what was written")
        table = file.read()
        if digest is None:
            table.validate(full=True)
        provenance = _provenance(metadata)
        missing = [name for name in columns.CHUNK_COLUMNS if name not in table.column_names]
    except NotAChunk:
        raise
    except (pa.ArrowException, OSError, AttributeError, KeyError, TypeError, ValueError) as error:  # OSError: by Thrift
        raise NotAChunk(f"not a chunk: {error!r}") from error
    if missing:
        raise NotAChunk(f"not a chunk: it lacks the columns {missing}")
    return table, provenance


def _provenance(metadata: Mapping[bytes, bytes]) -> Provenance:
    said = json.loads(metadata[METADATA_KEY])
    if PARTS_KEY in metadata:
        own, *taken = (_of(Part, part) for part in json.loads(metadata[PARTS_KEY]))
        return replace(_of(Provenance, said), truncated=own.truncated, taken=tuple(taken))
    # An earlier release wrote down only how many rows came from whom.
    merged = said.get("merged", {}).items()
    return replace(_of(Provenance, said), taken=tuple(Part(attempt, "?", UNKNOWN, rows) for attempt, rows in merged))


def _of(kind: type[T], said: Mapping[str, Any]) -> T:
    """A dataclass from those entries that are its fields. Raises TypeError if one is missing."""
    return kind(**{name: said[name] for name in _named(kind) if name in said})


def _named(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def check_footer(metadata: Mapping[bytes, bytes], footer: bytes) -> None:
    """Raises NotAChunk if the footer is not what was written. metadata: its entries.

    footer: from its first byte to the end of the file, including its length and the magic word.
    """
    digest = metadata.get(FOOTER_DIGEST_KEY)
    if (digest is None) != (BODY_DIGEST_KEY not in metadata):
        # The name of a digest may have an altered byte: this must not pass for a chunk without digests.
        raise NotAChunk("not a chunk: its footer has one of two digests")
    if digest is not None and _digest(footer.replace(digest, _PLACES[FOOTER_DIGEST_KEY])) != digest:
        raise NotAChunk("not a chunk: its footer is not what was written")


def _with_digests(body: memoryview) -> bytes:
    """The file with the digests in place of `_PLACES`."""
    size = _footer_size(body)
    footer = bytes(body[-size:]).replace(_PLACES[BODY_DIGEST_KEY], _digest(body[:-size]))
    return b"".join((body[:-size], footer.replace(_PLACES[FOOTER_DIGEST_KEY], _digest(footer))))


def _footer_size(body: bytes | memoryview) -> int:
    """Bytes of a Parquet file's footer, including its length (uint32, little endian) and the magic word at the end."""
    return int.from_bytes(body[-8:-4], "little") + 8


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def results_of(table: pa.Table, prediction_type: pa.DataType | None = None) -> list[Result]:
    """The rows of a decoded chunk or partial. prediction_type: casts the predictions first."""
    if prediction_type is not None:
        at, name = table.column_names.index(columns.PREDICTION), columns.PREDICTION
        table = table.set_column(at, name, table.column(name).cast(prediction_type))
    names = [*columns.CHUNK_COLUMNS, STATUS] if STATUS in table.column_names else columns.CHUNK_COLUMNS
    return [Result(*values) for values in zip(*(table.column(name).to_pylist() for name in names), strict=True)]
