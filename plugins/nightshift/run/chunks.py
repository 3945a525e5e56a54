"""The Parquet format of a chunk: one row per ordinal, a prediction or a dead letter, and who made it.

A partial has the same format with only the rows that its attempt has finished itself. The file's metadata says who made it:
``nightshift`` has the fields of the attempt that wrote it, ``nightshift.parts`` a list of every `Part`, and
``nightshift.format`` the version (`nightshift.formats`). Two more entries hold SHA-256 digests of the footer and of everything
before it, so that an altered byte is never read as other data (docs/adr/0012-chunk-digests.md).
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from annotated_types import MaxLen

from nightshift.fields.stored import Count, read_json
from nightshift.fields.text import n
from nightshift.formats import CHUNK, UnreadableFormat
from nightshift.run import parquet_cost, parquet_rows
from nightshift.run.answers.tally import Tally
from nightshift.spec import columns

T = TypeVar("T")

VECTORS: Final = pa.list_(pa.float32())
OUTCOME_NUMBERS: Final = 1 << 18
"""Numbers of predictions that are decoded at once: 64 vectors of 4,096."""
OUTCOME_TEXTS: Final = 512
"""Predictions with texts that are decoded at once; a file does not show their lengths."""
METADATA_KEY: Final = b"nightshift"
PARTS_KEY: Final = b"nightshift.parts"
FORMAT_KEY: Final = b"nightshift.format"
BODY_DIGEST_KEY: Final = b"nightshift.body.sha256"
FOOTER_DIGEST_KEY: Final = b"nightshift.footer.sha256"
_PLACES: Final = {key: hashlib.sha256(key).hexdigest().encode() for key in (BODY_DIGEST_KEY, FOOTER_DIGEST_KEY)}
"""Placeholders for the digests: in a new footer, and while the footer's own digest is computed."""
WIDTH: Final = "width"
"""The column of `decode_outcomes` with the length of a prediction that is a list."""
STATUS: Final = "dead_status"
"""The column that only the chunks of `nightshift batch` have."""
_OPTIONAL: Final = {STATUS: ("status", pa.int32()), columns.REASONING: ("reasoning", pa.string())}
"""Columns that not all chunks have: field of `Result`, and type."""
_LARGE: Final = (columns.PREDICTION, columns.REASONING)
REASON_MOST: Final = 100
"""Bytes of a dead letter's reason, which is a name from a list."""
Claim = Annotated[str, MaxLen(4_096)]
"""A text that an attempt claims, in characters: it goes into the manifest."""
_ODD: Final = (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError)
"""What reading foreign bytes may raise, beside Arrow's own errors."""


class NotAChunk(ValueError):
    """Bytes that are not a chunk of this run."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one row: a prediction, or a dead letter with its reason; exactly one of the two is None.

    reason: from `nightshift.tasks.base.Reason`. message: the engine's own words. attempts: requests the row was part of.
    status: of the engine's HTTP reply, if there was one and the reason does not imply it. reasoning: the model's, beside its
    prediction, if the job keeps it.
    """

    ordinal: int
    prediction: Any
    reason: str | None
    message: str | None
    attempts: int
    status: int | None = None
    reasoning: str | None = None

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

    attempt: Claim
    node: Claim
    engine_version: Claim
    rows: Count
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    truncated: Count = 0
    started: Claim = ""
    finished: Claim = ""


