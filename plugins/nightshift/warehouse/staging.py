"""Objects of the bucket, loaded into staging tables by jobs that a repeat finds again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nightshift.warehouse.jobs import Jobs
from nightshift.warehouse.schema import quoted
from nightshift.warehouse.statements import Statements
from nightshift.warehouse.tables import Tables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

    from nightshift.run.names import RunRef
    from nightshift.settings import Settings


class Staging:
    """Load jobs of one deployment. Every method may raise WarehouseUnavailable and WarehouseError."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._jobs = Jobs(client, settings)
        self._statements = Statements(client, settings)
        self._tables = Tables(client, settings)

    def start(self, run: RunRef, step: str, table: str, fields: Sequence[Any], uris: Sequence[str], *, rows: int) -> str:
        """The id of the job that loads Parquet files into the table (``project.dataset.table``), in place of what it holds.

        rows: how many rows these are. A table that has others by now is loaded again.
        """

        def start(job_id: str, attempt: int) -> None:
            self._tables.load(table, fields, uris, job_id=job_id)

        def holds(_attempt: int) -> bool:
            # Another try of this task may publish the run, and drop the table, at any moment.
            found = self._statements.rows_if_there(f"Staging table {table}", f"SELECT COUNT(*) FROM {quoted(table)}", [])
            return found is not None and found[0][0] == rows

        return self._jobs.find_or_start(run, step, start, holds=holds)
