"""Who may see and do what: Airflow's own users, and their rights on the job's DAG.

Airflow mounts a plugin's application without authentication, so each route has one of these as a dependency, and a test
walks all of them. Rows, prompts and answers are what tasks pass on: they need the right to read XComs, too.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, Path

from nightshift.plugin.pages.errors import NotThere
from nightshift.plugin.pages.tokens import carries_token
from nightshift.run.names import RunRef

READS_RUN: Final = requires_access_dag("GET", DagAccessEntity.RUN)
"""Of a route without a DAG in its path: a user who may list DAG runs. What such a route shows is filtered by `readable`."""
READS_ROWS: Final = requires_access_dag("GET", DagAccessEntity.XCOM)
CHANGES_RUN: Final = requires_access_dag("PUT", DagAccessEntity.RUN)
TRIGGERS: Final = requires_access_dag("POST", DagAccessEntity.RUN)

SEES: Final = [Depends(READS_RUN)]
SEES_ROWS: Final = [Depends(READS_RUN), Depends(READS_ROWS)]
MAY_CHANGE: Final = [Depends(carries_token), Depends(READS_RUN), Depends(CHANGES_RUN)]
MAY_TRIGGER: Final = [Depends(carries_token), Depends(READS_RUN), Depends(TRIGGERS)]

_PARTITION: Final = re.compile(r"[0-9][0-9A-Za-z:_.+-]{0,63}")
_JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,249}")


def run_named(dag_id: Annotated[str, Path()], partition: Annotated[str, Path()], run: Annotated[str, Path()]) -> RunRef:
    """The run of an address; its job is the DAG whose rights were checked. Raises NotThere for what names no run.

    run: its id. Not called ``run_id``, which Airflow's log of actions takes for a DAG run's.
    """
    try:
        if not _JOB.fullmatch(dag_id) or not _PARTITION.fullmatch(partition):
            raise ValueError
        return RunRef.from_prefix(f"{dag_id}/{partition}/{run}")
    except ValueError:
        raise NotThere("This address names no run. Open one from the list of all runs.") from None


def job_named(dag_id: Annotated[str, Path()]) -> str:
    """The job of an address: the DAG whose rights were checked. Raises NotThere."""
    if not _JOB.fullmatch(dag_id):
        raise NotThere("This address names no job. Open one from the list of all runs.")
    return dag_id


JobDep = Annotated[str, Depends(job_named)]
RunDep = Annotated[RunRef, Depends(run_named)]


def readable(user: GetUserDep) -> frozenset[str]:
    """The DAGs that the user may read: a list shows the runs of no other."""
    return frozenset(get_auth_manager().get_authorized_dag_ids(user=user, method="GET"))


ReadableDep = Annotated[frozenset[str], Depends(readable)]


def may(user: Any, dag_id: str, method: Any, entity: DagAccessEntity = DagAccessEntity.RUN) -> bool:
    """Whether a page offers the user something: the route itself checks again."""
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel

    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))
