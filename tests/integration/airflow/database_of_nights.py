"""A process with a database of Airflow of its own: makes DAG runs of a job's DAG as each component would, and does to them what
a person does. Prints what became of them, JSON. Arguments: the DAG's id, and what to do."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.models import DagRun, TaskInstance
from airflow.models.dagbag import DBDagBag
from airflow.models.deadline import Deadline
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


def made(dag: Any, kind: str, session: Any) -> DagRun:
    run_type, by, logical_date = KINDS[kind]
    return dag.create_dagrun(  # type: ignore[no-any-return]
        run_id=f"{kind}__x",
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


if __name__ == "__main__":
    name, what = sys.argv[1:]
    with create_session() as session:
        dag = DBDagBag().get_latest_version_of_dag(name, session=session)
        print("FOUND", json.dumps({"cleared": cleared}[what](dag, session)))
