"""The page of all runs: those that need attention first, then those that work, then the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
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

router = APIRouter(dependencies=SEES)


def _made(_: str) -> Runs:
    from nightshift.status.runs import Runs

    return Runs(bucket())


_runs: Kept[str, Runs] = Kept(_made)


After = Annotated[str, Query(max_length=400)]
Seen = Annotated[str, Query(max_length=16)]


def listed(dags: frozenset[str], after: str) -> dict[str, Any]:
    """The runs of the jobs with these names, a page of them; above the first one, nights that have no run."""
    runs = _runs["all"]
    found: RunPage = runs.page(jobs=dags & runs.jobs(), after=after or None)
    return {"found": found, "after": after, "without": [] if after else dag_runs.without_run(dags)}


@router.get("/")
def all_runs(user: GetUserDep, dags: ReadableDep, after: After = "") -> HTMLResponse:
    return page("runs.html", user, list=live("runs_list.html", **listed(dags, after), job=""))


@router.get("/list")
def rows(dags: ReadableDep, after: After = "", seen: Seen = "", job: Annotated[str, Query(max_length=250)] = "") -> Response:
    """The list again, if it is another one. job: only its runs."""
    wanted = dags & {job} if job else dags
    return news("runs_list.html", seen, **listed(wanted, after), job=job)


@router.get("/dag-runs/{dag_id}")
def of_a_dag_run(user: GetUserDep, dag_id: str, dag_run_id: Annotated[str, Query(max_length=250)]) -> Response:
    """The run that a DAG run works on, or why there is none."""
    night = dag_runs.night(dag_id, dag_run_id)
    if night is None:
        raise NotThere("Airflow does not know this DAG run.")
    if night.run is not None:
        return RedirectResponse(f"{run_address(night.run.prefix)}?dag_run_id={quote(dag_run_id, safe='')}", 303)
    return page("no_run.html", user, night=night)
