"""A table's ``numRows`` is exact.

local-bigquery uses DuckDB's estimate, which for a DuckLake table still counts deleted rows.
"""

from __future__ import annotations

from typing import Any

from local_bigquery.catalog import tables
from local_bigquery.engine import database

_load = tables.load


def install() -> None:
    tables.load = load


def load(project_id: str, dataset_id: str, table_id: str) -> Any:
    table = _load(project_id, dataset_id, table_id)
    if table.type != "TABLE" or not tables.fields(table):  # a table without columns is only a record
        return table
    ((count,),) = database.fetch(f"SELECT count(*) FROM {tables.name(project_id, dataset_id, table_id)}")
    size = str(tables.logical_bytes(count, len(tables.fields(table))))
    return table.replace(numRows=str(count), numBytes=size, numTotalLogicalBytes=size, numActiveLogicalBytes=size)
