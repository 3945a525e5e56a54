"""What the operators of a run share: the run's folder, its frozen spec, and which errors are worth a retry."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.fields.terminal import harmless
from nightshift.fields.text import lines
from nightshift.operators.failures import ERROR_KEY, MOST, SKIPPED_KEY, Entry, NightFailed, entry_of, is_permanent, say
from nightshift.operators.links import RunFolderLink
from nightshift.run.names import RunRef
from nightshift.settings import Settings

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from obstore.store import GCSCredentialProvider, ObjectStore

    from nightshift.operators.lineage.facets import Lineage
    from nightshift.run.plan import Plan
    from nightshift.run.record import RunRecord
    from nightshift.run.redo.redo import Redo
    from nightshift.spec import JobSpec
    from nightshift.warehouse import Warehouse

PLAN = "plan"
"""The task that passes its run on to the others."""
RUN_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan')['run_prefix'] }}"
"""The run's folder, from the task ``plan``."""
_OTHER_NAMES = (
    "Another DAG gives one of these assets another name or URI, and Airflow runs no task whose asset is ambiguous. Correct "
    "that DAG: name the table by Asset('PROJECT.DATASET.TABLE') alone, and a folder by nightshift.operators.assets.files_asset."
)
TERMS_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan').get('spec') | tojson }}"
"""The job as the task ``plan`` had it."""


class RunOperator(BaseOperator):
    """
    A task that works on one run.

    The folder identifies the run, so a repeat works on the same run, in any process and after any
    change of the job's file. Settings that do not affect an answer (destination, tolerance, deadline, compute, owner) are
    not part of a run's name: the terms hold them, as the job's file had them when this DAG run was planned. So a changed
    tolerance takes effect without a new run.

    :param run_prefix: the run's folder inside the bucket, JOB/PARTITION/RUN (templated).
    :param terms: the job as JSON (templated); by default the terms that the run was opened with.
    """

    template_fields: Sequence[str] = ("run_prefix", "terms")
    operator_extra_links = (RunFolderLink(),)

    def __init__(
        self,
        *,
        run_prefix: str = RUN_OF_PLAN,
        terms: str = TERMS_OF_PLAN,
        on_failure_callback: Callable[[Context], None] | Sequence[Callable[[Context], None]] | None = None,
        **kwargs: Any,
    ) -> None:
        others = [on_failure_callback] if callable(on_failure_callback) else on_failure_callback or ()
        super().__init__(on_failure_callback=[keep_error, *others], **kwargs)
        self.run_prefix = run_prefix
        self.terms = terms
        self._lineage: Lineage | None = None

    def pre_execute(self, context: Context) -> None:
        """Airflow calls it before each try, and when a deferred task resumes. Raises NightFailed if another release
        ran the task ``plan``, and this one cannot read its result."""
        from nightshift.formats import XCOM, UnreadableFormat

        # A user's own DAG may name the run itself.
        passed = context["ti"].xcom_pull(task_ids=PLAN) if self.dag.has_task(PLAN) else None
        if isinstance(passed, Mapping):
            try:
                XCOM.check(passed, f"What the task {PLAN!r} passed on")
            except UnreadableFormat as error:
                raise NightFailed(f"{error} Or repeat the task {PLAN!r} with this one.", Entry.EARLIER_TASK) from error

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_environment()

    @property
    def run(self) -> RunRef:
        return RunRef.from_prefix(self.run_prefix)

    @property
    def labels(self) -> dict[str, str]:
        """Of its BigQuery jobs (`nightshift.hooks.warehouse`)."""
        return {"job": self.run.job, "run": self.run.run_id, "step": self.task_id}

    @cached_property
    def store(self) -> ObjectStore:
        """The bucket of all runs."""
        from nightshift.store import open_store

        return open_store(f"gs://{self.settings.bucket}", credentials=self.storage_credentials)

    @cached_property
    def storage_credentials(self) -> GCSCredentialProvider:
        """Those of the deployment's Google connection."""
        from nightshift.hooks.credentials import storage_credentials

        return storage_credentials(self.settings)

    @cached_property
    def warehouse(self) -> Warehouse:
        from nightshift.hooks.warehouse import warehouse_for

        return warehouse_for(self.settings, **self.labels)

    @cached_property
    def _frozen(self) -> tuple[JobSpec, RunRecord]:
        """The spec and the whole record of ``spec.json``, read once: it never changes."""
        from nightshift.run.opening import load_run

        return load_run(self.store, self.run)

    @property
    def record(self) -> RunRecord:
        return self._frozen[1]

    @property
    def redo(self) -> Redo | None:
        """What the run is, if its rows are the dead letters of an earlier one."""
        return self.record.redo

    def completes(self, asked_at: str) -> Redo | None:
        """What the partition must show for this redo to replace it; None for a run that may replace others.

        asked_at: when the run was requested, ISO 8601. A later request for the same redo may replace others.
        """
        return self.redo if self.redo and asked_at == self.record.opened_at else None

    @cached_property
    def spec(self) -> JobSpec:
        """The spec that was frozen when the run was opened, with the terms of this DAG run."""
        from pydantic import ValidationError

        from nightshift.spec import JobSpec

        frozen = self._frozen[0]
        terms = json.loads(self.terms or "null")
        try:
            spec = frozen if terms is None else JobSpec.model_validate(terms)
        except ValidationError as error:
            raise NightFailed(
                f"Another release of nightshift ran the task 'plan', and this one does not know all settings of its job. "
                f"Repeat the task 'plan'. {error}",
                Entry.EARLIER_TASK,
            ) from error
        if spec.semantic() != frozen.semantic():
            raise NightFailed(
                f"{self.run.prefix} belongs to another query, model or request. Repeat the task 'plan'.", Entry.EARLIER_TASK
            )
        return self.redo.terms(spec) if self.redo else spec

    @cached_property
    def plan(self) -> Plan:
        """Read once: it never changes."""
        from nightshift.run.opening import planned

        plan = planned(self.store, self.run, self.record)
        if plan is None:
            raise NightFailed(
                f"{self.run.prefix} has no plan.json. Repeat the task 'extract', which writes it.", Entry.EARLIER_TASK
            )
        return plan

    def tell(self, text: str, *, warns: bool = False) -> None:
        """Logs a message in lines that Airflow's page shows whole."""
        for line in lines(harmless(text)):
            (self.log.warning if warns else self.log.info)("%s", line)

    def lineage(self, **counts: Any) -> Lineage:
        """What the task reads and writes. counts: what is known at its end, by the names of the task's own lineage."""
        from nightshift.operators.lineage.facets import FACET_KEY, Lineage, run_facet

        return Lineage(run_facets={FACET_KEY: run_facet(self.spec, self.run, None)})

    def keep_lineage(self, **counts: Any) -> None:
        """Makes the lineage for the end of the task. Never fails the task.

        It is made now because Airflow asks for it in a fork of this process, and the threads of the store's client do not
        survive a fork.
        """
        try:
            self._lineage = self.lineage(**counts)
        except Exception as error:
            self.log.warning("The task's OpenLineage events will name no datasets: %r", error)

    def get_openlineage_facets_on_start(self) -> Lineage | None:
        """Nothing of a task that has still to find its run. None in a fork of a process that has used the store, as
        ``airflow dags test`` makes it: it would wait for ever."""
        from nightshift.operators.lineage.facets import Lineage
        from nightshift.store import lost_by_fork

        if not self.run_prefix:
            return Lineage()
        return None if lost_by_fork() else self.lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Lineage | None:
        return self._lineage

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Lineage | None:
        return self._lineage


