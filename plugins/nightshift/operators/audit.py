"""The last task: one row that says what was published, from what, by which model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException
from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context


class AuditOperator(RunOperator):
    """Writes the run's row of the audit table; a repeat writes the same row again."""

    def execute(self, context: Context) -> None:
        from nightshift.freeze import load_run
        from nightshift.hooks.warehouse import warehouse_for
        from nightshift.seal import load_manifest

        with permanent_failures():
            spec, record = load_run(self.store, self.run)
            manifest = load_manifest(self.store, self.run)
            if manifest is None:
                raise AirflowFailException(f"{self.run.prefix} is not sealed. Repeat the task 'seal' first.")
            row: dict[str, Any] = {
                "run_id": self.run.run_id,
            }
            warehouse_for(self.settings).record_audit(row)
