"""The application: its routes, what every reply carries, and errors as pages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from nightshift.formats import UnreadableFormat
from nightshift.plugin.pages import actions, files, job, run, runs
from nightshift.plugin.pages.errors import PageError
from nightshift.plugin.pages.html import error_page
from nightshift.run.opening import NoSuchRun
from nightshift.run.plan import PlanError
from nightshift.store import StoreUnavailable, refusal_of

log = logging.getLogger(__name__)

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'self'"
)
"""No text of a prompt or an answer can become a script: only our own files run."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_WORDS: Final = {
    401: "You are not signed in to Airflow, or your session has ended. Sign in, and load this page again.",
    403: "You may not see or do this. Whoever administers Airflow grants rights on a DAG, its runs and its XComs.",
    404: "There is no such page.",
    405: "There is no such page.",
}


def make() -> FastAPI:
    """Without FastAPI's own pages, which would list routes to anybody."""
    app = FastAPI(title="nightshift", docs_url=None, redoc_url=None, openapi_url=None)
    for module in (runs, job, run, actions, files):
        app.include_router(module.router)
    app.middleware("http")(_with_headers)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(PageError, _explained)
    for kind in (NoSuchRun, PlanError, UnreadableFormat):
        app.add_exception_handler(kind, _not_there)
    app.add_exception_handler(StoreUnavailable, _no_answer)
    return app


async def _with_headers(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await go_on(request)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


async def _refused(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, HTTPException), "it is registered for this kind"
    return error_page(request, error.status_code, _WORDS.get(error.status_code, str(error.detail)))


async def _not_valid(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, RequestValidationError), "it is registered for this kind"
    named = ", ".join(sorted({str(each["loc"][-1]) for each in error.errors()}))
    return error_page(request, 422, f"This address is not complete or has a wrong value: {named}.")


async def _explained(request: Request, error: Exception) -> HTMLResponse:
    assert isinstance(error, PageError), "it is registered for this kind"
    return error_page(request, error.status, str(error))


async def _not_there(request: Request, error: Exception) -> HTMLResponse:
    return error_page(request, 404, str(error))


async def _no_answer(request: Request, error: Exception) -> HTMLResponse:
    log.warning("The bucket does not answer: %s", error)
    if refusal := refusal_of(error):
        return error_page(request, 500, f"The bucket refuses the account of Airflow's web server: {refusal}. {refusal.remedy}.")
    return error_page(request, 503, f"The bucket does not answer: {error}. The page tries again by itself.")
