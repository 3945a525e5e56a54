"""Tries out what nightshift needs of BigQuery, for the doctor: nothing is left behind.

BigQuery has ``testIamPermissions`` for tables and none for datasets, and its answers may be wrong ("may fail open", reference
of tables.testIamPermissions). So a dry run shows the right to run jobs, and a small table, made and dropped, the rights in a
dataset.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from nightshift.warehouse.errors import translated
from nightshift.warehouse.jobs import CALL_TIMEOUT_S, bounded_retry
from nightshift.warehouse.statements import Statements

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

    from nightshift.settings import Settings

TABLE_LIFE: Final = timedelta(hours=1)
"""After this time BigQuery drops the table of a doctor that was killed."""
TABLE_PREFIX: Final = "doctor_"


class Trial:
    """For one deployment. Every method may raise WarehouseUnavailable and WarehouseError."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._statements = Statements(client, settings)

    def location(self, dataset: str) -> str | None:
        """The location of a dataset (``project.dataset``); None if there is no such dataset."""
        from google.api_core.exceptions import NotFound

        with translated(f"Dataset {dataset}"):
            try:
                return str(self._client.get_dataset(dataset, retry=bounded_retry(), timeout=CALL_TIMEOUT_S).location)
            except NotFound:
                return None

    def run_job(self) -> None:
        """A dry run, which needs ``bigquery.jobs.create`` as any job does, reads nothing and costs nothing."""
        with translated("A dry run"):
            self._statements.submit("SELECT 1", [], dry_run=True)

    def steps(self, dataset: str) -> Iterator[tuple[str, Callable[[], None]]]:
        """(permission, what needs it) on a table of its own in ``project.dataset``. The caller makes each step, in order.

        The last step drops the table, and has to be made whatever became of the others but the first.
        """
        name = f"{dataset}.{TABLE_PREFIX}{uuid.uuid4().hex[:12]}"
        yield "bigquery.tables.create", lambda: self._create(name)
        yield "bigquery.tables.updateData", lambda: self._run(f"INSERT INTO `{name}` (asked) VALUES (1)")
        yield "bigquery.tables.getData", lambda: self._run(f"SELECT asked FROM `{name}`")
        yield "bigquery.tables.delete", lambda: self._drop(name)

    def _create(self, name: str) -> None:
        from google.cloud.bigquery import SchemaField, Table

        table = Table(name, [SchemaField("asked", "INT64")])
        table.expires = datetime.now(UTC) + TABLE_LIFE
        with translated(f"Table {name}"):
            self._client.create_table(table, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)

    def _run(self, sql: str) -> None:
        self._statements.rows(sql, sql, [])

    def _drop(self, name: str) -> None:
        with translated(f"Table {name}"):
            self._client.delete_table(name, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
