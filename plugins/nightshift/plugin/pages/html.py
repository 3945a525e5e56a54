"""Templates as replies. Jinja2 escapes every value: prompts and answers may hold anything."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nightshift.plugin.address import address, airflow_address, dag_run_address, job_address, run_address
from nightshift.plugin.pages import words
from nightshift.plugin.pages.files import static
from nightshift.plugin.pages.tokens import token_for

TEMPLATES: Final = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(words.FILTERS)
    made.globals.update(
        address=address,
        airflow_address=airflow_address,
        dag_run_address=dag_run_address,
        job_address=job_address,
        run_address=run_address,
        static=static,
    )
    return made


def part(name: str, /, **values: Any) -> str:
    """A part of a page."""
    return _environment().get_template(name).render(**values)


def page(name: str, user: Any, /, **values: Any) -> HTMLResponse:
    """A whole page, with the token that its writes must carry."""
    return HTMLResponse(part(name, token=token_for(str(user.get_id())), **values))


def fragment(name: str, /, **values: Any) -> HTMLResponse:
    return HTMLResponse(part(name, **values))


def live(name: str, /, **values: Any) -> Markup:
    """A part that asks for itself again and again. It holds its own digest, so that the answer may be that nothing is new."""
    return Markup(part(name, seen=_digest(name, values), **values))


def news(name: str, seen: str, /, **values: Any) -> Response:
    """Such a part again; 204, which changes nothing on the page, if it is the one with the digest `seen`."""
    digest = _digest(name, values)
    return Response(status_code=204) if digest == seen else HTMLResponse(part(name, seen=digest, **values))


def _digest(name: str, values: dict[str, Any]) -> str:
    return hashlib.sha256(part(name, seen="", **values).encode()).hexdigest()[:16]


def error_page(request: Request, status: int, message: str) -> HTMLResponse:
    """A part if a page asked for one, else a whole page."""
    name = "error.html" if "hx-request" in request.headers else "error_page.html"
    return HTMLResponse(part(name, status=status, message=message, token=""), status)