@dataclass(frozen=True)
class Provenance:
    """Who made a chunk and from what. Times are ISO 8601 in UTC by the worker's clock, for people, not for ordering.

    started, finished: when the chunk was opened and when it was encoded. predictions + dead_letters = rows of the file.
    prompt_tokens, output_tokens: what this attempt's requests reported. truncated: how many of the rows that it computed are
    answers that were cut at ``max_tokens``. taken: what other attempts saved. plan_uid: `nightshift.run.plan.Plan.uid`.
    """

    run_id: Claim
    chunk: Count
    attempt: Claim
    node: Claim
    model: dict[Claim, Claim]
    engine_version: Claim
    started: Claim
    finished: Claim
    predictions: Count
    dead_letters: Count
    prompt_tokens: Count
    output_tokens: Count = 0
    truncated: Count = 0
    taken: tuple[Part, ...] = ()
    plan_uid: Claim = ""

    @property
    def whose(self) -> str:
        """Run and plan, for people."""
        return f"run {self.run_id}" + (f", plan {self.plan_uid}" if self.plan_uid else "")

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
    results: Iterable[Result],
    prediction_type: pa.DataType,
    provenance: Provenance,
    *,
    group_rows: int | None = None,
    optional: Sequence[str] = (),
) -> bytes:
    """One Parquet file. keys: the key columns of the same rows in the same order, which may be packed; results: sorted by
    ordinal, read once.

    group_rows: rows of a row group; by default all of them are in one. The results of a group are released before those of the
    next are read. optional: columns that not all chunks have, STATUS and REASONING. Without STATUS, as in a job's chunks, the
    status is part of the message.
    """
    parts = json.dumps([asdict(part) for part in provenance.parts]).encode()
    # Of no row: the columns' types do not depend on the rows.
    schema = _table(keys.slice(0, 0), [], prediction_type, optional).schema.with_metadata(
        {METADATA_KEY: claims_of(provenance), PARTS_KEY: parts, FORMAT_KEY: json.dumps(CHUNK.stamp()).encode()}
    )
    rest = iter(results)
    rows = group_rows or max(1, len(keys))
    slices = (keys.slice(at, rows) for at in range(0, len(keys), rows))
    groups = (_table(some, list(itertools.islice(rest, len(some))), prediction_type, optional) for some in slices)
    body = to_parquet(schema, groups)
    if next(rest, None) is not None:
        raise ValueError(f"there are more results than the {n(len(keys), 'key')}")
    return body


def _table(keys: pa.Table, results: Sequence[Result], prediction_type: pa.DataType, optional: Sequence[str]) -> pa.Table:
    keys = parquet_rows.decoded(keys)
    arrays = {
        columns.ORDINAL: pa.array([result.ordinal for result in results], pa.int64()),
        **{name: keys.column(name) for name in keys.column_names},
        columns.PREDICTION: prediction_array([result.prediction for result in results], prediction_type),
        columns.DEAD_REASON: pa.array([result.reason for result in results], pa.string()),
        columns.DEAD_MESSAGE: pa.array(
            [result.message if STATUS in optional else result.text for result in results], pa.string()
        ),
        columns.ATTEMPTS: pa.array([result.attempts for result in results], pa.int32()),
    }
    for name in optional:
        field, kind = _OPTIONAL[name]
        arrays[name] = pa.array([getattr(result, field) for result in results], kind)
    return pa.table(arrays)


def prediction_array(values: list[Any], prediction_type: pa.DataType) -> pa.Array:
    """The column of these predictions; None is a dead letter's."""
    vectors = (value is None or (isinstance(value, array) and value.typecode == "f") for value in values)
    if prediction_type != VECTORS or not all(vectors):
        return pa.array(values, prediction_type)
    # As bytes: pyarrow would make a Python object of each number.
    numbers = b"".join(value for value in values if value is not None)
    floats = pa.Array.from_buffers(pa.float32(), len(numbers) // 4, [None, pa.py_buffer(numbers)])
    ends = itertools.accumulate((0 if value is None else len(value) for value in values), initial=0)
    mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), floats, type=VECTORS, mask=mask)


