"""The tables that a publication needs: found, created, loaded and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nightshift.warehouse import publish, schema
from nightshift.warehouse.errors import WarehouseError, WarehouseUnavailable, translated
from nightshift.warehouse.jobs import CALL_TIMEOUT_S, Jobs, bounded_retry
from nightshift.warehouse.statements import Statements

if TYPE_CHECKING:
    from google.cloud.bigquery import Client, Table

    from nightshift.run.names import RunRef
    from nightshift.settings import Settings

STAGING_LIFE: Final = timedelta(days=7)
"""After this time BigQuery drops the staging table of an abandoned run."""


class Tables:
    """Tables by name (``project.dataset.table``). Every method may raise WarehouseUnavailable and WarehouseError."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._jobs = Jobs(client, settings)
        self._statements = Statements(client, settings)
        self._own_are_there = False

    def create_staging(self, name: str, fields: Sequence[Any]) -> None:
        from google.api_core.exceptions import NotFound
        from google.cloud.bigquery import Table

        staging = Table(name, fields)
        staging.expires = datetime.now(UTC) + STAGING_LIFE
        try:
            self._client.create_table(staging, exists_ok=True, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
        except NotFound as error:
            # It existed, and another try of this task dropped it before the client could look at it.
            raise WarehouseUnavailable(f"Staging table {name}: {error.message}") from error

    def stage(self, run: RunRef, step: str, name: str, fields: Sequence[Any], uris: Sequence[str], *, rows: int) -> str:
        """The id of the job that loads Parquet files into a staging table, in place of what it holds; a repeat finds the same.

        rows: how many rows these are. A table that has others by now is loaded again.
        """

        def start(job_id: str, attempt: int) -> None:
            self.load(name, fields, uris, job_id=job_id)

        def holds(_attempt: int) -> bool:
            # Another try of this task may publish the run, and drop the table, at any moment.
            counted = f"SELECT COUNT(*) FROM {schema.quoted(name)}"
            found = self._statements.rows_if_there(f"Staging table {name}", counted, [])
            return found is not None and found[0][0] == rows

        return self._jobs.find_or_start(run, step, start, holds=holds)

    def load(self, name: str, fields: Sequence[Any], uris: Sequence[str], *, job_id: str) -> None:
        """Starts to load Parquet files into a staging table, in place of what it holds. Raises google.api_core's errors."""
        from google.cloud.bigquery import LoadJobConfig, ParquetOptions

        # Created first, because a load job cannot set its table's expiration.
        self.create_staging(name, fields)
        options = ParquetOptions()  # type: ignore[no-untyped-call]
        options.enable_list_inference = True
        config = LoadJobConfig(
            source_format="PARQUET", parquet_options=options, schema=fields, write_disposition="WRITE_TRUNCATE"
        )
        self._client.load_table_from_uri(
            uris,
            name,
            job_id=job_id,
            project=self._settings.project,
            location=self._settings.location,
            job_config=config,
            retry=bounded_retry(),
            timeout=CALL_TIMEOUT_S,
        )

    def drop_staging(self, name: str) -> None:
        with translated(f"Staging table {name}"):
            self._client.delete_table(name, not_found_ok=True, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)

    def find(self, name: str) -> Table | None:
        from google.api_core.exceptions import NotFound

        with translated(f"Table {name}"):
            try:
                return self._client.get_table(name, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
            except NotFound:
                return None

    def ensure_own(self) -> None:
        """Creates what is missing of nightshift's own dataset. A table of an earlier release gets the columns that it lacks.

        Looks once: a task makes several steps one after the other.
        """
        if self._own_are_there:
            return
        self._ensure_dataset()
        for wanted in publish.own_tables(self._settings):
            name = str(wanted.reference)
            there = {field.name for field in self.create_unless_there(wanted).schema}
            if lacking := [field for field in wanted.schema if field.name not in there]:
                self._statements.rows(f"Table {name}", schema.add_columns(name, lacking), [])
        self._own_are_there = True

    def create_unless_there(self, wanted: Table) -> Table:
        """The table as it is."""
        name = str(wanted.reference)
        if (found := self.find(name)) is not None:
            return found
        with translated(f"Table {name}"):
            return self._client.create_table(wanted, exists_ok=True, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)

    def _ensure_dataset(self) -> None:
        """Creates nightshift's own dataset unless a platform team has created it. The account may not be allowed to."""
        from google.api_core.exceptions import Forbidden, NotFound
        from google.cloud.bigquery import Dataset

        name = f"{self._settings.project}.{self._settings.dataset}"
        with translated(f"Dataset {name} (NIGHTSHIFT_DATASET)"):
            try:
                self._client.get_dataset(name, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
            except NotFound:
                dataset = Dataset(name)
                dataset.location = self._settings.location
                try:
                    self._client.create_dataset(dataset, exists_ok=True, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
                except Forbidden as error:
                    raise WarehouseError(
                        f"Dataset {name} does not exist, and the connection's account may not create it. Create it in "
                        f"{self._settings.location}, or set NIGHTSHIFT_DATASET to a dataset that exists."
                    ) from error
