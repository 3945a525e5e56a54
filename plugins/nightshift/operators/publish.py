"""The fifth task: the partition shows the new run, all of it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException
from nightshift.operators.run import RunOperator, permanent_failures
from nightshift.operators.waiting import defer_for_jobs, finished_jobs

if TYPE_CHECKING:
    from airflow.sdk import Context
    from nightshift.warehouse import Warehouse


class PublishOperator(RunOperator):
    """
    Loads exactly the manifest's objects into a staging table, then replaces the partition in one transaction.

    A repeat gives the same tables, so a run that is published already may be published again. Deferred while BigQuery
    works. Its outlet is the table: the asset's event says partition, run and counts.
    """

    def execute(self, context: Context) -> None:
        with permanent_failures():
            jobs = self._warehouse().start_staging(self.spec, self.run, self._manifest())
        self.log.info("BigQuery jobs %s load the ledger's chunks into a staging table", ", ".join(jobs) or "(none)")
        defer_for_jobs(self, jobs, method_name="replace_partition")

    def replace_partition(self, context: Context, event: dict[str, Any]) -> None:
        """Continues when everything is staged."""
        finished_jobs(event)
        with permanent_failures():
            job = self._warehouse().start_publish(self.spec, self.run, self.run.partition, self._manifest())
        self.log.info("BigQuery job %s replaces partition %s of %s", job, self.run.partition, self.spec.destination.table)
        defer_for_jobs(self, [job], method_name="verify")

    def verify(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the transaction is done: counts what the destination shows, then drops the staging table."""
        finished_jobs(event)
        with permanent_failures():
            counts = self._warehouse().finish_publish(self.spec, self.run, self.run.partition, self._manifest())
        self.log.info("Published partition %s of %s: %s", self.run.partition, self.spec.destination.table, counts)
        for asset in self.outlets:
            context["outlet_events"][asset].extra = {"partition": self.run.partition, "run_id": self.run.run_id, **counts}
        return counts

    def _manifest(self) -> dict[str, Any]:
        from nightshift.seal import load_manifest

        manifest = load_manifest(self.store, self.run)
        if manifest is None:
            raise AirflowFailException(f"{self.run.prefix} is not sealed. Repeat the task 'seal' first.")
        return manifest

    def _warehouse(self) -> Warehouse:
        from nightshift.hooks.warehouse import warehouse_for

        return warehouse_for(self.settings)
