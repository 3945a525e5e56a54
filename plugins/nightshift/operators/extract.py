"""The second task: the query's rows as Parquet in the run's folder, and the plan that fixes their ordinals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nightshift.operators.run import RunOperator, permanent_failures
from nightshift.operators.waiting import deferred, finished_jobs, finished_soon

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.lineage.facets import Lineage
    from nightshift.run.plan import Plan


class ExtractOperator(RunOperator):
    """
    Exports the query to the run's folder (BigQuery ``EXPORT DATA``), then writes ``plan.json``.

    A run that has a plan is left as it is: its rows never change. Deferred while BigQuery works.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.hooks.warehouse import warehouse_for
        from nightshift.run.plan import load_plan
        from nightshift.warehouse.extract import exported

        with permanent_failures():
            self.keep_lineage()
            plan = load_plan(self.store, self.run)
            if plan is not None:
                self.log.info("%s already has its plan", self.run.prefix)
                return self._summary(plan)
            warehouse = warehouse_for(self.settings)
            job = warehouse.start_extract(self.spec, self.run, holds=lambda: bool(exported(self.store, self.run)))
            self.log.info("BigQuery job %s exports the query to %s/inputs", job, self.run.url(self.settings.bucket))
            event = finished_soon(warehouse, [job])
        if event is None:
            raise deferred([job], method_name="build_plan")
        return self.build_plan(context, event)

    def build_plan(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the export is done: counts the files' rows and fixes the plan."""
        from nightshift.hooks.warehouse import warehouse_for
        from nightshift.warehouse.extract import build_plan

        self.keep_lineage()
        (statistics,) = finished_jobs(event)
        with permanent_failures():
            source = warehouse_for(self.settings).read_source(self.spec, self.run.partition)
            rows, most = statistics.get("exported_rows"), self.settings.workers_max
            plan = build_plan(self.store, self.run, self.spec, source, rows=rows, workers_max=most)
        return self._summary(plan)

    def lineage(self, **counts: Any) -> Lineage:
        from nightshift.lineage.facets import extract_lineage

        return extract_lineage(self.spec, self.run, self.settings, **counts)

    def _summary(self, plan: Plan) -> dict[str, Any]:
        self.keep_lineage(rows=plan.rows)
        self.log.info(
            "%d rows in %d files, %d chunks, %d workers: %s",
            plan.rows,
            len(plan.files),
            plan.chunk_count,
            plan.workers,
            "; ".join(plan.reasons),
        )
        return {"rows": plan.rows, "chunks": plan.chunk_count, "workers": plan.workers}
