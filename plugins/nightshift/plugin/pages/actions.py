"""What a page can do to a run: pause and resume it, and ask Airflow for a DAG run that redoes, publishes or tries something.

Nothing is computed here. Each action is asked for twice: a GET shows what it would do, and only the POST that follows does it.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse

from nightshift.plugin.address import dag_run_address
from nightshift.plugin.pages import dag_runs
from nightshift.plugin.pages.bucket import bucket
from nightshift.plugin.pages.errors import NotPossible
from nightshift.plugin.pages.html import fragment
from nightshift.plugin.pages.rights import MAY_CHANGE, MAY_TRIGGER, SEES, RunDep
from nightshift.run import pauses

LOGS: Final = {name: action_logging(event=f"nightshift_{name}") for name in ("pause", "resume", "redo", "republish")}
"""Airflow's log of actions names who did what."""
router = APIRouter(prefix="/runs/{dag_id}/{partition}/{run}")


@router.get("/ask/{action}", dependencies=SEES)
def ask(run: RunDep, action: Literal["pause", "resume", "redo", "republish"]) -> HTMLResponse:
    """The question before an action: what it will do, and its button."""
    return fragment("ask.html", run=run, action=action)


@router.post("/pause", dependencies=[*MAY_CHANGE, Depends(LOGS["pause"])])
def pause(run: RunDep, user: GetUserDep) -> HTMLResponse:
    return _request(run, user, paused=True)


@router.post("/resume", dependencies=[*MAY_CHANGE, Depends(LOGS["resume"])])
def resume(run: RunDep, user: GetUserDep) -> HTMLResponse:
    return _request(run, user, paused=False)


def _request(run: Any, user: Any, *, paused: bool) -> HTMLResponse:
    try:
        request = pauses.record(bucket(), run, paused=paused, by=user.get_name())
    except pauses.NotPausable as error:
        raise NotPossible(str(error)) from error
    done = "Workers stop within two minutes." if paused else "Workers start within two minutes."
    return fragment("done.html", message=f"The run is {request}. {done}", link=None)


@router.post("/redo", dependencies=[*MAY_TRIGGER, Depends(LOGS["redo"])])
def redo(run: RunDep, user: GetUserDep, how: Literal["dead_letters", "corrected"] = "dead_letters") -> HTMLResponse:
    """how: the DAG's param."""
    return started(run.job, {"partition": run.partition, "redo": how}, user)


@router.post("/republish", dependencies=[*MAY_TRIGGER, Depends(LOGS["republish"])])
def republish(run: RunDep, user: GetUserDep) -> HTMLResponse:
    return started(run.job, {"partition": run.partition, "republish": run.run_id}, user)


def started(dag_id: str, conf: dict[str, Any], user: Any) -> HTMLResponse:
    """Asks Airflow for a DAG run, and says which it has started."""
    made = dag_runs.start(dag_id, conf, user.get_name())
    return fragment("done.html", message="Airflow has started a DAG run.", link=(dag_run_address(dag_id, made), made))
