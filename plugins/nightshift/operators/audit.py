"""The last tasks: one row that records what was published, from what, by which model; and one that records a failure."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowSkipException

from nightshift.fields.text import WIDTH, n
from nightshift.operators.bigquery_jobs import deferred, finished_jobs, finished_soon
from nightshift.operators.failures import ERROR_KEY, SKIPPED_KEY, Entry, NightFailed
from nightshift.operators.partition import nearest, partition_of
from nightshift.operators.run import RunOperator, permanent_failures
from nightshift.run.names import canonical_json

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.run.plan import Plan
    from nightshift.spec import JobSpec
    from nightshift.status.chunk_footer import Committed
    from nightshift.warehouse.failed_nights import DeadChunks


UNKNOWN: Final = "The task {} ended without saying why: it was killed, or a person marked it. Its log and Airflow's have more."
STOPPED: Final = (
    "A person stopped the night: the DAG run was marked failed before its task {} was done. What is committed stays: to "
    "continue, clear that task and all after it."
)
AUDIT: Final = "audit"


class AuditOperator(RunOperator):
    """Writes the run's row of the audit table from recorded facts only, so a repeat writes the same row again."""

    def execute(self, context: Context) -> None:
        from nightshift.planner.bills import bill_of
        from nightshift.planner.costs.prices import load_prices
        from nightshift.run.manifest import load_manifest
        from nightshift.run.observed import endings
        from nightshift.warehouse.audit import audit_row

        planned, published = (context["ti"].xcom_pull(task_ids=task) for task in ("plan", "publish"))
        with permanent_failures():
            self.keep_lineage()
            manifest = load_manifest(self.store, self.run)
            if manifest is None or published is None:
                raise NightFailed(f"{self.run.prefix} is not published. Repeat the task 'publish' first.", Entry.EARLIER_TASK)
            asked_at = (planned or {}).get("asked_at") or self.record.opened_at
            billed = _sum((planned or {}).get("bytes_billed"), self.warehouse.bytes_billed(self.run, manifest, asked_at))
            prices = load_prices(self.settings.prices)
            made = bill_of(self.store, manifest, self.plan, self.spec, prices, bigquery_bytes=billed)
            by = context["dag_run"].run_id
            row = audit_row(
                self.spec,
                self.run,
                self.plan,
                manifest,
                published,
                dag_run_id=self.record.opened_by,
                by_dag_run_id=by,
                asked_at=asked_at,
                costs=made.to_json() if made else None,
            )
            self.warehouse.record_audit(row)
            # Again: a night that failed here before has ended well now.
            ending = endings.Ending.of_publication(manifest, published["published_at"], by, asked_at)
            endings.record(self.store, self.run, ending)
        self.log.info("Audit row of run %s:", self.run.run_id)
        _show(self.log, row)


