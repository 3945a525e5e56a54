"""``python -m local.load FILE TABLE [--state DIR]``: a CSV or Parquet file becomes a table of the running stack, in place of an
earlier one of the name.

A Parquet file has its types. Of a CSV file they are inferred from all of its values: whole numbers, numbers, true and false,
dates (2026-11-20), times (2026-11-20T08:00Z), else text. Numbers with leading zeros, such as postcodes, stay text.
Exit codes: 0, 1 if there is no stack or it refuses the table, 2 for a file that cannot be read or a wrong name.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from google.api_core.exceptions import GoogleAPIError
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from local.stack import Stack, StackDown
from local.stack.stack import DEFAULT_STATE

_TABLE: Final = re.compile(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", re.ASCII)
_COLUMN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ZEROS: Final = r"^[+-]?0[0-9]"


class Wrong(ValueError):
    """The file or the name cannot be used; the message says why, and what to do."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make load FILE=... TABLE=...", description="Puts a file into a table of the stack.")
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV with a line of column names, or Parquet")
    parser.add_argument("table", metavar="TABLE", help="DATASET.TABLE")
    parser.add_argument("--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help="of the stack (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        if not _TABLE.fullmatch(arguments.table):
            raise Wrong(f"TABLE is {arguments.table!r}. Write DATASET.TABLE, for example TABLE=support.tickets.")
        table = read(arguments.file)
        os.environ.update(Stack.attach(arguments.state).environment())
        load(table, arguments.table)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 2
    except StackDown as error:
        print(f"The stack is not up, so there is no warehouse to load into ({error}). Start it: make up", file=sys.stderr)
        return 1
    except GoogleAPIError as error:
        print(f"BigQuery refuses the table {arguments.table}: {error}", file=sys.stderr)
        return 1
    columns = ", ".join(f"{field.name} {_name(field.type)}" for field in table.schema)
    print(f"{arguments.table}: {table.num_rows:,} rows ({columns})")
    return 0


def read(path: Path) -> pa.Table:
    """The file's rows with the types that the table will have. Raises Wrong."""
    if not str(path).strip() or str(path) == ".":
        raise Wrong("FILE is not set. Write, for example, make load FILE=tickets.csv TABLE=support.tickets.")
    try:
        with open(path, "rb") as file:
            parquet = file.read(4) == b"PAR1"
        table = pq.read_table(path) if parquet else _read_csv(path)
    except FileNotFoundError:
        raise Wrong(f"There is no file {path}. Its path is relative to {Path.cwd()}.") from None
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise Wrong(f"{path} cannot be read as CSV or Parquet: {error}") from error
    _check_columns(path, table.column_names)
    if not table.num_rows:
        raise Wrong(f"{path} has no rows.")
    return table


def _read_csv(path: Path) -> pa.Table:
    """Of a column without any value, text."""
    parsing = pc_csv.ParseOptions(newlines_in_values=True)
    table = pc_csv.read_csv(path, parse_options=parsing)
    if odd := [field.name for field in table.schema if pa.types.is_binary(field.type)]:
        raise Wrong(f"{path} cannot be read: its column {odd[0]} has text that is not UTF-8. Save the file as UTF-8.")
    # BigQuery has microseconds.
    for number, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            kind = pa.timestamp("us", field.type.tz)
            table = table.set_column(number, field.name, table.column(number).cast(kind, safe=False))
    texts = {field.name: pa.string() for field in table.schema if pa.types.is_null(field.type) or _is_number(field.type)}
    if not texts:
        return table
    # A number that begins with a zero is a name: as a number it would lose it.
    raw = pc_csv.read_csv(
        path,
        parse_options=parsing,
        convert_options=pc_csv.ConvertOptions(column_types=texts, include_columns=list(texts)),
    )
    for name in texts:
        number = table.column_names.index(name)
        if not _is_number(table.schema.field(number).type) or pc.any(pc.match_substring_regex(raw[name], _ZEROS)).as_py():
            table = table.set_column(number, name, raw[name])
    return table


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _check_columns(path: Path, names: list[str]) -> None:
    for name in names:
        if not _COLUMN.fullmatch(name):
            raise Wrong(
                f"{path} has the column {name!r}. BigQuery's columns have letters, digits and underscores, and begin with "
                "no digit. Its first line must have the names of the columns: correct it there."
            )
    lowered = [name.lower() for name in names]
    if twice := next((name for name in names if lowered.count(name.lower()) > 1), None):
        raise Wrong(f"{path} has the column {twice!r} more than once. Rename one of them in its first line.")


def load(table: pa.Table, name: str) -> None:
    """Replaces the table. Raises GoogleAPIError."""
    client = bigquery.Client(project=os.environ["NIGHTSHIFT_PROJECT"], credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
    client.create_dataset(name.partition(".")[0], exists_ok=True)
    body = io.BytesIO()
    pq.write_table(table, body)
    body.seek(0)
    options = bigquery.ParquetOptions()  # type: ignore[no-untyped-call]
    options.enable_list_inference = True
    config = bigquery.LoadJobConfig(source_format="PARQUET", write_disposition="WRITE_TRUNCATE", parquet_options=options)
    client.load_table_from_file(body, name, job_config=config).result()


def _name(kind: pa.DataType) -> str:
    """GoogleSQL's name of a type, as far as a CSV file has it; else Arrow's."""
    for test, name in (
        (pa.types.is_integer, "INT64"),
        (pa.types.is_floating, "FLOAT64"),
        (pa.types.is_boolean, "BOOL"),
        (pa.types.is_date, "DATE"),
        (pa.types.is_timestamp, "TIMESTAMP"),
    ):
        if test(kind):
            return name
    return "STRING" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else str(kind)


if __name__ == "__main__":
    sys.exit(main())
