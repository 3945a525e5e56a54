"""What the operators of a run share: the run's folder, its frozen spec, and which errors are worth a retry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from nightshift.operators.links import RunFolderLink
from nightshift.run import RunRef
from nightshift.settings import Settings, SettingsError

if TYPE_CHECKING:
    from nightshift.plan import Plan
    from nightshift.spec import JobSpec
    from obstore.store import ObjectStore

RUN_OF_PLAN = "{{ ti.xcom_pull(task_ids='plan')['run_prefix'] }}"
"""Where the task ``plan`` says the run is."""


class RunOperator(BaseOperator):
    """
    A task that works on one run.

    It knows the run by its folder alone and reads everything else there, so that a repeat, in whatever process and after
    whatever change of the job's file, works on the same run.

    :param run_prefix: the run's folder inside the bucket, JOB/PARTITION/RUN (templated).
    """

    template_fields: Sequence[str] = ("run_prefix",)
    operator_extra_links = (RunFolderLink(),)
    ui_color: ClassVar[str] = "#e8eef7"

    def __init__(self, *, run_prefix: str = RUN_OF_PLAN, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_prefix = run_prefix

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_environment()

    @property
    def run(self) -> RunRef:
        return RunRef.from_prefix(self.run_prefix)

    @cached_property
    def store(self) -> ObjectStore:
        """The bucket of all runs."""
        from nightshift.store import open_store

        return open_store(f"gs://{self.settings.bucket}")

    @cached_property
    def spec(self) -> JobSpec:
        """The spec that was frozen when the run was opened, not what the job's file says now."""
        from nightshift.freeze import load_run

        return load_run(self.store, self.run)[0]

    @property
    def plan(self) -> Plan:
        from nightshift.ledger import load_plan

        plan = load_plan(self.store, self.run)
        if plan is None:
            raise AirflowFailException(f"{self.run.prefix} has no plan.json. Repeat the task 'extract', which writes it.")
        return plan


@contextmanager
def permanent_failures() -> Iterator[None]:
    """Fails the task for good where a repeat cannot help; everything else is left to the task's retries."""
    from nightshift.freeze import NoSuchRun
    from nightshift.plan import PlanError
    from nightshift.seal import ConservationError, ToleranceExceeded
    from nightshift.spec import SpecErrors
    from nightshift.warehouse import WarehouseError, WarehouseUnavailable

    try:
        yield
    except WarehouseUnavailable:
        raise
    except (ConservationError, NoSuchRun, PlanError, SettingsError, SpecErrors, ToleranceExceeded, WarehouseError) as error:
        raise AirflowFailException(str(error)) from error
