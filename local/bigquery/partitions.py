"""``table$partition`` names one partition as the destination of a load, query or copy, and as the source of a copy.

local-bigquery makes a table of that name beside the real one. In BigQuery the write disposition applies to the partition alone:
WRITE_TRUNCATE replaces its rows, WRITE_EMPTY requires it to be empty, and a row that belongs elsewhere fails the job. The
partition is ``YYYY[MM[DD[HH]]]`` for time partitioning and the start of the range for integer ranges.

The table id itself carries the partition through local-bigquery: `PartitionedTable`, which equals the plain table's id.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from local_bigquery.catalog import names, tables
from local_bigquery.engine.database import quote
from local_bigquery.errors import BigQueryError, already_exists
from local_bigquery.jobs import copy

# How the digits of a time partition are read, by their number: the unit and DuckDB's strptime format.
TIME_UNITS = {4: ("year", "%Y"), 6: ("month", "%Y%m"), 8: ("day", "%Y%m%d"), 10: ("hour", "%Y%m%d%H")}

_reference, _write, _decorated = tables.reference, tables.write, copy.decorated
_lock = threading.Lock()


class PartitionedTable(str):
    """A table id that remembers which partition was named after its ``$``."""

    partition_id: str

    @classmethod
    def parse(cls, table_id: str) -> str:
        """``table_id`` itself if it names no partition."""
        base, dollar, partition = table_id.partition("$")
        if not dollar:
            return table_id
        if not partition.isdecimal():
            raise BigQueryError("invalid", f'Invalid partition "{partition}" in table id "{table_id}"')
        named = cls(base)
        named.partition_id = partition
        return named


def install() -> None:
    tables.reference = reference
    tables.write = write
    copy.decorated = decorated


def reference(table: Any) -> tuple[str, str, str]:
    project_id, dataset_id, table_id = _reference(table)
    return project_id, dataset_id, PartitionedTable.parse(table_id)


def write(
    cursor: Any,
    query: str,
    params: dict[str, Any] | None,
    reference: tuple[str, str, str],
    config: Any,
    default: str = "WRITE_EMPTY",
    prefix: str = "Invalid schema update. ",
    isolated: bool = False,
) -> bool:
    """local-bigquery's `tables.write`; into one partition if the reference names one. Returns whether the table is new."""
    table_id = reference[2]
    if not isinstance(table_id, PartitionedTable):
        return bool(_write(cursor, query, params, reference, config, default, prefix, isolated))
    disposition = config.writeDisposition or default
    there = tables.exists(*reference)
    layout = tables.load(*reference) if there else config
    predicate = _predicate(layout, reference)
    # The query may read the partition that it replaces, and its rows are read twice.
    cursor.execute(f"CREATE OR REPLACE TEMP TABLE _partition_rows AS {query}", params)
    rows = "SELECT * FROM temp.main._partition_rows"
    if _column(layout) is not None:
        _refuse_foreign_rows(cursor, rows, predicate, reference)
    with _lock, _transaction(cursor):
        present = f"SELECT 1 FROM {tables.name(*reference)} WHERE {predicate} LIMIT 1"
        if there and disposition == "WRITE_EMPTY" and cursor.execute(present).fetchone():
            raise already_exists("Table", f"{names.label(*reference)}${table_id.partition_id}")
        if there and disposition == "WRITE_TRUNCATE":
            cursor.execute(f"DELETE FROM {tables.name(*reference)} WHERE {predicate}")
        appending = config.replace(writeDisposition="WRITE_APPEND")
        return bool(_write(cursor, rows, None, reference, appending, default, prefix, isolated=False))


def decorated(project_id: str, dataset_id: str, table_id: str) -> str | None:
    """The source of a copy in SQL if its id has a decorator: here a partition, in local-bigquery a point in time."""
    if not isinstance(table_id, PartitionedTable):
        source: str | None = _decorated(project_id, dataset_id, table_id)
        return source
    reference = (project_id, dataset_id, table_id)
    predicate = _predicate(tables.load(*reference), reference)
    return f"(SELECT * FROM {tables.name(*reference)} WHERE {predicate})"


def key_of(layout: Any) -> str | None:
    """SQL that distinguishes the partitions of a table or job configuration; None without partitions, or by ingestion time."""
    if _by_range(layout):
        bounds = layout.rangePartitioning.range
        return f"({quote(layout.rangePartitioning.field)} - {int(bounds.start)}) // {int(bounds.interval)}"
    partitioning = getattr(layout, "timePartitioning", None)
    if partitioning is None or partitioning.field is None:
        return None
    return f"date_trunc('{partitioning.type or 'DAY'}', CAST({quote(partitioning.field)} AS TIMESTAMP))"


def _column(layout: Any) -> str | None:
    """The column that a table or job configuration partitions by; None for ingestion time."""
    partitioning = layout.rangePartitioning if _by_range(layout) else layout.timePartitioning
    field: str | None = partitioning.field
    return field


def _by_range(layout: Any) -> bool:
    return getattr(layout, "rangePartitioning", None) is not None  # copy jobs have no such setting


def _predicate(layout: Any, reference: tuple[str, str, str]) -> str:
    """SQL that holds for the rows of the named partition. Raises BigQueryError `invalid` if there is no such partition."""
    table_id = reference[2]
    assert isinstance(table_id, PartitionedTable)
    if not _by_range(layout) and getattr(layout, "timePartitioning", None) is None:
        raise BigQueryError("invalid", f"Table {names.label(*reference)} is not partitioned")
    column = quote(_column(layout) or tables.INGESTION_TIME)
    if _by_range(layout):
        bounds = layout.rangePartitioning.range
        return f"{column} - ({column} - {int(bounds.start)}) % {int(bounds.interval)} = {int(table_id.partition_id)}"
    if len(table_id.partition_id) not in TIME_UNITS:
        raise BigQueryError("invalid", f'Invalid time partition "{table_id.partition_id}"')
    unit, format_ = TIME_UNITS[len(table_id.partition_id)]
    return f"date_trunc('{unit}', CAST({column} AS TIMESTAMP)) = strptime('{table_id.partition_id}', '{format_}')"


def _refuse_foreign_rows(cursor: Any, rows: str, predicate: str, reference: tuple[str, str, str]) -> None:
    if cursor.execute(f"SELECT 1 FROM ({rows}) WHERE NOT coalesce({predicate}, false) LIMIT 1").fetchone():
        table_id = reference[2]
        assert isinstance(table_id, PartitionedTable)
        raise BigQueryError(
            "invalid",
            f"Some rows belong to different partitions rather than destination partition "
            f"{names.label(*reference)}${table_id.partition_id}",
        )


@contextlib.contextmanager
def _transaction(cursor: Any) -> Iterator[None]:
    cursor.begin()
    try:
        yield
        cursor.commit()
    except BaseException:
        cursor.rollback()
        raise