class AuditFailureOperator(RunOperator):
    """
    Writes a row of the audit table for a DAG run with a task that has failed for good, with what is known by then.

    It runs beside the task ``audit``, which then fails as its upstream did, so the DAG run ends as failed. If the DAG run is
    repaired, this task is skipped, and the publication gets its own row. A repeat writes no second row.

    It is a teardown, which Airflow leaves to do its work if a person marks the DAG run failed or successful: all other tasks
    are ended or skipped then, with no word to anyone. So it runs when they are done, however that came. It ends as failed
    itself if the night was stopped: else the DAG run would end as successful.

    :param spec: the job as JSON: the task ``plan`` may be the one that failed.
    :param tasks: the tasks that may have failed, in their order.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, spec: dict[str, Any], tasks: Sequence[str], **kwargs: Any) -> None:
        super().__init__(run_prefix="", terms="null", trigger_rule="all_done", **kwargs)
        self.is_teardown = self.on_failure_fail_dagrun = True
        self.job = spec
        self.tasks = tuple(tasks)

    def execute(self, context: Context) -> None:
        from nightshift.warehouse.audit import failure_row

        states, by = self._states(context), context["dag_run"].run_id
        failed, error = self._why(context, states)
        planned = self._planned(context)
        failed_at = datetime.now(UTC).isoformat(timespec="seconds")
        if self.run_prefix:
            self._end(failed, failed_at, by, error)
        with permanent_failures():
            row = failure_row(
                self.spec,
                planned.get("partition") or _partition(context, self.spec.every),
                failed_task=failed,
                failed_at=failed_at,
                by_dag_run_id=by,
                error=error,
                known=self._known(planned),
            )
            self.warehouse.record_audit(row)
        self.log.info("Audit row of the DAG run that failed:")
        _show(self.log, row)
        if self.run_prefix and (found := self._dead_chunks()) is not None:
            with permanent_failures():
                jobs = self.warehouse.failed_nights.start(self.spec, self.run, found[0].exported, found[1])
                event = finished_soon(self.warehouse, jobs)
            if event is None:
                raise deferred(jobs, method_name="keep_dead_letters")
            self._keep(event)
        self._end_as_stopped(context, states)

    def keep_dead_letters(self, context: Context, event: dict[str, Any]) -> None:
        """Continues when BigQuery has loaded the chunks with dead letters: puts these into their table."""
        self._planned(context)
        self._keep(event)
        self._end_as_stopped(context, self._states(context))

    def _planned(self, context: Context) -> dict[str, Any]:
        """What the task plan passed on; {} if it failed. Takes the run and the job from it."""
        planned: dict[str, Any] = context["ti"].xcom_pull(task_ids="plan") or {}
        self.run_prefix, self.job = planned.get("run_prefix", ""), planned.get("spec") or self.job
        return planned

    @cached_property
    def spec(self) -> JobSpec:
        """As the task plan had it, or as it is now: what the run's folder holds may be why the DAG run failed."""
        from nightshift.spec import JobSpec

        return JobSpec.model_validate(self.job)

    @property
    def labels(self) -> dict[str, str]:
        return super().labels if self.run_prefix else {"job": self.job["job"], "step": self.task_id}

    def _why(self, context: Context, states: Mapping[str, str]) -> tuple[str, str]:
        """The task that the DAG run did not get past, and why. Raises AirflowSkipException if there is none."""
        ti = context["ti"]
        done = list(takewhile(lambda task: states.get(task) == "success", self.tasks))
        failed = next((task for task in self.tasks if task not in done), None)
        if failed is None or states.get(failed) not in ("failed", "skipped"):
            raise AirflowSkipException("No task of this DAG run is failed now.")
        if states.get(failed) == "skipped":
            if ti.xcom_pull(task_ids=failed, key=SKIPPED_KEY):
                raise AirflowSkipException(f"The task {failed} had nothing to do.")
            if done and ti.xcom_pull(task_ids=done[-1]) is None:
                raise AirflowSkipException(f"A person marked the DAG run successful while {done[-1]} was at work.")
        said = ti.xcom_pull(task_ids=failed, key=ERROR_KEY)
        return failed, STOPPED.format(failed) if self._stopped(states) else said or UNKNOWN.format(failed)

    def _states(self, context: Context) -> dict[str, str]:
        """Of the tasks before this one."""
        dag_run = context["dag_run"]
        found: dict[str, str] = context["ti"].get_task_states(dag_run.dag_id, run_ids=[dag_run.run_id]).get(dag_run.run_id, {})
        return found

    def _stopped(self, states: Mapping[str, str]) -> bool:
        """Whether a person has ended the DAG run: the tasks after one that failed by itself are not skipped."""
        return "skipped" in (states.get(task) for task in (*self.tasks, AUDIT))

    def _end_as_stopped(self, context: Context, states: Mapping[str, str]) -> None:
        """Raises NightFailed if a person has ended the DAG run."""
        if self._stopped(states):
            raise NightFailed(self._why(context, states)[1], Entry.STOPPED)

    def _keep(self, event: dict[str, Any]) -> None:
        finished_jobs(event)
        if (found := self._dead_chunks()) is None:
            return
        with permanent_failures():
            rows = self.warehouse.failed_nights.keep(self.spec, self.run, found[1])
        self.tell(f"The table of dead letters has {n(rows, 'row')} of run {self.run.run_id}")

    def _dead_chunks(self) -> tuple[Plan, DeadChunks] | None:
        """The plan, and the committed chunks with dead letters; None if no rows were planned, or if they cannot be read."""
        from nightshift.formats import UnreadableFormat
        from nightshift.operators.dead_letters import dead_chunks
        from nightshift.run.opening import NoSuchRun, planned
        from nightshift.run.plan import PlanError

        try:
            plan = planned(self.store, self.run, self.record)
            return None if plan is None else (plan, dead_chunks(self.store, self.run, plan))
        except (NoSuchRun, PlanError, UnreadableFormat, FileNotFoundError) as failure:
            self.log.warning("The table of dead letters will lack those of %s: %s", self.run.prefix, failure)
            return None

    def _end(self, task: str, at: str, dag_run_id: str, error: str) -> None:
        """Records the ending in the run's folder, first of all: the warehouse may be why the DAG run failed.

        If it cannot be written, that is said in the log: it must not hide the failure.
        """
        from nightshift.run.observed import endings
        from nightshift.store import StoreUnavailable

        ending = endings.Ending(endings.FAILED, at, dag_run_id, task, error)
        if (found := self._ledger) is not None:
            ending = replace(
                ending,
                dead_letters=found.dead_letters,
                dead_reasons=dict(found.reasons.most_common()),
                rows_committed=found.rows,
            )
        try:
            endings.record(self.store, self.run, ending)
        except StoreUnavailable as failure:
            self.log.warning("Pages and commands will not show how the night ended: %s", failure)

    @cached_property
    def _ledger(self) -> Committed | None:
        """The totals of the run's committed chunks; None if they cannot be read, or before its rows are planned."""
        from nightshift.formats import UnreadableFormat
        from nightshift.run.plan import PlanError, load_plan
        from nightshift.status.chunk_footer import asked, committed
        from nightshift.store import StoreUnavailable

        try:
            plan = asked(self.run.plan_path, lambda: load_plan(self.store, self.run))
            return None if plan is None else committed(self.store, self.run.work(plan.uid), plan)
        except (PlanError, StoreUnavailable, UnreadableFormat) as failure:
            self.log.warning("It is not known what of the run is committed: %s", failure)
            return None

    def _known(self, planned: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a run that was opened; none if the task plan did not get so far."""
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        from nightshift.run.opening import NoSuchRun
        from nightshift.warehouse import WarehouseError

        if not self.run_prefix:
            return {}
        known = {"run_id": self.run.run_id, "generation": self.run.generation, "input_rows": planned.get("rows")}
        known |= committed(self._ledger) if self._ledger is not None else {}
        try:
            return {**known, **self._looked_up(planned)}
        except (ValueError, NoSuchRun, WarehouseError, PermissionDeniedError, UnauthenticatedError) as error:
            # What cannot be read may be why the DAG run failed: the failure is recorded all the same.
            self.log.warning("The row of the failure will lack the run's cost: %s", error)
            return known

    def _looked_up(self, planned: Mapping[str, Any]) -> dict[str, Any]:
        """The columns that have to be read. Raises ValueError and NoSuchRun for what is not a document of a run."""
        from nightshift.planner.bills import bill_of, bill_so_far
        from nightshift.planner.costs.prices import load_prices
        from nightshift.run.manifest import load_manifest
        from nightshift.run.plan import load_plan
        from nightshift.warehouse.audit import money

        plan, manifest = load_plan(self.store, self.run), load_manifest(self.store, self.run)
        billed = _sum(planned.get("bytes_billed"), self.warehouse.bytes_billed(self.run, manifest, planned.get("asked_at")))
        prices = load_prices(self.settings.prices)
        made = bill_of(self.store, manifest, plan, self.spec, prices, bigquery_bytes=billed) if manifest else None
        so_far = made or bill_so_far(self.store, self.run, plan, self.spec, prices, billed)
        columns = money(so_far.to_json())
        if not made:
            del columns["costs"]  # What of it is useful is not known before the seal.
        return {
            "dag_run_id": self.record.opened_by,
            "input_rows": plan.rows if plan else planned.get("rows"),
            **({"attempts": len(manifest.attempts)} if manifest else {}),
            "workers": plan.workers if plan else None,
            **columns,
        }


def _show(log: Any, row: Mapping[str, Any]) -> None:
    """A line for each column that has a value."""
    for name, value in row.items():
        if value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            log.info("  %s: %s", name, textwrap.shorten(text, WIDTH - len(name) - 4, placeholder="..."))


def _partition(context: Context, every: str | None) -> str:
    """Of a DAG run whose task plan has passed nothing on. What that has refused does not hide the failure."""
    try:
        return partition_of(context, every)
    except NightFailed:
        return nearest(context, every)


def _sum(*counts: int | None) -> int | None:
    """Of the known counts; None without any."""
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def committed(found: Committed) -> dict[str, Any]:
    """The columns about what of a run is committed."""
    return {
        "predictions": found.rows - found.dead_letters,
        "dead_letters": found.dead_letters,
        "dead_reasons": canonical_json(dict(found.reasons)).decode(),
        "prompt_tokens": found.prompt_tokens,
        "output_tokens": found.output_tokens,
        "chunks": found.chunks,
        "attempts": len(found.attempts) or None,
        "truncated": found.truncated,
        "engine_versions": canonical_json(dict(found.engine_versions)).decode(),
    }
