"""The page of all runs: those that need attention first, then those that work, then the newest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from nightshift.plugin.address import run_address
from nightshift.plugin.pages import dag_runs
from nightshift.plugin.pages.bucket import Kept, bucket
from nightshift.plugin.pages.errors import NotThere
from nightshift.plugin.pages.html import live, news, page
from nightshift.plugin.pages.rights import SEES, ReadableDep

if TYPE_CHECKING:
    from nightshift.status.runs import RunPage, Runs
    from nightshift.status.summary import Summary

LOOKED_MOST: Final = 500
"""Runs that one look for some of them reads; then the page says where older ones are."""
STATES: Final = ("attention", "open", "paused", "failed", "sealed", "shown", "completed", "replaced")
router = APIRouter(dependencies=SEES)


def _made(_: str) -> Runs:
    from nightshift.status.runs import Runs

    return Runs(bucket())


_runs: Kept[str, Runs] = Kept(_made)


After = Annotated[str, Query(max_length=400)]
Seen = Annotated[str, Query(max_length=16)]


Search = Annotated[str, Query(max_length=200)]
State = Annotated[str, Query(max_length=20)]


def listed(dags: frozenset[str], after: str, search: str = "", state: str = "") -> dict[str, Any]:
    """The runs of the jobs with these names, a page of them; above the first one, nights that have no run.

    search, state: only those that `_wanted` takes, of at most `LOOKED_MOST`.
    """
    from nightshift.status.runs import PAGE_RUNS

    runs = _runs["all"]
    kept: list[Summary] = []
    names, end, looked = dags & runs.jobs(), after or None, 0
    while True:
        found: RunPage = runs.page(jobs=names, after=end)
        kept += [each for each in found.runs if _wanted(each, search, state)]
        end, looked = found.after, looked + len(found.runs)
        if not (search or state) or end is None or looked >= LOOKED_MOST or len(kept) >= PAGE_RUNS:
            break
    without = [] if after or search or state else dag_runs.without_run(dags)
    return {"found": replace(found, runs=tuple(kept)), "after": after, "search": search, "state": state, "without": without}


def _wanted(run: Summary, search: str, state: str) -> bool:
    """search: words that its job, day, id, owner, task and model have, whatever their case. state: as the list says it, or
    attention."""
    texts = (run.run.prefix, run.owner, run.task, run.model)
    said = " ".join(text for text in texts if text).casefold()
    if not all(word in said for word in search.casefold().split()):
        return False
    return bool(run.attention) if state == "attention" else state in ("", run.word, run.state)


@router.get("/")
def all_runs(user: GetUserDep, dags: ReadableDep, after: After = "", search: Search = "", state: State = "") -> HTMLResponse:
    runs = live("runs_list.html", **listed(dags, after, search, state), job="")
    return page("runs.html", user, list=runs, search=search, state=state, states=STATES)


@router.get("/list")
def rows(
    dags: ReadableDep,
    after: After = "",
    seen: Seen = "",
    job: Annotated[str, Query(max_length=250)] = "",
    search: Search = "",
    state: State = "",
) -> Response:
    """The list again, if it is another one. job: only its runs."""
    wanted = dags & {job} if job else dags
    return news("runs_list.html", seen, **listed(wanted, after, search, state), job=job)


@router.get("/dag-runs/{dag_id}")
def of_a_dag_run(user: GetUserDep, dag_id: str, dag_run_id: Annotated[str, Query(max_length=250)]) -> Response:
    """The run that a DAG run works on, or why there is none."""
    night = dag_runs.night(dag_id, dag_run_id)
    if night is None:
        raise NotThere("Airflow does not know this DAG run.")
    if night.run is not None:
        return RedirectResponse(f"{run_address(night.run.prefix)}?dag_run_id={quote(dag_run_id, safe='')}", 303)
    return page("no_run.html", user, night=night)
