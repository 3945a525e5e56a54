"""The pages' own scripts, styles and pictures. They hold no facts, yet the routes ask who the user is, as all others do."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from nightshift.plugin.address import address
from nightshift.plugin.pages.errors import NotThere
from nightshift.plugin.pages.rights import SEES

FOLDER: Final = Path(__file__).parent / "static"
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
router = APIRouter(dependencies=SEES)


@cache
def _files() -> dict[str, bytes]:
    """By name: a request chooses among these, and never names a path."""
    return {file.name: file.read_bytes() for file in FOLDER.iterdir() if file.suffix in TYPES}


def static(name: str) -> str:
    """The address of a file, which changes with its content, so that browsers may keep it."""
    return f"{address('/static/' + name)}?{hashlib.sha256(_files()[name]).hexdigest()[:12]}"


@router.get("/static/{name}")
def file(name: str) -> Response:
    if (body := _files().get(name)) is None:
        raise NotThere("There is no such file.")
    kind = TYPES[Path(name).suffix]
    return Response(body, media_type=f"{kind}; charset=utf-8", headers={"Cache-Control": "private, max-age=31536000"})
