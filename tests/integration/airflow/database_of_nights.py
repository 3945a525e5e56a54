"""A process with a database of Airflow of its own: makes DAG runs of a job's DAG as each component would, and does to them what
a person does. Prints what became of them, JSON. Arguments: the DAG's id, and what to do."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.api.common.mark_tasks import set_dag_run_state_to_failed, set_dag_run_state_to_success
from airflow.models import DagRun, TaskInstance
from airflow.models.dagbag import DBDagBag
from airflow.models.db_callback_request import DbCallbackRequest
from airflow.models.deadline import Deadline
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select

DAY = datetime(2026, 11, 20, tzinfo=UTC)
KINDS = {
    "scheduled": (DagRunType.SCHEDULED, DagRunTriggeredByType.TIMETABLE, DAY),
    "backfill": (DagRunType.BACKFILL_JOB, DagRunTriggeredByType.BACKFILL, DAY - timedelta(days=9)),
    "manual": (DagRunType.MANUAL, DagRunTriggeredByType.UI, None),
    "asset": (DagRunType.ASSET_TRIGGERED, DagRunTriggeredByType.ASSET, None),
    "operator": (DagRunType.OPERATOR_TRIGGERED, DagRunTriggeredByType.OPERATOR, None),
}


def made(dag: Any, kind: str, session: Any, run_id: str = "") -> DagRun:
    run_type, by, logical_date = KINDS[kind]
    return dag.create_dagrun(  # type: ignore[no-any-return]
        run_id=run_id or f"{kind}__x",
        logical_date=logical_date,
        data_interval=None if logical_date is None else (logical_date, logical_date + timedelta(days=1)),
        run_after=DAY,
        run_type=run_type,
        triggered_by=by,
        state=DagRunState.QUEUED,
        session=session,
    )


def tasks_of(run: DagRun, session: Any) -> dict[str, TaskInstance]:
    found = session.scalars(select(TaskInstance).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id))
    return {ti.task_id: ti for ti in found}


def due(run: DagRun, session: Any) -> str:
    (deadline,) = session.scalars(select(Deadline).where(Deadline.dagrun_id == run.id)).all()
    return str(timedelta(seconds=round((deadline.deadline_time - run.queued_at).total_seconds())))


def cleared(dag: Any, session: Any) -> Any:
    """For each kind of DAG run: how long after it is queued its deadline is; and again when it has failed and is cleared, one
    task first, then as a whole."""
    found = {}
    for kind in KINDS:
        run = made(dag, kind, session)
        session.flush()
        before = due(run, session)
        tasks = tasks_of(run, session)
        tasks["plan"].state, tasks["extract"].state = TaskInstanceState.SUCCESS, TaskInstanceState.FAILED
        run.state, run.end_date = DagRunState.FAILED, DAY
        session.flush()
        one = dag.clear(run_id=run.run_id, task_ids=["extract"], session=session)
        session.flush()
        after = due(run, session)
        whole = dag.clear(run_id=run.run_id, session=session)
        session.flush()
        found[kind] = [before, after, due(run, session), str(run.state), one > 0, whole > 0]
    return found


CHAIN = ("plan", "extract", "infer", "seal", "publish", "audit")
MARK = {"failed": set_dag_run_state_to_failed, "success": set_dag_run_state_to_success}


def ended(dag: Any, session: Any) -> Any:
    """For each way that a night ends: the states of its tasks when audit_failure may begin, None if it never may; and the
    state of the DAG run when that task has ended as it ends then."""
    ways: dict[str, tuple[dict[str, str], str | None, str]] = {}
    for number, task in enumerate(CHAIN[:-1]):
        done = dict.fromkeys(CHAIN[:number], "success")
        ways[f"stopped in {task}"] = ({**done, task: "running"}, "failed", "failed")
        ways[f"failed in {task}"] = ({**done, task: "failed"}, None, "success")
    ways["stopped in infer, deferred"] = ({"plan": "success", "extract": "success", "infer": "deferred"}, "failed", "failed")
    ways["stopped before it began"] = ({}, "failed", "failed")
    ways["marked successful in infer"] = ({"plan": "success", "extract": "success", "infer": "deferred"}, "success", "skipped")
    ways["published"] = (dict.fromkeys(CHAIN, "success"), None, "skipped")
    ways["nothing to do"] = ({"plan": "skipped"}, None, "skipped")
    return {name: _end(dag, f"run{number}", way, session) for number, (name, way) in enumerate(ways.items())}


def _end(dag: Any, run_id: str, way: tuple[dict[str, str], str | None, str], session: Any) -> Any:
    states, marked, ends = way
    run = made(dag, "manual", session, run_id)
    session.flush()
    tasks = tasks_of(run, session)
    for name, state in states.items():
        tasks[name].state = TaskInstanceState(state)
    run.state, run.dag = DagRunState.RUNNING, dag
    session.flush()
    if marked:
        MARK[marked](dag=dag, run_id=run_id, commit=True, session=session)
        session.flush()
        # Airflow 3.3.1 marks a task in a session of its own, which leaves nothing in this one.
        run = session.scalars(select(DagRun).where(DagRun.dag_id == run.dag_id, DagRun.run_id == run_id)).one()
        run.dag, tasks = dag, tasks_of(run, session)
    seen = None
    for _ in range(len(CHAIN) + 2):
        able, _callback = run.update_state(session=session, execute_callbacks=False)
        session.flush()
        if run.state in (DagRunState.FAILED, DagRunState.SUCCESS):
            break
        for ti in able:
            # Nothing else of the night may begin.
            assert ti.task_id == "audit_failure", ti.task_id
            seen = {name: str(each.state) for name, each in tasks.items() if name in CHAIN}
            tasks["audit_failure"].state = TaskInstanceState(ends)
        session.flush()
    return [seen, str(run.state)]


def calls_back(dag: Any, session: Any) -> Any:
    """Leaves the DAG processor what the scheduler asks of it when a task has failed, and said why."""
    run = made(dag, "scheduled", session)
    session.flush()
    tasks = tasks_of(run, session)
    states = {**dict.fromkeys(tasks, "upstream_failed"), "plan": "success", "extract": "failed", "audit_failure": "success"}
    for name, ti in tasks.items():
        ti.state, ti.end_date = TaskInstanceState(states[name]), DAY
    # As a task's process stores it, over Airflow's API.
    where: Any = {"dag_id": run.dag_id, "task_id": "extract", "run_id": run.run_id}
    XComModel.set("error", "division by zero: 100 / 0", **where, serialize=False, session=session)
    run.state, run.dag = DagRunState.RUNNING, dag
    session.flush()
    _, request = run.update_state(session=session, execute_callbacks=False)
    assert request is not None
    session.add(DbCallbackRequest(priority_weight=10, callback=request))
    return str(run.state)


if __name__ == "__main__":
    name, what = sys.argv[1:]
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(name, session=session)
        print("FOUND", json.dumps({"cleared": cleared, "ended": ended, "calls_back": calls_back}[what](dag, session)))
