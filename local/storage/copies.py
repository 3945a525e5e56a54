"""What copies, compositions and moves need; then they are refused, because nothing in nightshift sends them."""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from local.storage.errors import not_implemented
from local.storage.identities import require, require_write
from local.storage.store import Store


async def copy(request: Request, store: Store, bucket: str, name: str, to: str, new: str) -> Response:
    """``objects.copy`` and ``objects.rewrite``."""
    refuse(request, store, f"{bucket}/{name}", (to, new))


async def move(request: Request, store: Store, bucket: str, name: str, new: str) -> Response:
    require(request, store, "storage.objects.move", bucket, name)
    refuse(request, store, f"{bucket}/{name}", (bucket, new))


async def compose(request: Request, store: Store, bucket: str, name: str) -> Response:
    require_write(request, store, bucket, name)
    raise not_implemented(f"compose {bucket}/{name}")


def refuse(request: Request, store: Store, source: str, target: tuple[str, str]) -> NoReturn:
    """source: BUCKET/NAME, as the XML API's header has it. Raises ApiError 403 and 404, or 400 because there are no copies."""
    from_bucket, _, from_name = unquote(source).lstrip("/").partition("/")
    require(request, store, "storage.objects.get", from_bucket, from_name)
    require_write(request, store, *target)
    raise not_implemented(f"a copy of {source}")
