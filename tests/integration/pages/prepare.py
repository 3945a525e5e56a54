"""Makes the database of a test's Airflow: run by the Python of an environment of Airflow, with that Airflow's variables.

    python prepare.py USERS NIGHTS

USERS, NIGHTS: JSON, as `tests.integration.pages.server` has them. Nothing of nightshift is imported here.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib import import_module
from typing import Any


def users(wanted: list[dict[str, Any]]) -> None:
    """Roles of FAB's auth manager with exactly these permissions, or one of FAB's own by its name, and one user for each, whose
    password is its name."""
    # By name, because the environment in which types are checked has no such provider.
    fab = import_module("airflow.providers.fab.auth_manager.cli_commands.utils")

    with fab.get_application_builder() as builder:
        manager = builder.sm
        for user in wanted:
            role = manager.find_role(user["role"]) if "role" in user else manager.add_role(f"role of {user['name']}")
            for action, resource in user["permissions"]:
                manager.add_permission_to_role(role, manager.create_permission(action, resource))
            manager.add_user(user["name"], "A", "User", f"{user['name']}@example.com", role=role, password=user["name"])


def nights(wanted: list[dict[str, Any]]) -> None:
    """DAG runs of DAGs that Airflow has read, with the states of their tasks and what the task plan has passed on."""
    from airflow.models.dagbag import DBDagBag
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    for night in wanted:
        with create_session() as session:
            dag = DBDagBag().get_latest_version_of_dag(night["dag_id"], session=session)
            assert dag is not None, "Airflow has read it"
            run = dag.create_dagrun(
                run_id=night["dag_run_id"],
                logical_date=None,
                data_interval=None,
                run_after=datetime.now(UTC),
                run_type=DagRunType.MANUAL,
                triggered_by=DagRunTriggeredByType.TEST,
                state=DagRunState(night["state"]),
                session=session,
            )
            run.start_date = datetime.now(UTC)
            for task in run.task_instances:
                task.state = night["tasks"].get(task.task_id)
            session.flush()
            if night["prefix"]:
                passed = {"run_prefix": night["prefix"]}
                where = {"task_id": "plan", "dag_id": night["dag_id"], "run_id": night["dag_run_id"]}
                XComModel.set(key="return_value", value=passed, **where, serialize=False, session=session)


def main(wanted_users: str, wanted_nights: str) -> None:
    from airflow.cli.cli_parser import get_parser

    for command in ("db migrate", "dags reserialize"):
        # In this process: each other one would import Airflow again.
        arguments = get_parser().parse_args(command.split())
        arguments.func(arguments)
    users(json.loads(wanted_users))
    nights(json.loads(wanted_nights))


if __name__ == "__main__":
    main(*sys.argv[1:])