@contextmanager
def permanent_failures() -> Iterator[None]:
    """Fails the task for good if a repeat cannot help; everything else is left to the task's retries."""
    try:
        yield
    except Exception as error:
        if not is_permanent(error):
            if (refused := _refusal(error)) is None:
                raise
            raise NightFailed(refused, Entry.STORE) from None
        # Without the stack of where it was noticed, which says nothing to who reads the log. The frames of Airflow's own task
        # runner stay: it logs every error with all that it passed through. `keep_error` ends the log with the sentence instead.
        raise NightFailed(str(error), entry_of(error)) from None


def _refusal(error: BaseException) -> str | None:
    """What Cloud Storage refuses, in the doctor's words; None if it is not that. An outage passes; a refusal does not, however
    often a task is repeated."""
    from nightshift.doctor.bucket import fix_of
    from nightshift.store import refusal_of

    return f"{refusal}. Fix: {fix_of(refusal)}" if (refusal := refusal_of(error)) else None


def keep_error(context: Context) -> None:
    """Keeps the error for the audit row of the DAG run, and ends the log with it. Airflow calls it when a task has failed and
    has no retry left, whether the error is ours or Airflow's own."""
    from airflow.sdk.exceptions import AirflowInactiveAssetInInletOrOutletException

    error = context.get("exception")
    if error is None:
        return
    message = str(error) if isinstance(error, AirflowFailException) else _foreign(error)
    if isinstance(error, AirflowInactiveAssetInInletOrOutletException):
        message = f"{message}. {_OTHER_NAMES}"
        log.error(message)
    say(log, error)
    context["ti"].xcom_push(ERROR_KEY, message[:MOST])


def keep_skip(context: Context) -> None:
    """Airflow calls it when a task has skipped itself."""
    context["ti"].xcom_push(SKIPPED_KEY, True)


def _foreign(error: BaseException | str) -> str:
    """More people read the table than the log, in which Airflow masks secrets: a library's message may hold some."""
    if isinstance(error, str):
        return error
    kind = type(error)
    ours = kind.__module__.split(".")[0] in ("airflow", "nightshift")
    return f"{kind.__name__}: {error}" if ours else f"{kind.__name__}. The task's log has its words."
