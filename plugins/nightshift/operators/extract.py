"""The second task: the query's rows as Parquet in the run's folder, and the plan that fixes their ordinals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nightshift.fields.text import n
from nightshift.operators.bigquery_jobs import deferred, finished_jobs, finished_soon
from nightshift.operators.failures import Entry, NightFailed
from nightshift.operators.run import RunOperator, permanent_failures
from nightshift.run.order import Order

DECISION_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan').get('decision') or '' }}"
"""The path of what the task ``plan`` decided."""

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.operators.lineage.facets import Lineage
    from nightshift.planner.plan import Decision
    from nightshift.run.plan import ExportedSource, Plan
    from nightshift.run.redo.redo import Redo


class ExtractOperator(RunOperator):
    """
    Exports the query to the run's folder (BigQuery ``EXPORT DATA``), then writes ``plan.json``.

    The task ``plan`` decided the number of workers; here that decision is fitted to the exported rows, which may differ from
    the counted ones (`nightshift.planner.plan.fixed`). A run that has a plan keeps it: its rows never change. A redo's rows are
    copied from the run that has left them without an answer, or found by their keys in the query's rows as they are now
    (`nightshift.run.redo.redo`). Deferred while BigQuery works.

    :param decision: path of that decision in the bucket (templated).
    """

    template_fields: Sequence[str] = (*RunOperator.template_fields, "decision")

    def __init__(self, *, decision: str = DECISION_OF_PLAN, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decision = decision

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.operators.redo import take_rows
        from nightshift.run.opening import planned
        from nightshift.run.redo.redo_rows import WRITTEN

        with permanent_failures():
            self.keep_lineage()
            plan = planned(self.store, self.run, self.record)
            if plan is not None:
                self.log.info("%s already has its plan", self.run.prefix)
                return self._summary(plan)
            redo = self.redo
            if redo is not None and not redo.corrected:
                earlier = take_rows(self.store, self.run, redo)
                return self._planned(earlier.exported, redo.left, WRITTEN, earlier.order)
        return self._export(context)

    def _export(self, context: Context) -> dict[str, Any]:
        from nightshift.run.redo import corrected_rows
        from nightshift.warehouse.extract import exported

        redo = self.redo
        with permanent_failures():
            files, into = (corrected_rows.exported, self.run.source_pattern) if redo else (exported, self.run.export_pattern)
            job = self.warehouse.start_extract(
                self.spec,
                self.run,
                into=into,
                holds=lambda attempt: bool(files(self.store, self.run, attempt)),
                # Few rows are taken of those that a corrected redo exports.
                order=None if redo else self._decided_order,
            )
            self.log.info("BigQuery job %s exports the query to %s", job, self.run.url(self.settings.bucket))
            event = finished_soon(self.warehouse, [job])
        if event is None:
            raise deferred([job], method_name="build_plan")
        return self.build_plan(context, event)

    def build_plan(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the export is done: counts the files' rows and fixes the plan."""
        from nightshift.run.redo.redo_rows import WRITTEN
        from nightshift.warehouse import JobState

        self.keep_lineage()
        for export in (JobState(**job) for job in event["jobs"]):
            if export.cannot_be_ordered:
                self.log.warning("The export in an order failed, so the rows are exported without one: %s", export.error)
                return self._export(context)
        (statistics,) = finished_jobs(event)
        with permanent_failures():
            if self.redo is None:
                order = self._order(Order.from_json(statistics.get("order")))
                return self._planned(None, statistics.get("exported_rows"), export.attempt, order)
            return self._planned(self._matched(self.redo, export.attempt), self.redo.left, WRITTEN)

    def _order(self, found: Order | None) -> Order | None:
        """The order of the exported rows, and why. found: what their job did; None if it sorted nothing."""
        decided = self._decided_order
        if found is None:
            if decided is None or not decided.buckets:
                return decided
            return Order(why=f"not {decided.why}: BigQuery could not sort these rows, or they were exported before")
        if decided is not None and decided.columns == found.columns:
            return replace(found, why=decided.why)
        return replace(found, why=f"ordered by {', '.join(found.columns)}, as another DAG run of this run had begun to export")

    def _matched(self, redo: Redo, attempt: int) -> ExportedSource:
        """Takes the corrected rows from the export; returns what the query returns now."""
        from nightshift.run.redo.corrected_rows import take_corrected

        source = self.warehouse.read_source(self.spec, self.run.partition)
        take_corrected(self.store, self.run, redo, self.spec.source.key, source.columns, attempt=attempt)
        return source

    def _planned(
        self, source: ExportedSource | None, rows: int | None, attempt: int, order: Order | None = None
    ) -> dict[str, Any]:
        """Fixes the plan of an attempt's files.

        source: None if the query has to be asked. rows: the expected number, if known. order: of these rows.
        """
        from nightshift.planner.plan import fixed
        from nightshift.warehouse.extract import build_plan

        plan = build_plan(
            self.store,
            self.run,
            self.spec,
            source or self.warehouse.read_source(self.spec, self.run.partition),
            fix=lambda rows, size: fixed(self._decided(), self.spec, rows, size),
            opening=self.record.uid,
            decision=self.decision,
            rows=rows,
            order=order,
            attempt=attempt,
        )
        return self._summary(plan)

    @cached_property
    def _decision(self) -> Decision | None:
        from nightshift.planner.decisions import load_decision

        return load_decision(self.store, self.decision) if self.decision else None

    @property
    def _decided_order(self) -> Order | None:
        return self._decision.order if self._decision else None

    def _decided(self) -> Decision:
        found = self._decision
        if found is None:
            raise NightFailed(
                f"The task 'plan' left no decision for {self.run.prefix}: there is no {self.decision or 'decision'}. "
                "Repeat the task 'plan'.",
                Entry.EARLIER_TASK,
            )
        return found

    def lineage(self, **counts: Any) -> Lineage:
        from nightshift.operators.lineage.facets import extract_lineage

        return extract_lineage(
            self.spec, self.run, self.settings, redo=None if self.redo and self.redo.corrected else self.redo, **counts
        )

    def _summary(self, plan: Plan) -> dict[str, Any]:
        self.keep_lineage(rows=plan.rows)
        parts = ((plan.rows, "row"), (len(plan.files), "file"), (plan.chunk_count, "chunk"), (plan.workers, "worker"))
        self.tell(f"Planned: {', '.join(n(count, noun) for count, noun in parts)}")
        for reason in plan.reasons:
            self.tell(f"Decided: {reason}")
        return {"rows": plan.rows, "chunks": plan.chunk_count, "workers": plan.workers}