def to_parquet(schema: pa.Schema, groups: Iterable[pa.Table]) -> bytes:
    """A Parquet file of these row groups, with its digests."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for group in groups:
            writer.write_table(group)
        writer.add_key_value_metadata(_PLACES)
    with sink.getbuffer() as body:
        _put_digests(body)
    return sink.getvalue()


def claims_of(provenance: Provenance) -> bytes:
    """The JSON object of `METADATA_KEY`; of other attempts it has only the numbers of rows."""
    claims = asdict(provenance)
    del claims["truncated"], claims["taken"]
    merged = {part.attempt: part.rows for part in provenance.taken}
    return json.dumps({**claims, "computed_rows": provenance.rows, "merged": merged}).encode()


def decode(body: bytes) -> tuple[pa.Table, Provenance]:
    """The rows and the provenance; what was copied from the source is packed (`nightshift.run.parquet_rows`).

    Raises NotAChunk for anything else, such as a torn upload or a chunk with an altered byte. Fields of provenance that only a
    later release knows are ignored.
    """

    def read(file: pq.ParquetFile) -> pa.Table:
        table = file.read()
        table.validate(full=True)
        return table

    return _decoded(body, read)


def decode_outcomes(
    body: bytes,
    keys: Sequence[str] = (),
    *,
    rows: int | None = None,
    optional: Sequence[str] = (),
    tally: Tally | None = None,
) -> tuple[pa.Table, Provenance]:
    """As `decode`, with the columns ORDINAL, `keys` (packed), DEAD_REASON, PREDICTION and WIDTH. rows: a file with more is not
    a chunk.

    optional: columns that it must have, too; they are only checked. tally: adds up the predictions. PREDICTION only shows
    whether there is one, and WIDTH its length if it is a list. Both are read and checked a batch at a time, because they may be
    a hundred times as large as all else.
    """

    def read(file: pq.ParquetFile) -> pa.Table:
        table = file.read([columns.ORDINAL, *keys, columns.DEAD_REASON])
        table.validate(full=True)
        batches = file.iter_batches(_rows_at_once(file.metadata), columns=[columns.PREDICTION, *optional])
        seen = [_seen(batch, tally) for batch in batches]
        there, widths = (pa.chunked_array([each[n] for each in seen], kind) for n, kind in enumerate((pa.bool_(), pa.int32())))
        if (pc.max(pc.binary_length(table.column(columns.DEAD_REASON))).as_py() or 0) > REASON_MOST:
            raise NotAChunk(f"not a chunk: it has a {columns.DEAD_REASON} of more than {REASON_MOST} bytes")
        return table.append_column(columns.PREDICTION, there).append_column(WIDTH, widths)

    return _decoded(body, read, rows, (*keys, *optional))


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """How many predictions are decoded at once: as few as large ones need, and as many as small ones allow."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [group.column(number) for group in groups for number in range(group.num_columns)]
    predictions = [leaf for leaf in leaves if leaf.path_in_schema.split(".")[0] in _LARGE]
    numbers = sum(int(leaf.num_values) for leaf in predictions)
    rows = max(1, OUTCOME_NUMBERS * int(metadata.num_rows) // max(1, numbers))
    return min(rows, OUTCOME_TEXTS) if any(leaf.physical_type == "BYTE_ARRAY" for leaf in predictions) else rows


def _seen(batch: pa.RecordBatch, tally: Tally | None) -> tuple[pa.Array, pa.Array]:
    """Of each prediction: whether it is there, and its length if it is a list."""
    batch.validate(full=True)
    predictions = batch.column(columns.PREDICTION)
    if tally is not None:
        tally.add(predictions)
    lists = pa.types.is_list(predictions.type)
    return pc.is_valid(predictions), pc.list_value_length(predictions) if lists else pa.nulls(len(predictions), pa.int32())


def _decoded(
    body: bytes, read: Callable[[pq.ParquetFile], T], rows: int | None = None, keys: Sequence[str] = ()
) -> tuple[T, Provenance]:
    """rows: more than these are not unpacked. keys: columns that it must have, too. read: of the file, whose copied columns are
    packed."""
    try:
        parquet_cost.check_footer(parquet_cost.footer_size(body))
        file = pq.ParquetFile(pa.BufferReader(body))
        if rows is not None and file.metadata.num_rows > rows:
            raise NotAChunk(f"not a chunk: it has {n(file.metadata.num_rows, 'row')}, and there are {rows}")
        metadata = file.metadata.metadata or {}
        check_footer(metadata, body[-parquet_cost.footer_size(body) :])
        if _digest(memoryview(body)[: -parquet_cost.footer_size(body)]) != metadata[BODY_DIGEST_KEY]:
            raise NotAChunk("not a chunk: its body is not what was written")
        provenance = provenance_of(metadata)
        missing = [name for name in (*columns.CHUNK_COLUMNS, *keys) if name not in file.schema_arrow.names]
        if missing:
            raise NotAChunk(f"not a chunk: it lacks the columns {missing}")
        with parquet_cost.turn(parquet_cost.check(body, file)):
            content = read(parquet_rows.packed(pa.BufferReader(body), file, but=(*columns.CHUNK_COLUMNS, *_OPTIONAL)))
    except NotAChunk:
        raise
    except (pa.ArrowException, OSError, *_ODD) as error:  # OSError: by Thrift
        raise NotAChunk(f"not a chunk: {error!r}") from error
    return content, provenance


def provenance_of(metadata: Mapping[bytes, bytes]) -> Provenance:
    """What a footer's entries claim. Raises NotAChunk."""
    try:
        CHUNK.check(json.loads(metadata[FORMAT_KEY]), "the file")
        own, *taken = read_json(tuple[Part, ...], metadata[PARTS_KEY])
        return replace(read_json(Provenance, metadata[METADATA_KEY]), truncated=own.truncated, taken=tuple(taken))
    except UnreadableFormat as error:
        raise NotAChunk(str(error)) from error
    except _ODD as error:
        raise NotAChunk(f"not a chunk: {error!r}") from error


def _named(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


def check_footer(metadata: Mapping[bytes, bytes], footer: bytes) -> None:
    """Raises NotAChunk if the footer is not what was written. metadata: its entries.

    footer: from its first byte to the end of the file, including its length and the magic word.
    """
    digest = metadata.get(FOOTER_DIGEST_KEY)
    if digest is None:
        raise NotAChunk("not a chunk: its footer has no digest")
    if _digest(footer.replace(digest, _PLACES[FOOTER_DIGEST_KEY])) != digest:
        raise NotAChunk("not a chunk: its footer is not what was written")


def _put_digests(body: memoryview) -> None:
    """Puts the digests in place of `_PLACES`, which are as long, so that no copy of the file is made."""
    size = parquet_cost.footer_size(body)
    footer = bytes(body[-size:]).replace(_PLACES[BODY_DIGEST_KEY], _digest(body[:-size]))
    body[-size:] = footer.replace(_PLACES[FOOTER_DIGEST_KEY], _digest(footer))


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def decode_results(
    body: bytes, of: Callable[[pa.Table], list[Result]], *, rows: int | None = None, keys: Sequence[str] = ()
) -> tuple[list[Result], Provenance]:
    """As `decode`, with the rows as results. of: makes them, as `results_of` does; it may refuse foreign rows.
    rows: a file with more is not a chunk. keys: columns that it must have, too.

    Rows are read a batch at a time, so that predictions are in memory once beside the file.
    """

    def read(file: pq.ParquetFile) -> list[Result]:
        results = []
        for batch in file.iter_batches(_rows_at_once(file.metadata)):
            batch.validate(full=True)
            results += of(pa.Table.from_batches([batch]))
        return results

    return _decoded(body, read, rows, keys)


def results_of(table: pa.Table, prediction_type: pa.DataType | None = None, *, optional: Sequence[str] = ()) -> list[Result]:
    """The rows of a decoded chunk or partial. prediction_type: casts the predictions first. optional: as in `encode`."""
    if prediction_type is not None:
        at, name = table.column_names.index(columns.PREDICTION), columns.PREDICTION
        table = table.set_column(at, name, table.column(name).cast(prediction_type))
    fields, own = [_OPTIONAL[name][0] for name in optional], len(columns.CHUNK_COLUMNS)
    rows = zip(*(_values(table.column(name)) for name in (*columns.CHUNK_COLUMNS, *optional)), strict=True)
    return [Result(*each[:own], **dict(zip(fields, each[own:], strict=True))) for each in rows]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values in Python's types; vectors as array('f'), which takes an eighth of a list's memory."""
    if column.type != VECTORS or any(part.values.null_count for part in column.chunks):
        return list(column.to_pylist())
    return [_vector(value.values) if value.is_valid else None for value in column]


def _vector(values: pa.Array) -> array[float]:
    # By the buffer: numpy, which could do this, is not installed where drivers run.
    vector = array("f")
    if len(values):
        vector.frombytes(memoryview(values.buffers()[1])[4 * values.offset : 4 * (values.offset + len(values))])
    return vector
