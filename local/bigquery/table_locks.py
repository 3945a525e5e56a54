"""Clients that create, change and delete one table at once get the answers that they would get one after the other.

local-bigquery checks whether the table is there and then changes it, in statements of their own. Two clients that do so at once
make DuckDB fail ("Conflict on tuple deletion", "this table has been created by another transaction already"), which BigQuery
never does: there the second one to create a table gets 409, the second one to delete it 404. Here a lock lets one go at a time:

- a change of one table through the API, also behind jobs that write it, and a read of a table behind such changes:
  local-bigquery creates a table first and records its partitioning, labels and description then;
- each statement that changes the emulator's own records, of tables, jobs and policies.

DDL in queries waits for no lock: `transactions` tries it again when it was overtaken.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from local_bigquery.catalog import iam, metadata, tables
from local_bigquery.engine import database
from local_bigquery.jobs import store

_create, _update, _delete, _get = tables.create, tables.update, tables.delete, tables.get
_records: Final = threading.Lock()
_changing: Final = threading.RLock()
"""Held for one change of a table through the API, or one read of it. No thread that holds it waits for `database.writing`.
A change ends with a read of the table, hence an RLock."""


def install() -> None:
    tables.create, tables.update, tables.delete, tables.get = create, update, delete, get
    metadata.execute = iam.execute = store.execute = change_records


# `database.writing` is the lock under which jobs write a table.


def create(project_id: str, dataset_id: str, body: Any, translate: Any) -> Any:
    """Creates a table as local-bigquery does, which refuses a body without a table's name."""
    table_id = (body.tableReference and body.tableReference.tableId) or ""
    with database.writing(project_id, dataset_id, table_id), _changing:
        return _create(project_id, dataset_id, body, translate)


def update(project_id: str, dataset_id: str, table_id: str, *arguments: Any) -> Any:
    with database.writing(project_id, dataset_id, table_id), _changing:
        return _update(project_id, dataset_id, table_id, *arguments)


def delete(project_id: str, dataset_id: str, table_id: str) -> None:
    with database.writing(project_id, dataset_id, table_id), _changing:
        _delete(project_id, dataset_id, table_id)


def get(*arguments: Any) -> Any:
    with _changing:
        return _get(*arguments)


def change_records(sql: str, parameters: list[Any] | None = None) -> None:
    """local-bigquery's `database.execute`, for statements that change its records."""
    with _records:
        database.execute(sql, parameters)
