"""Makes tasks of a DAG run wait for triggers, like deferred tasks: ``python -m benchmarks.deferred DAG < TRIGGERS``.

TRIGGERS: JSON, a list of [class path, arguments]. Runs in the environment of an Airflow whose database has a run of the DAG.
"""

from __future__ import annotations

import json
import sys

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select


def main() -> None:
    triggers = json.load(sys.stdin)
    with create_session() as session:
        query = select(TaskInstance).where(TaskInstance.dag_id == sys.argv[1]).order_by(TaskInstance.task_id)
        tasks = list(session.scalars(query))
        assert len(tasks) >= len(triggers), f"{len(tasks)} tasks for {len(triggers)} triggers"
        for task, (path, arguments) in zip(tasks, triggers, strict=False):
            trigger = Trigger(classpath=path, kwargs=arguments)
            session.add(trigger)
            session.flush()
            task.state = TaskInstanceState.DEFERRED
            task.trigger_id = trigger.id
            task.next_method = "execute_complete"
            task.next_kwargs = {}


if __name__ == "__main__":
    main()
