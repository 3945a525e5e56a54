"""Loads read Parquet as BigQuery does ("Loading Parquet data from Cloud Storage").

- A BYTES column holds bytes; local-bigquery would read it as base64, as in text files.
- A timestamp of milliseconds or microseconds is a TIMESTAMP, whether it is marked as UTC or not; DuckDB takes one without the
  mark for a DATETIME. The page does not list nanoseconds: refused.
- A LIST without ``enableListInference`` is a record with the repeated field ``list``. A repeated field is an array.
- A DECIMAL of more than 38 digits, which is how BIGNUMERIC is exported, keeps its digits; DuckDB reads a DOUBLE. The emulator's
  BIGNUMERIC has 38 digits: a value that needs more is refused.
- Without a schema, the last file in the order of names decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from local_bigquery.engine import types
from local_bigquery.engine.database import quote
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import load

from local.bigquery import repeated

DIGITS_MOST: Final = 38
WIDE: Final = pa.decimal128(DIGITS_MOST, 18)
"""What the emulator has for BIGNUMERIC."""

_projection, _reader = load._projection, load._reader


def install() -> None:
    load._projection = projection
    load._reader = reader


def projection(config: Any, fields: Sequence[Any], columns: Sequence[str]) -> tuple[str, str]:
    """The select list of a load, and the condition of a bad row."""
    if not fields or (config.sourceFormat or "CSV") in load.TEXT_FORMATS:
        both: tuple[str, str] = _projection(config, fields, columns)
        return both
    casts = [f"CAST({quote(field.name)} AS {types.duckdb_type(field)}) AS {quote(field.name)}" for field in fields]
    if config.hivePartitioningOptions:
        declared = {field.name.casefold() for field in fields}
        casts += [quote(column) for column in columns if column.casefold() not in declared]
    return ", ".join(casts), "false"


def reader(cursor: Any, files: str, config: Any, fields: Sequence[Any]) -> str:
    """What a load selects from. files: a list of paths in SQL."""
    source: str = _reader(cursor, files, config, fields)
    if (config.sourceFormat or "CSV") != "PARQUET":
        return source
    paths = [path for (path,) in cursor.execute(f"SELECT unnest({files})").fetchall()]
    last = _schema(paths[-1])
    if any(_is_wide(field.type) for field in last):
        cursor.register("_load_source", pa.concat_tables(_narrowed(pq.read_table(path)) for path in paths))
        source = "_load_source"
    inferred = bool(config.parquetOptions and config.parquetOptions.enableListInference)
    lists = set() if inferred else repeated.list_columns(Path(paths[-1]))
    changed = {field.name: _as_bigquery(quote(field.name), field, lists) for field in last}
    replaced = [f"{sql} AS {quote(name)}" for name, sql in changed.items() if sql != quote(name)]
    return f"(SELECT * REPLACE ({', '.join(replaced)}) FROM {source})" if replaced else source


def _as_bigquery(column: str, field: pa.Field, lists: set[str]) -> str:
    """The column as an expression of the type that BigQuery gives it; itself if DuckDB gives the same."""
    kind = field.type.value_type if pa.types.is_list(field.type) else field.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        raise BigQueryError("invalid", f"Column {field.name}: timestamps of nanoseconds are not supported")
    naive = pa.types.is_timestamp(kind) and kind.tz is None
    if not pa.types.is_list(field.type):
        return f"CAST({column} AS TIMESTAMPTZ)" if naive else column
    if naive:
        column = f"CAST({column} AS TIMESTAMPTZ[])"
    if field.name in lists:
        element = field.type.value_field.name
        return f"struct_pack(list := list_transform({column}, element -> struct_pack({quote(element)} := element)))"
    return column


def _schema(path: str) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except pa.ArrowException as error:
        raise ValueError(f'{error} in file "{path}"') from error


def _is_wide(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and kind.precision > DIGITS_MOST)


def _narrowed(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_type(WIDE) if _is_wide(field.type) else field for field in table.schema]))
