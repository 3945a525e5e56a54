"""Clients that create, change and delete one table at once get the answers that they would get one after the other.

local-bigquery looks whether the table is there and then changes it, in statements of their own. Two clients that do so at once
make DuckDB fail ("Conflict on tuple deletion", "this table has been created by another transaction already"), which BigQuery
never says: there the second one to create a table gets 409, the second one to delete it 404. Here each waits for its turn:

- a change of one table through the API, also behind jobs that write it;
- each statement that changes the emulator's own records, of tables, jobs and policies.

DDL in queries waits for no turn: `transactions` tries it again when it was overtaken.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

from local_bigquery.catalog import iam, metadata, tables
from local_bigquery.engine import database
from local_bigquery.jobs import store

_records: Final = threading.Lock()


def install() -> None:
    metadata.execute = iam.execute = store.execute = change_records
    tables.update = in_turn(tables.update)
    tables.delete = in_turn(tables.delete)
    tables.create = create_in_turn(tables.create)


def change_records(sql: str, parameters: list[Any] | None = None) -> None:
    with _records:
        database.execute(sql, parameters)


def in_turn(change: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose first arguments name a table: project, dataset, table."""

    @functools.wraps(change)
    def changed(project_id: str, dataset_id: str, table_id: str, *arguments: Any) -> Any:
        # The lock under which jobs write the table.
        with database.writing(project_id, dataset_id, table_id):
            return change(project_id, dataset_id, table_id, *arguments)

    return changed


def create_in_turn(create: Callable[..., Any]) -> Callable[..., Any]:
    """local-bigquery's creation of a table, whose name is in the body."""

    @functools.wraps(create)
    def created(project_id: str, dataset_id: str, body: Any, translate: Any) -> Any:
        name = body.tableReference and body.tableReference.tableId
        with database.writing(project_id, dataset_id, name or ""):
            return create(project_id, dataset_id, body, translate)

    return created
