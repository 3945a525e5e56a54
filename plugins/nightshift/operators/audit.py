"""The last task: one row that records what was published, from what, by which model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context


class AuditOperator(RunOperator):
    """Writes the run's row of the audit table from recorded facts only, so a repeat writes the same row again."""

    def execute(self, context: Context) -> None:
        from nightshift.hooks.warehouse import warehouse_for
        from nightshift.run.seal import load_manifest
        from nightshift.warehouse.audit import audit_row

        published = context["ti"].xcom_pull(task_ids="publish")
        with permanent_failures():
            self.keep_lineage()
            record = self._frozen[1]
            manifest = load_manifest(self.store, self.run)
            if manifest is None or published is None:
                raise AirflowFailException(f"{self.run.prefix} is not published. Repeat the task 'publish' first.")
            row = audit_row(self.spec, self.run, self.plan, manifest, published, dag_run_id=record["opened_by"])
            warehouse_for(self.settings).record_audit(row)
        self.log.info("Audit row of run %s: %s", self.run.run_id, row)
