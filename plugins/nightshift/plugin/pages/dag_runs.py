"""Airflow's side of a run: which run a DAG run works on, which of its tasks failed, and a new DAG run on request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

from nightshift.operators.failures import ERROR_KEY
from nightshift.plugin.address import dag_run_address
from nightshift.plugin.pages.errors import NotPossible
from nightshift.run.names import RunRef
from nightshift.status.unopened import Newest, Unopened, unopened

PLAN: Final = "plan"
"""The task that opens a run and passes it on."""
ORDER: Final = (PLAN, "extract", "infer", "seal", "publish", "audit", "audit_failure")
"""The tasks of a night, as they follow one another."""
SHOWN: Final = 5
"""DAG runs of one run that a page names."""


@dataclass(frozen=True)
class Task:
    """One task of a DAG run. state: Airflow's word, empty before its time. link: its logs in Airflow."""

    name: str
    state: str
    link: str


@dataclass(frozen=True)
class Night:
    """A DAG run. run: what it works on, None before its task plan has ended. state: Airflow's word. link: its page.
    said: the last words of a task plan that failed."""

    dag_id: str
    dag_run_id: str
    state: str
    run: RunRef | None
    tasks: tuple[Task, ...]
    link: str
    said: str

    @property
    def failed(self) -> tuple[Task, ...]:
        return tuple(task for task in self.tasks if task.state == "failed")

    @property
    def over(self) -> bool:
        return self.state in ("success", "failed")


@dataclass(frozen=True)
class Worked:
    """A DAG run that works, or has worked, on a run. state: Airflow's word. link: its page."""

    dag_run_id: str
    state: str
    link: str
    started: datetime | None


def that_worked_on(run: RunRef) -> tuple[Worked, ...]:
    """The DAG runs whose task plan passed this run on, the one that was started or cleared last first; at most `SHOWN`.

    Empty before the first such task has ended, and where an XCom backend keeps values outside Airflow's database.
    """
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import String, cast, func, select

    # The database narrows it down to a few by the text; which of them mean this run is read from the values.
    passed = (XComModel.dag_id == run.job, XComModel.task_id == PLAN, XComModel.key == "return_value")
    wanted = (
        select(DagRun.run_id, DagRun.state, DagRun.start_date, XComModel.value)
        .join(XComModel, XComModel.dag_run_id == DagRun.id)
        .where(*passed, cast(XComModel.value, String).contains(run.run_id, autoescape=True))
        .order_by(func.coalesce(DagRun.start_date, DagRun.queued_at).desc(), DagRun.id.desc())
    )
    with create_session(scoped=False) as session:
        found = [
            Worked(row.run_id, str(row.state or ""), dag_run_address(run.job, row.run_id), row.start_date)
            for row in session.execute(wanted)
            if _run_of(XComModel.deserialize_value(row), run.job) == run
        ]
    return tuple(found[:SHOWN])


def night(dag_id: str, dag_run_id: str) -> Night | None:
    """None if Airflow knows no such DAG run."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session(scoped=False) as session:
        found = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == dag_run_id))
        if found is None:
            return None
        of_it = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == dag_run_id)
        tasks = session.execute(select(TaskInstance.task_id, TaskInstance.state).where(*of_it)).all()
        passed = session.scalar(
            XComModel.get_many(run_id=dag_run_id, key="return_value", task_ids=PLAN, dag_ids=dag_id, limit=1)
        )
        value = XComModel.deserialize_value(passed) if passed is not None else None
        return Night(
            dag_id,
            dag_run_id,
            str(found.state or ""),
            _run_of(value, dag_id),
            tuple(
                Task(name, str(state or ""), dag_run_address(dag_id, dag_run_id, name))
                for name, state in sorted(tasks, key=lambda task: (_place(task[0]), task[0]))
            ),
            dag_run_address(dag_id, dag_run_id),
            _why(session, dag_id, dag_run_id),
        )


def _why(session: Any, dag_id: str, run_id: str) -> str:
    """What the task plan of a DAG run said last."""
    from airflow.models.xcom import XComModel

    said = session.scalar(XComModel.get_many(run_id=run_id, key=ERROR_KEY, task_ids=PLAN, dag_ids=dag_id, limit=1))
    return str(XComModel.deserialize_value(said)) if said is not None else "its log says why"


def _place(task: str) -> int:
    return ORDER.index(task) if task in ORDER else len(ORDER)


def _run_of(passed: Any, dag_id: str) -> RunRef | None:
    """What the task plan passed on. A run of another job is none: only the rights on this DAG were checked."""
    prefix = passed.get("run_prefix") if isinstance(passed, Mapping) else None
    try:
        run = RunRef.from_prefix(str(prefix))
    except ValueError:
        return None
    return run if run.job == dag_id else None


def start(dag_id: str, conf: Mapping[str, Any], user_name: str) -> str:
    """The id of a new DAG run with this conf. Raises NotPossible if Airflow makes none, or would let it wait for ever."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import ParamValidationError
    from airflow.models.dag import DagModel
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType
    from sqlalchemy import select

    with create_session(scoped=False) as session:
        if session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)):
            raise NotPossible(f"The DAG {dag_id} is paused in Airflow, so a run of it would wait for ever. Unpause it first.")
    try:
        made = trigger_dag(dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=user_name, conf=dict(conf))
    except (AirflowException, ParamValidationError, ValueError) as error:
        raise NotPossible(f"Airflow starts no DAG run of {dag_id}: {error}") from error
    if made is None:
        raise NotPossible(f"Airflow starts no DAG run of {dag_id}. Look at the DAG's page.")
    return str(made.run_id)


def without_run(dags: Collection[str]) -> list[Unopened]:
    """The newest nights of these DAGs that have no run in the bucket, the newest first."""
    from airflow.models.dag import DagModel, DagTag
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import and_, func, select

    jobs = [each for each in dags if not each.startswith("nightshift_")]
    latest = (
        select(DagRun.dag_id, func.max(DagRun.run_after).label("at"))
        .where(DagRun.dag_id.in_(jobs))
        .group_by(DagRun.dag_id)
        .subquery()
    )
    plan = and_(TaskInstance.dag_id == DagRun.dag_id, TaskInstance.run_id == DagRun.run_id, TaskInstance.task_id == PLAN)
    wanted = (
        select(DagModel, DagRun.run_id, DagRun.state, DagRun.run_after, TaskInstance.state.label("plan"))
        .join(DagTag, and_(DagTag.dag_id == DagModel.dag_id, DagTag.name == "nightshift"))
        .outerjoin(latest, latest.c.dag_id == DagModel.dag_id)
        .outerjoin(DagRun, and_(DagRun.dag_id == latest.c.dag_id, DagRun.run_after == latest.c.at))
        .outerjoin(TaskInstance, plan)
        .where(DagModel.dag_id.in_(jobs), DagModel.is_stale.is_(False))
    )
    with create_session(scoped=False) as session:
        found = [
            unopened(
                Newest(
                    row.DagModel.dag_id,
                    bool(row.DagModel.is_paused),
                    _iso(row.DagModel.next_dagrun_create_after),
                    row.run_id or "",
                    str(row.state or ""),
                    _iso(row.run_after),
                    str(row.plan or ""),
                ),
                partial(_why, session, row.DagModel.dag_id, row.run_id),
            )
            for row in session.execute(wanted).all()
        ]
    return sorted(filter(None, found), key=lambda each: each.at, reverse=True)


def _iso(at: datetime | None) -> str:
    return "" if at is None else at.isoformat(timespec="seconds")
