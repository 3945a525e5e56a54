"""Statements that are asked of BigQuery at once, and those that a job of ours runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from nightshift.warehouse.errors import WarehouseError, translated
from nightshift.warehouse.jobs import CALL_TIMEOUT_S, bounded_retry, bytes_billed

if TYPE_CHECKING:
    import pyarrow as pa
    from google.cloud.bigquery import ArrayQueryParameter, Client, QueryJob, Row, ScalarQueryParameter

    Parameters = Sequence[ArrayQueryParameter | ScalarQueryParameter]

    from nightshift.settings import Settings

STATEMENT_TIMEOUT_S: Final = 600.0
"""For the few short statements that are waited for."""


class Statements:
    """Statements in the deployment's project and location."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.billed: int | None = None
        """Bytes, of the statements that were waited for; None if none of them has it."""

    def submit(self, sql: str, parameters: Parameters, *, job_id: str | None = None, dry_run: bool = False) -> QueryJob:
        from google.cloud.bigquery import QueryJobConfig

        return self._client.query(
            sql,
            # Counts must come from the tables, not from a cached answer.
            job_config=QueryJobConfig(query_parameters=list(parameters), dry_run=dry_run, use_query_cache=False),
            job_id=job_id,
            project=self._settings.project,
            location=self._settings.location,
            retry=bounded_retry(),
            timeout=CALL_TIMEOUT_S,
            job_retry=None,
        )

    def rows(self, what: str, sql: str, parameters: Parameters) -> list[Row]:
        """Runs a short statement and waits for its rows. Only for statements that may run twice."""
        with translated(what):
            job = self.submit(sql, parameters)
            rows = list(job.result(timeout=STATEMENT_TIMEOUT_S, retry=bounded_retry()))
        self._note_billed(job)
        return rows

    def table(self, what: str, sql: str, parameters: Parameters) -> pa.Table:
        """The same as one table in memory; only for a few rows."""
        with translated(what):
            job = self.submit(sql, parameters)
            result = job.result(timeout=STATEMENT_TIMEOUT_S, retry=bounded_retry())
            table = result.to_arrow(create_bqstorage_client=False)
        self._note_billed(job)
        return table

    def _note_billed(self, job: QueryJob) -> None:
        if (billed := bytes_billed(job)) is not None:
            self.billed = (self.billed or 0) + billed

    def rows_if_there(self, what: str, sql: str, parameters: Parameters) -> list[Row] | None:
        """The same; None if a table of the statement does not exist."""
        from google.api_core.exceptions import NotFound

        try:
            return self.rows(what, sql, parameters)
        except WarehouseError as error:
            if isinstance(error.__cause__, NotFound):
                return None
            raise
