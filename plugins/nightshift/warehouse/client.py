"""The warehouse as nightshift uses it: every step of a run, safe to repeat at any moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from nightshift.fields.text import n
from nightshift.run.names import RunRef
from nightshift.warehouse import audit, dead_letters, ordered, publications, publish, query, schema
from nightshift.warehouse.errors import WarehouseError, translated
from nightshift.warehouse.failed_nights import FailedNights
from nightshift.warehouse.jobs import CALL_TIMEOUT_S, Jobs, JobState, bounded_retry, job_id
from nightshift.warehouse.keys import Keys
from nightshift.warehouse.samples import dry_run
from nightshift.warehouse.statements import Statements
from nightshift.warehouse.tables import Tables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client, Row

    from nightshift.run.manifest import RunManifest
    from nightshift.run.order import Counts, Order
    from nightshift.run.plan import ExportedSource
    from nightshift.run.redo.redo import Redo
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec
    from nightshift.warehouse.dead_letters import Prompts


class Warehouse:
    """BigQuery for one deployment.

    Long steps are started here and waited for elsewhere: ``start_...`` returns job ids, `job` returns their state. Every
    method may raise WarehouseUnavailable (a repeat is safe) and WarehouseError (someone must act).
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.jobs = Jobs(client, settings)
        self._statements = Statements(client, settings)
        self._tables = Tables(client, settings)
        self.failed_nights = FailedNights(client, settings)
        self.keys = Keys(self._statements)

    def read_source(self, spec: JobSpec, partition: str) -> ExportedSource:
        """The query's columns, their types and its tables, from a dry run: nothing is read or billed.

        Raises WarehouseError for SQL that BigQuery rejects and for a key or template column that the query lacks.
        """
        from nightshift.run.plan import ExportedSource

        job = dry_run(self._statements, spec, partition)
        tables = {f"{table.project}.{table.dataset_id}.{table.table_id}" for table in job.referenced_tables}
        return ExportedSource(query.check_columns(spec, job.schema or ()), tuple(sorted(tables)))

    def check_query(self, spec: JobSpec, partition: str) -> ExportedSource:
        """As `read_source`. Raises WarehouseError also for a destination that cannot take the predictions."""
        source = self.read_source(spec, partition)
        self.check_destination(spec, source)
        return source

    def check_may_replace(self, spec: JobSpec, run: RunRef, asked_at: str, completes: Redo | None = None) -> None:
        """Raises WarehouseError if the run may not replace what its partition shows, as `obstacle` says."""
        if problem := self.obstacle(spec, run, asked_at, completes):
            raise WarehouseError(problem)

    def obstacle(self, spec: JobSpec, run: RunRef, asked_at: str, completes: Redo | None = None) -> str | None:
        """Why the run may not replace what its partition shows (`nightshift.warehouse.publications`); None if it may.

        asked_at: when the run was asked for, ISO 8601. completes: what the run is, if it is a redo and no user asks for it
        again. The transaction asks too, but cannot name what is in the way.
        """
        table = schema.destination_table(spec, self._settings)
        if self._tables.find(table) is None:
            return None
        self._tables.ensure_own()
        found = self._statements.rows(
            f"Partition {run.partition} of {table}",
            publications.obstacles(spec, self._settings),
            publications.parameters(spec, run, self._settings, asked_at, completes),
        )
        return publications.describe(spec, run, self._settings, asked_at, [dict(row) for row in found], completes)

    def shown_run(self, spec: JobSpec, run: RunRef) -> str | None:
        """The id of the run that a partition shows: the one that this job of this deployment published there last.

        run: any of the partition. None if there is none.
        """
        if self._tables.find(schema.destination_table(spec, self._settings)) is None:
            return None
        found = self._known(f"The run that partition {run.partition} shows", publications.latest(self._settings), spec, run)
        return str(found[0][0]) if found else None

    def has_published(self, spec: JobSpec, run: RunRef) -> bool:
        """Whether this job of this deployment has published the run in the destination that it has now."""
        return bool(self._known(f"Run {run.run_id}", publications.has_published(self._settings), spec, run)[0][0])

    def asked_last(self, spec: JobSpec, run: RunRef) -> datetime | None:
        """When the run of the partition was asked for that was asked for last; None if none was published. run: any of it."""
        what = f"The publications of partition {run.partition}"
        asked: datetime | None = self._known(what, publications.asked_last(self._settings), spec, run)[0][0]
        return asked

    def _known(self, what: str, sql: str, spec: JobSpec, run: RunRef) -> list[Row]:
        """A statement about what is known of the publications of the run's partition."""
        self._tables.ensure_own()
        parameters = publications.parameters(spec, run, self._settings, datetime.now(UTC).isoformat())
        return self._statements.rows(what, sql, parameters)

    def count_rows(self, spec: JobSpec, partition: str) -> int:
        """How many rows the query has now. The export may find others; the plan counts what it exported."""
        what, parameters = f"The rows of job {spec.job}", query.parameters(spec, partition)
        rows = self._statements.rows(what, query.count_statement(spec), parameters)
        return int(rows[0][0])

    def count_prefixes(self, spec: JobSpec, partition: str, columns: Sequence[str]) -> Counts:
        """As `count_rows`, and in the same statement the values of each leading part of some columns."""
        from nightshift.run.order import Counts

        what, parameters = f"The rows of job {spec.job}", query.parameters(spec, partition)
        (row,) = self._statements.rows(what, ordered.prefix_counts(spec, columns), parameters)
        rows, *found = (int(value or 0) for value in dict(row).values())
        return Counts(rows, tuple(columns), tuple(found[::2]), tuple(found[1::2]))

    def sample_rows(self, spec: JobSpec, partition: str, columns: Sequence[str], rows: int) -> list[dict[str, Any]]:
        """Some of the query's rows, with these columns; for estimates only."""
        sql, parameters = query.sample_statement(spec, columns, rows), query.parameters(spec, partition)
        return [dict(row) for row in self._statements.rows(f"A sample of job {spec.job}", sql, parameters)]

    def start_extract(
        self,
        spec: JobSpec,
        run: RunRef,
        *,
        into: Callable[[int], str] | None = None,
        holds: Callable[[int], bool] | None = None,
        order: Order | None = None,
    ) -> str:
        """Starts the export of the query and returns its job id. Only for a run without a plan.

        into: the files of an attempt, a path with one ``*``; by default `RunRef.export_pattern`.
        order: of the rows, unless BigQuery refuses to export them so, or an attempt has failed: then they are not sorted. A job
        that was started before keeps the order that it has (`JobState.order`).
        holds: whether the files of this attempt still exist. If not, because the run's folder was deleted or the bucket
        changed, the query is exported again: BigQuery may remember a job longer than the bucket keeps its objects.
        """
        from google.api_core.exceptions import BadRequest

        def start(job_id: str, attempt: int) -> None:
            bucket = self._settings.bucket
            submit = partial(self._statements.submit, parameters=query.parameters(spec, run.partition), job_id=job_id)
            if order is not None and order.buckets and not self._failed_in_order(run, attempt):
                types = self.read_source(spec, run.partition).columns
                with suppress(BadRequest):  # What is wrong with the query itself, the plain export says.
                    submit(ordered.ordered_export(spec, bucket, partial(run.export_pattern, attempt), order, types))
                    return
            submit(query.plain_export(spec, bucket, (into or run.export_pattern)(attempt)))

        return self.jobs.find_or_start(run, "extract", start, holds=holds)

    def _failed_in_order(self, run: RunRef, attempts: int) -> bool:
        """Whether one of the export's first attempts failed as an export in an order."""
        names = (job_id(self._settings.deployment, run, "extract", number) for number in range(attempts))
        return any(self.jobs.state(name).cannot_be_ordered for name in names)

    def start_staging(
        self,
        spec: JobSpec,
        run: RunRef,
        manifest: RunManifest,
        source: ExportedSource,
        *,
        asked_at: str,
        prompts: Prompts | None = None,
    ) -> list[str]:
        """Starts loading exactly the run manifest's chunks into the run's staging tables; one job for each 10,000 chunks.

        Returns the job ids: none for a run without rows, and none for a run that is published already, as asked for then.
        asked_at: when the run was asked for, ISO 8601. prompts: of its dead letters, if there are some.
        """
        self._tables.ensure_own()
        if self.jobs.succeeded(run, _publish_step(manifest, asked_at)) is not None and self._shows(spec, run, manifest):
            return []
        fields = schema.staging_fields(spec, source.columns)
        started = []
        rows_of = {
            f"gs://{self._settings.bucket}/{chunk.path}": chunk.rows
            for part in publish.parts(run, manifest, self._settings)
            for chunk in part.manifest.chunks
        }
        for number, (name, uris) in enumerate(publish.staging_tables(run, manifest, self._settings)):
            if not uris:
                if (found := self._tables.find(name)) is not None and found.num_rows:
                    # From an earlier opening of a run that was computed again: nothing is loaded over its rows.
                    self._tables.drop_staging(name)
                with translated(f"Staging table {name}"):
                    self._tables.create_staging(name, fields)
                continue
            rows = sum(rows_of[uri] for uri in uris)
            started.append(self._tables.stage(run, _step(f"stage{number}", manifest), name, fields, uris, rows=rows))
        if prompts:
            name, uri = dead_letters.prompts_table(run, self._settings), f"gs://{self._settings.bucket}/{prompts.path}"
            fields = schema.scalar_fields(dead_letters.PROMPT_FIELDS)
            started.append(self._tables.stage(run, _step("prompts", manifest), name, fields, [uri], rows=prompts.rows))
        return started

    def start_publish(
        self,
        spec: JobSpec,
        run: RunRef,
        manifest: RunManifest,
        source: ExportedSource,
        *,
        asked_at: str,
        completes: Redo | None = None,
        prompts: Prompts | None = None,
    ) -> str:
        """Starts the transaction that replaces the partition with the staged run; returns its job id.

        asked_at, completes: as in `obstacle`. prompts: as staged. The transaction fails if the partition shows another job's
        rows, a run that was asked for later, or if it shows another run by now than the one that a redo completes.
        """
        self.check_destination(spec, source)
        own, *earlier = publish.parts(run, manifest, self._settings)
        staging = [name for name, _ in own.tables]
        parameters = publish.publish_parameters(
            spec, run, manifest, self._settings, asked_at, completes, prompts.rows if prompts else 0
        )

        def start(job_id: str, attempt: int) -> None:
            self._tables.ensure_own()
            self._tables.create_unless_there(schema.destination(spec, source.columns, self._settings))
            stale, dead = self._has_dead_letters(run), manifest.dead_letters > 0
            rendered = dead_letters.prompts_table(run, self._settings) if prompts else None
            script = publish.publish_script(
                spec, staging, self._settings, dead=dead, stale=stale, earlier=earlier, prompts=rendered
            )
            self._statements.submit(script, parameters, job_id=job_id)

        return self.jobs.find_or_start(
            run, _publish_step(manifest, asked_at), start, holds=lambda _: self._shows(spec, run, manifest)
        )

    def job(self, job_id: str) -> JobState:
        """The state of a job. Raises only WarehouseUnavailable, or WarehouseError if reading jobs is not allowed."""
        return self.jobs.state(job_id)

    def finish_publish(
        self, spec: JobSpec, run: RunRef, manifest: RunManifest, source: ExportedSource, *, asked_at: str
    ) -> dict[str, Any]:
        """Counts what destination and dead letter table show, then drops the staging tables.

        Returns table, partition, source_tables, job_id, published_at (ISO 8601, the end of the transaction), and of the whole
        partition, earlier runs that this one completes included: rows, predictions, dead_letters. Raises WarehouseError when
        the partition does not show exactly this run.
        """
        job = self.jobs.succeeded(run, _publish_step(manifest, asked_at))
        table, shown = schema.destination_table(spec, self._settings), manifest.totals
        if job is None or not self._shows(spec, run, manifest):
            raise WarehouseError(
                f"Partition {run.partition} of {table} does not show run {run.run_id} with "
                f"{n(shown.predictions, 'prediction')}. Another run was published in between, or someone changed the table. "
                "Repeat the task 'publish' to show it."
            )
        for name, _ in publish.staging_tables(run, manifest, self._settings):
            self._tables.drop_staging(name)
        self._tables.drop_staging(dead_letters.prompts_table(run, self._settings))
        for run_id in (run.run_id, *(each.run_id for each in manifest.completes)):
            self.failed_nights.remove_published(RunRef.from_prefix(f"{run.job}/{run.partition}/{run_id}"))
        return {
            "table": table,
            "partition": run.partition,
            **shown._asdict(),
            "source_tables": list(source.tables),
            "job_id": job.job_id,
            "published_at": job.ended.astimezone(UTC).isoformat(),
        }

    def record_audit(self, row: Mapping[str, Any]) -> None:
        """Adds an audit row (`nightshift.warehouse.audit`: `audit_row`, `failure_row`); a repeat changes nothing."""
        parameters = audit.audit_parameters({**row, "bucket": self._settings.bucket})
        self._tables.ensure_own()
        what = f"The audit row of run {row.get('run_id') or row['by_dag_run_id']}"
        self._statements.rows(what, audit.insert(self._settings, audit.state_of(row)), parameters)

    def audited(self, since: str, job: str | None = None) -> list[dict[str, Any]]:
        """Rows of the audit table, of partitions from a day on (YYYY-MM-DD); none if there is no table."""
        of_job = [] if job is None else [("job", "STRING", job)]
        parameters = schema.scalar_parameters(("since", "DATE", since), *of_job)
        sql = audit.selection(self._settings, of_job=job is not None)
        return [dict(row) for row in self._statements.rows_if_there("The audit table", sql, parameters) or ()]

    def bytes_billed(self, run: RunRef, manifest: RunManifest | None = None, asked_at: str | None = None) -> int | None:
        """By BigQuery for the run's export, and for its publication, if manifest and asked_at are said; load jobs are free.

        None if no job has it.
        """
        steps = ["extract"]
        if manifest is not None and asked_at is not None:
            steps.append(_publish_step(manifest, asked_at))
        billed = [each for step in steps for each in self.jobs.billed(run, step)]
        return sum(billed) if billed else None

    @property
    def bytes_asked(self) -> int | None:
        """Billed for the statements that were waited for here, so far; None if no job has it."""
        return self._statements.billed

    def check_destination(self, spec: JobSpec, source: ExportedSource) -> None:
        """Raises WarehouseError for a destination that the query reads, or that cannot take the predictions.

        The table may be missing, because publish creates it; its dataset may not. If it is there, a DELETE and an INSERT of no
        rows are tried by dry runs, which are free: a right that is missing, or a table that takes no DML, is found now and not
        behind the accelerators.
        """
        from google.api_core.exceptions import NotFound

        name = schema.destination_table(spec, self._settings)
        if name in source.tables:
            raise WarehouseError(
                f"The destination {name} is a table that source.query reads, itself or through a view: publishing would "
                "replace the rows that the query needs. Write another destination.table."
            )
        with translated(f"The destination {name}"):
            try:
                table = self._client.get_table(name, retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
            except NotFound:
                dataset = self._client.get_dataset(name.rpartition(".")[0], retry=bounded_retry(), timeout=CALL_TIMEOUT_S)
                self._check_location(name, dataset.location)
                return
        self._check_location(name, table.location)
        from nightshift.spec.columns import REASONING

        destination = spec.destination
        fields = schema.destination_fields(spec, source.columns)
        schema.check_compatible(table, fields, (destination.column, REASONING), destination.partition_column)
        for statement in publish.trials(spec, self._settings, [field.name for field in fields]):
            with translated(f"The destination {name} cannot be published to (a dry run of {statement.partition(' ')[0]})"):
                self._statements.submit(statement, [], dry_run=True)

    def _check_location(self, destination: str, location: str | None) -> None:
        """One BigQuery job reads and writes in one location. Better to refuse before the night than at its end."""
        if location and location.upper() != self._settings.location.upper():
            raise WarehouseError(
                f"The destination {destination} is in {location}, but jobs run in {self._settings.location} "
                "(NIGHTSHIFT_LOCATION). Write a destination in that location."
            )

    def _shows(self, spec: JobSpec, run: RunRef, manifest: RunManifest) -> bool:
        """Whether destination and dead letter table show exactly this run's rows for the partition."""
        found = self._statements.rows_if_there(
            f"Partition {run.partition} of {spec.destination.table}",
            publish.count_statement(spec, self._settings, len(manifest.earlier)),
            publish.count_parameters(run, self._settings, manifest),
        )
        if found is None:
            return False
        (counts,) = found
        dead, earlier = manifest.dead_letters, [each.predictions for each in manifest.earlier]
        shown = manifest.totals.predictions
        return bool(tuple(counts) == (shown, manifest.predictions, dead, dead, *earlier))

    def _has_dead_letters(self, run: RunRef) -> bool:
        """Whether the dead letter table has rows of the job for the partition."""
        counted = f"SELECT COUNT(*) FROM {dead_letters.of_partition(self._settings)}"
        parameters = publish.count_parameters(run, self._settings)
        return bool(self._statements.rows("The dead letters of the partition", counted, parameters)[0][0])


def _step(name: str, manifest: RunManifest) -> str:
    """A step that works on the contents of a manifest. A run that was computed again after its folder was deleted has different
    contents under the same run id; BigQuery's jobs for the first ones must not count for the new ones."""
    return f"{manifest.merkle_root[:8]}-{name}"


def _publish_step(manifest: RunManifest, asked_at: str) -> str:
    """A run that a person asks for again has another job: that of the first request may be at work, and be refused."""
    asked = datetime.fromisoformat(asked_at).astimezone(UTC).strftime("%Y%m%dT%H%M%S%f")
    return _step(f"{asked}-publish", manifest)
