"""The page of one job: its runs, and previews of what its file says now."""

from __future__ import annotations

from typing import Annotated, Any, Final

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, Query
from fastapi.responses import HTMLResponse

from nightshift.plugin.pages import facts
from nightshift.plugin.pages.actions import started
from nightshift.plugin.pages.errors import Refused
from nightshift.plugin.pages.html import fragment, live, page
from nightshift.plugin.pages.rights import MAY_TRIGGER, SEES, SEES_ROWS, JobDep, may
from nightshift.plugin.pages.runs import After, listed

PREVIEW_DAG: Final = "nightshift_preview"
LOG: Final = action_logging(event="nightshift_preview")
ROWS: Final = 20
router = APIRouter(prefix="/jobs/{dag_id}")

Partition = Annotated[str, Query(max_length=64, pattern=r"^[0-9A-Za-z:_.+-]*$")]


@router.get("", dependencies=SEES)
def one_job(job: JobDep, user: GetUserDep, after: After = "") -> HTMLResponse:
    runs = live("runs_list.html", **listed(frozenset({job}), after), job=job)
    return page("job.html", user, job=job, list=runs, rows=may(user, job, "GET", DagAccessEntity.XCOM))


@router.get("/previews", dependencies=SEES_ROWS)
def previews(job: JobDep, user: GetUserDep, partition: Partition = "") -> HTMLResponse:
    """A preview may compare with another job: it is shown to those who may read the rows of both."""

    def readable(preview: dict[str, Any]) -> bool:
        return all(may(user, each["job"], "GET", DagAccessEntity.XCOM) for each in preview["variants"])

    found = [each for each in facts.previews(job) if readable(each)]
    return fragment("previews.html", job=job, partition=partition, previews=found, may_try=_may_try(user, job), rows=ROWS)


@router.get("/ask/preview", dependencies=SEES_ROWS)
def ask(job: JobDep, partition: Partition = "") -> HTMLResponse:
    return fragment("ask_preview.html", job=job, partition=partition, rows=ROWS)


@router.post("/preview", dependencies=[*MAY_TRIGGER, *SEES_ROWS, Depends(LOG)])
def preview(job: JobDep, user: GetUserDep, partition: Partition = "") -> HTMLResponse:
    """partition: empty for the last one that is over."""
    if not _may_try(user, job):
        raise Refused(f"You may not trigger the DAG {PREVIEW_DAG}, which tries jobs.")
    return started(PREVIEW_DAG, {"job": job, "rows": ROWS, **({"partition": partition} if partition else {})}, user)


def _may_try(user: Any, job: str) -> bool:
    """Whether a user may have rows of this job tried, which another DAG does."""
    return may(user, job, "POST") and may(user, PREVIEW_DAG, "POST")
