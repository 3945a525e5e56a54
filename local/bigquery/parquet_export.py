"""Writes query results as Parquet in the form in which BigQuery exports them.

Sources: "Exporting table data" (the types in Parquet, several files) and "Export statements" (one wildcard, which becomes a
number of 12 digits). What BigQuery promises about files is little: not how many there are, nor how large they are. So a reader
must take every division into files and row groups, and this one is uneven. It depends on the query alone, so that a test that
fails will fail again. The first files are small, so that small results too have several.

| GoogleSQL | Parquet |
|---|---|
| TIMESTAMP, DATETIME | INT64 TIMESTAMP of microseconds that is not adjusted to UTC |
| NUMERIC, BIGNUMERIC | FIXED_LEN_BYTE_ARRAY DECIMAL(38, 9), DECIMAL(76, 38) |
| JSON | UTF8 string |
| ARRAY, STRUCT | repeated field (`repeated`), group |
| INTERVAL, RANGE | refused: the page does not list them |
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from local_bigquery.engine import types
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import storage

from local.bigquery import repeated

SCALARS: Final = {
    "STRING": pa.string(),
    "JSON": pa.string(),
    "BYTES": pa.binary(),
    "INTEGER": pa.int64(),
    "FLOAT": pa.float64(),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal256(76, 38),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us"),
    "DATETIME": pa.timestamp("us"),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
}
CODECS: Final = ("GZIP", "SNAPPY", "ZSTD")

BATCH_ROWS: Final = 1 << 16
GROUP_ROWS_MAX: Final = 1 << 17
group_bytes_most = 64 << 20
"""In memory, of one row group; 0: any number. Option ``--group-bytes`` of the emulator: BigQuery promises no bound."""
START: Final = pa.array([0], pa.int32())
"""Made on import: with its first array pyarrow looks for pandas, and fails once `server` has ruled pandas out."""
GROWTH, GROWTHS_MAX = 8, 6
"""Each file may have up to GROWTH times the rows of the one before, GROWTHS_MAX times."""


class Exported(NamedTuple):
    rows: int
    files: int


def export(cursor: Any, query: str, params: dict[str, Any] | None, uri: str, compression: str | None) -> Exported:
    """Runs a query and writes its rows, in their order, to ``uri``: to several files if that has a wildcard, else to one.

    Raises BigQueryError for a column that cannot be exported, before anything is written.
    """
    codec = (compression or "NONE").upper()
    if codec not in (*CODECS, "NONE"):
        raise BigQueryError("invalid", f"Unsupported compression for Parquet: {codec}")
    result = cursor.execute(query, params)
    fields = [types.field(name, type_) for name, type_, *_ in result.description]
    schema = pa.schema([_arrow_field(field) for field in fields])
    sizes = random.Random(hashlib.sha256(f"{query} {params}".encode()).digest())
    files = rows = 0
    try:
        source = _Source(_converted(result.to_arrow_reader(BATCH_ROWS), schema), schema)
        while not files or not source.ended:
            most = _file_rows(sizes, files) if "*" in uri else None
            with storage.written(uri.replace("*", f"{files:012d}")) as target:
                rows += _write(Path(target), source, schema, sizes, most, codec)
            files += 1
    except OSError as error:
        # DuckDB's error about a later row is lost on its way through Arrow. Without Arrow it comes again.
        cursor.execute(f"EXPLAIN ANALYZE {query}", params)
        raise BigQueryError("jobBackendError", f"The export was broken off: {error}") from error
    return Exported(rows, files)


def _file_rows(sizes: random.Random, number: int) -> int:
    growth: int = GROWTH ** min(number, GROWTHS_MAX)
    return sizes.randint(1, 4) * growth


def _write(target: Path, source: _Source, schema: pa.Schema, sizes: random.Random, most: int | None, codec: str) -> int:
    """One file of at most ``most`` rows; returns how many it has."""
    written = 0
    # Without Arrow's own schema in the file: it would give pyarrow more than BigQuery's files do.
    with pq.ParquetWriter(target, schema, compression=codec, store_schema=False) as writer:
        while not source.ended and (most is None or written < most):
            whole = GROUP_ROWS_MAX if most is None else most
            wanted = min(sizes.randint(max(1, whole // 8), min(whole, GROUP_ROWS_MAX)), whole - (written if most else 0))
            group = source.take(wanted)
            writer.write_table(group, row_group_size=max(1, len(group)))
            written += len(group)
    repeated.rewrite(target)
    return written


class _Source:
    """Batches of rows, to be taken in other pieces."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = (batch for batch in batches if batch.num_rows)
        self._schema = schema
        self._next = next(self._batches, None)

    @property
    def ended(self) -> bool:
        return self._next is None

    def take(self, rows: int) -> pa.Table:
        """The next rows: fewer at the end, and fewer if they are large."""
        taken: list[pa.RecordBatch] = []
        room = group_bytes_most or sys.maxsize
        while self._next is not None and rows and room > 0:
            piece = self._next.slice(0, rows)
            if piece.nbytes > room:
                piece = piece.slice(0, max(1, len(piece) * room // piece.nbytes))
            rest = self._next.slice(len(piece))
            self._next = rest if len(rest) else next(self._batches, None)
            taken.append(piece)
            rows -= len(piece)
            room -= piece.nbytes
        return pa.Table.from_batches(taken, self._schema)


def _arrow_field(field: Any) -> pa.Field:
    """The Arrow field that is written for a BigQuery one. Raises BigQueryError for a type that is not exported."""
    if field.type == "RECORD":
        kind = pa.struct([_arrow_field(part) for part in field.fields])
    elif field.type in SCALARS:
        kind = SCALARS[field.type]
    elif field.type == "GEOGRAPHY":
        raise BigQueryError("notImplemented", f"The emulator does not export the column {field.name} of type GEOGRAPHY")
    else:  # The page does not list INTERVAL and RANGE. The words are ours.
        raise BigQueryError("invalidQuery", f"Type {field.type} of column {field.name} is not supported in exports to Parquet")
    if field.mode == "REPEATED":
        return pa.field(field.name, pa.list_(pa.field("element", kind, nullable=False)), nullable=False)
    return pa.field(field.name, kind)


def _converted(reader: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        columns = [_array(array, field) for array, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(array: pa.Array, field: pa.Field) -> pa.Array:
    """A column as it is written. "Data types", Array type: a NULL array becomes an empty one."""
    if pa.types.is_list(field.type):
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0))
        offsets = pa.concat_arrays([START, ends.cast(pa.int32())])
        elements = _array(array.flatten(), field.type.value_field)
        if elements.null_count:
            # The same page: a query's result must not have an array with a NULL element.
            raise BigQueryError("invalidQuery", f"Array cannot have a null element; error in writing field {field.name}")
        return pa.ListArray.from_arrays(offsets, elements, type=field.type)
    if pa.types.is_struct(field.type):
        parts = [_array(part, inner) for part, inner in zip(array.flatten(), field.type, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(field.type), mask=array.is_null())
    return array.cast(field.type)
