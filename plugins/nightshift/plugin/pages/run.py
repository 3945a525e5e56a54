"""The page of one run. Its parts are asked for one by one, so that the first screen waits for none of the slower ones."""

from __future__ import annotations

from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, Response

from nightshift.plugin.pages import dag_runs, facts, plots
from nightshift.plugin.pages.html import fragment, live, news, page
from nightshift.plugin.pages.rights import SEES, SEES_ROWS, RunDep, may

router = APIRouter(prefix="/runs/{dag_id}/{partition}/{run}")

DagRunId = Annotated[str, Query(max_length=250)]
Seen = Annotated[str, Query(max_length=16)]
DEAD_LETTERS_A_PAGE: Final = 20
DONE: Final = ("published", "failed", "unreadable")
"""States of a run that nothing changes but another DAG run."""


@router.get("", dependencies=SEES)
def one_run(run: RunDep, user: GetUserDep, dag_run_id: DagRunId = "") -> HTMLResponse:
    """dag_run_id: the one from which a user has come, if any; else the last one that worked on the run."""
    shown = _now(run, user, dag_run_id)
    rows = may(user, run.job, "GET", DagAccessEntity.XCOM)
    parts = {"now": live("run_now.html", **shown), "work": live("run_work.html", **shown)}
    return page("run.html", user, run=run, rows=rows, **parts)


@router.get("/now", dependencies=SEES)
def now(run: RunDep, user: GetUserDep, dag_run_id: DagRunId = "", seen: Seen = "") -> Response:
    """The first screen again, if it is another one."""
    return news("run_now.html", seen, **_now(run, user, dag_run_id))


@router.get("/work", dependencies=SEES)
def work(run: RunDep, user: GetUserDep, dag_run_id: DagRunId = "", seen: Seen = "") -> Response:
    """Tasks and workers again, if there is anything new."""
    return news("run_work.html", seen, **_now(run, user, dag_run_id))


def _now(run: Any, user: Any, dag_run_id: str) -> dict[str, Any]:
    look = facts.of[run].look().to_json()
    worked = dag_runs.that_worked_on(run)
    shown = dag_run_id or (worked[0].dag_run_id if worked else look["summary"]["opened_by"])
    night = dag_runs.night(run.job, shown)
    over = look["summary"]["state"] in DONE and (night is None or night.over)
    return {
        "run": run,
        "look": look,
        "night": night,
        "other_nights": [each for each in worked if each.dag_run_id != shown],
        "dag_run_id": dag_run_id,
        "every_s": None if over else 5,
        "actions": _actions(look, run, user),
        "files": facts.folder_link(run),
    }


def _actions(look: dict[str, Any], run: Any, user: Any) -> list[str]:
    """What the state of the run allows, of what the user may do. The routes check the rights again."""
    state, dead = look["summary"]["state"], look["summary"]["dead_letters"]
    found = []
    if may(user, run.job, "PUT"):
        if look["summary"]["paused_by"]:
            found.append("resume")
        elif state in ("unplanned", "open"):
            found.append("pause")
    if may(user, run.job, "POST"):
        # Of a run that was completed or replaced, the page of the one that is shown offers it.
        if dead and state in ("published", "failed", "sealed") and look["summary"]["place"] in ("shown", None):
            found.append("redo")
        if state in ("published", "sealed"):
            found.append("republish")
    return found


@router.get("/dead", dependencies=SEES_ROWS)
def dead_letters(
    run: RunDep,
    reason: Annotated[str, Query(max_length=100)] = "",
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[int, Query(ge=-1)] = -1,
) -> HTMLResponse:
    found = (
        facts.of[run].dead_letters.page(reason=reason or None, search=search, after=after, count=DEAD_LETTERS_A_PAGE).to_json()
    )
    if after >= 0:
        return fragment("dead_letters_more.html", run=run, found=found, reason=reason, search=search)
    summary = facts.of[run].look().summary
    return fragment("dead_letters.html", run=run, found=found, reason=reason, search=search, summary=summary)


@router.get("/samples", dependencies=SEES_ROWS)
def samples(run: RunDep) -> HTMLResponse:
    return fragment("samples.html", run=run, found=facts.of[run].samples().to_json())


@router.get("/distributions", dependencies=SEES_ROWS)
def distributions(run: RunDep) -> HTMLResponse:
    found = facts.of[run].compared().to_json()
    now, then = found["now"], found["earlier"]
    before = {each["of"]: each for each in then["histograms"]} if then else {}
    return fragment(
        "distributions.html",
        run=run,
        found=found,
        histograms=[plots.histograms(each, before.get(each["of"])) for each in now["histograms"]],
        labels={name: plots.labels(each, then["labels"].get(name) if then else None) for name, each in now["labels"].items()},
        size=(plots.WIDTH, plots.HEIGHT),
    )
