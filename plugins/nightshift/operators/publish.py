"""The fifth task: replaces the partition by the new run in one step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nightshift.fields.text import n
from nightshift.operators.bigquery_jobs import deferred, finished_jobs, finished_soon
from nightshift.operators.failures import Entry, NightFailed
from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.operators.lineage.facets import Lineage
    from nightshift.run.manifest import RunManifest
    from nightshift.run.plan import ExportedSource
    from nightshift.warehouse.dead_letters import Prompts


ASKED_AT_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan')['asked_at'] }}"


class PublishOperator(RunOperator):
    """
    Loads exactly the run manifest's objects into a staging table, then replaces the partition in one transaction.

    A repeat gives the same tables, so a published run may be published again. It refuses a run that was requested earlier than
    the one that the partition shows, a redo of a run that the partition no longer shows, and a run whose chunks have changed
    since the seal. Deferred while BigQuery works. Its outlet is the table: the asset's event has partition, run
    and counts.

    :param asked_at: when the run was asked for, ISO 8601 (templated); by default, or if empty, when it was opened.
    """

    template_fields: Sequence[str] = (*RunOperator.template_fields, "asked_at")

    def __init__(self, *, asked_at: str = ASKED_AT_OF_PLAN, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asked_at = asked_at

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.run.sealed_objects import check_whole

        self.keep_lineage()
        with permanent_failures():
            check_whole(self.store, self.run, self.manifest)
            jobs = self.warehouse.start_staging(
                self.spec, self.run, self.manifest, self.source, asked_at=self._asked_at, prompts=self.prompts
            )
            self.log.info("BigQuery jobs %s load the ledger's chunks into a staging table", ", ".join(jobs) or "(none)")
            event = finished_soon(self.warehouse, jobs)
        if event is None:
            raise deferred(jobs, method_name="replace_partition")
        return self.replace_partition(context, event)

    def replace_partition(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when everything is staged."""
        from nightshift.run.sealed_objects import check_whole

        self.keep_lineage()
        finished_jobs(event)
        with permanent_failures():
            check_whole(self.store, self.run, self.manifest)
            job = self.warehouse.start_publish(
                self.spec,
                self.run,
                self.manifest,
                self.source,
                asked_at=self._asked_at,
                completes=self.completes(self._asked_at),
                prompts=self.prompts,
            )
            self.log.info("BigQuery job %s replaces partition %s of %s", job, self.run.partition, self.spec.destination.table)
            published = finished_soon(self.warehouse, [job])
        if published is None:
            raise deferred([job], method_name="verify")
        return self.verify(context, published)

    def verify(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the transaction is done: counts what the destination shows, then drops the staging table.

        The publication is recorded in the run's folder, too (`nightshift.run.observed.shown`).
        """
        from nightshift.run.observed import endings

        self.keep_lineage()
        try:
            finished_jobs(event)
        except NightFailed:
            # The transaction refuses the run, but cannot name what is in the way.
            with permanent_failures():
                self.warehouse.check_may_replace(self.spec, self.run, self._asked_at, self.completes(self._asked_at))
            raise
        with permanent_failures():
            counts = self.warehouse.finish_publish(self.spec, self.run, self.manifest, self.source, asked_at=self._asked_at)
        # Before the audit, which may fail: the table shows the run from now on.
        by = context["dag_run"].run_id
        ending = endings.Ending.of_publication(self.manifest, counts["published_at"], by, self._asked_at)
        endings.record(self.store, self.run, ending)
        shown = f"{n(counts['predictions'], 'prediction')} and has {n(counts['dead_letters'], 'dead letter')}"
        self.tell(f"Partition {counts['partition']} of {counts['table']} shows {shown}")
        for asset in self.outlets:
            context["outlet_events"][asset].extra = {"run_id": self.run.run_id, **counts}
        return counts

    def lineage(self, **counts: Any) -> Lineage:
        from nightshift.operators.lineage.facets import publish_lineage

        return publish_lineage(self.spec, self.run, self.settings, self.manifest)

    @property
    def _asked_at(self) -> str:
        return self.asked_at or self.record.opened_at

    @cached_property
    def manifest(self) -> RunManifest:
        """With those of the runs that it completes. Read once: it never changes."""
        from nightshift.run.manifest import load_manifest
        from nightshift.run.sealed_objects import check_follows, whole

        manifest = load_manifest(self.store, self.run)
        if manifest is None:
            raise NightFailed(f"{self.run.prefix} is not sealed. Repeat the task 'seal' first.", Entry.EARLIER_TASK)
        check_follows(self.run, manifest, self.plan)
        return whole(self.store, self.run, manifest, self.redo)

    @cached_property
    def prompts(self) -> Prompts | None:
        """What its dead letters were asked."""
        from nightshift.operators.dead_letters import prompts_of

        return prompts_of(self.store, self.run, self.manifest.merkle_root) if self.manifest.dead_letters else None

    @cached_property
    def source(self) -> ExportedSource:
        """What the run's plan recorded."""
        return self.plan.exported
