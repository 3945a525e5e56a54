"""The dead letters of a night that ended without publishing its run, written into the table of dead letters."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from nightshift.run.names import canonical_json
from nightshift.warehouse import dead_letters, publish, schema
from nightshift.warehouse.dead_letters import Prompts
from nightshift.warehouse.errors import WarehouseUnavailable
from nightshift.warehouse.statements import Statements
from nightshift.warehouse.tables import Tables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

    from nightshift.run.names import RunRef
    from nightshift.run.plan import ExportedSource
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


@dataclass(frozen=True)
class DeadChunks:
    """The committed chunks of a run that have dead letters. chunks: path in the bucket, and rows. prompts: of some of them."""

    chunks: tuple[tuple[str, int], ...]
    prompts: Prompts | None = None

    @cached_property
    def name(self) -> str:
        """The same for the same chunks, for jobs and tables: chunks are never overwritten."""
        named = [*(path for path, _ in self.chunks), self.prompts.path if self.prompts else ""]
        return hashlib.sha256(canonical_json(named)).hexdigest()[:8]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.chunks)


class FailedNights:
    """Of one deployment. All is safe to repeat at any moment, and may raise WarehouseUnavailable and WarehouseError."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._settings = settings
        self._statements = Statements(client, settings)
        self._tables = Tables(client, settings)

    def start(self, spec: JobSpec, run: RunRef, source: ExportedSource, dead: DeadChunks) -> list[str]:
        """Starts loading the chunks into staging tables; returns the job ids: none if there are none."""
        self._tables.ensure_own()
        if not dead.chunks:
            return []
        fields = schema.staging_fields(spec, source.columns)
        started = []
        for number, (table, chunks) in enumerate(self._tables_of(run, dead)):
            uris, rows = [self._uri(path) for path, _ in chunks], sum(rows for _, rows in chunks)
            started.append(self._tables.stage(run, f"failed{dead.name}-stage{number}", table, fields, uris, rows=rows))
        if dead.prompts:
            table, prompts = self._prompts_table(run, dead), dead.prompts
            fields = schema.scalar_fields(dead_letters.PROMPT_FIELDS)
            step = f"failed{dead.name}-prompts"
            started.append(self._tables.stage(run, step, table, fields, [self._uri(prompts.path)], rows=prompts.rows))
        return started

    def keep(self, spec: JobSpec, run: RunRef, dead: DeadChunks) -> int:
        """Replaces what the run has left by what is staged now, and drops the staging tables.

        Nothing is added if the run, or a redo that completes it, has been published: the partition shows what is dead. Returns
        how many rows the table has of the run: those, or its published ones.
        """
        tables = [table for table, _ in self._tables_of(run, dead)]
        prompts = self._prompts_table(run, dead) if dead.prompts and tables else None
        what, parameters = f"The dead letters of run {run.run_id}", publish.count_parameters(run, self._settings)
        shown, failed, published = self._counted(run)
        if not (shown or published) and (tables or failed):
            script = dead_letters.failed_script(spec, self._settings, schema.union(tables) if tables else None, prompts)
            counts = (("rows", "INT64", dead.rows), ("prompts", "INT64", dead.prompts.rows if dead.prompts else 0))
            if self._statements.rows_if_there(what, script, [*parameters, *schema.scalar_parameters(*counts)]) is None:
                raise WarehouseUnavailable(f"{what}: another try of the task has dropped what was staged")
        kept = self.remove_published(run)
        for table in [*tables, *([prompts] if prompts else [])]:
            self._tables.drop_staging(table)
        return kept

    def remove_published(self, run: RunRef) -> int:
        """Removes what a failed night of the run has left, if the run, or a redo that completes it, is published by now.

        The transaction that publishes them and the one that writes failed ones do not see each other's rows. Returns how many
        rows the run has.
        """
        shown, failed, published = self._counted(run)
        if not failed or not (shown or published):
            return shown + failed
        what, parameters = f"The dead letters of run {run.run_id}", publish.count_parameters(run, self._settings)
        self._statements.rows(what, dead_letters.delete_failed(self._settings), parameters)
        return shown

    def _counted(self, run: RunRef) -> tuple[int, int, int]:
        """`nightshift.warehouse.dead_letters.count_of_run`."""
        what, parameters = f"The dead letters of run {run.run_id}", publish.count_parameters(run, self._settings)
        (found,) = self._statements.rows(what, dead_letters.count_of_run(self._settings), parameters)
        return int(found[0]), int(found[1]), int(found[2])

    def _tables_of(self, run: RunRef, dead: DeadChunks) -> list[tuple[str, tuple[tuple[str, int], ...]]]:
        """Staging tables with their chunks, one for each load job."""
        most = publish.URIS_PER_LOAD
        parts = [dead.chunks[start : start + most] for start in range(0, len(dead.chunks), most)]
        stem = f"_failed_{dead.name}"
        return [(schema.staging_table(self._settings, run, f"{stem}_{number}"), part) for number, part in enumerate(parts)]

    def _prompts_table(self, run: RunRef, dead: DeadChunks) -> str:
        return schema.staging_table(self._settings, run, f"_failed_{dead.name}_prompts")

    def _uri(self, path: str) -> str:
        return f"gs://{self._settings.bucket}/{path}"
