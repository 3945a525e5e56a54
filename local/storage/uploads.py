"""Uploads of the JSON API: media (the body is the content), multipart (metadata, then content) and resumable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from local.storage.bodies import Body, Incoming
from local.storage.errors import ApiError, invalid
from local.storage.identities import require_replace, require_write
from local.storage.json_api import json_body
from local.storage.preconditions import Preconditions
from local.storage.resources import base_url, object_fields, object_resource
from local.storage.sessions import Session
from local.storage.store import Store
from local.storage.stored import Fields


async def upload(request: Request, store: Store, bucket: str) -> Response:
    """``POST /upload/storage/v1/b/BUCKET/o?uploadType=...``"""
    if "upload_id" in request.query_params:
        # gcsfs sends a session's bytes by POST; Cloud Storage accepts that too.
        return await continue_resumable(request, store, bucket)
    kind = request.query_params.get("uploadType")
    if kind == "media":
        return await _media(request, store, bucket)
    if kind == "multipart":
        return await _multipart(request, store, bucket)
    if kind == "resumable":
        return await _start_resumable(request, store, bucket)
    raise invalid(f"uploadType: {kind!r} is not one of media, multipart, resumable")


async def _media(request: Request, store: Store, bucket: str) -> Response:
    stated = stated_digests(request.headers)
    with store.bodies.incoming() as incoming:
        async for data in request.stream():
            incoming.write(data)
        resource = {"contentType": request.headers.get("content-type")}
        return _store(request, store, bucket, resource, _finished(incoming, stated))


async def _multipart(request: Request, store: Store, bucket: str) -> Response:
    described, content_type, content = _related_parts(request.headers.get("content-type", ""), await request.body())
    resource = {"contentType": content_type} | described
    stated = stated_digests(request.headers) | _digests(resource)
    with store.bodies.incoming() as incoming:
        incoming.write(content)
        return _store(request, store, bucket, resource, _finished(incoming, stated))


def _store(request: Request, store: Store, bucket: str, resource: Fields, body: Body) -> Response:
    name, fields = _described(request, resource)
    require_write(request, store, bucket, name)
    stored = store.catalog.put(bucket, name, body, fields, Preconditions.from_query(request.query_params))
    return JSONResponse(object_resource(request, stored))


def _described(request: Request, resource: Fields) -> tuple[str, Fields]:
    """Name and fields of the new object: the query overrides the resource."""
    query = request.query_params
    name = query.get("name") or resource.get("name")
    if not name or not isinstance(name, str):
        raise invalid("The object has no name.")
    if encoding := query.get("contentEncoding"):
        resource = resource | {"contentEncoding": encoding}
    return name, object_fields(resource)


def _related_parts(content_type: str, body: bytes) -> tuple[Fields, str | None, bytes]:
    """Metadata, content type and content of a ``multipart/related`` body. Raises ApiError 400."""
    found = re.search(r"boundary=(?:\"([^\"]+)\"|'([^']+)'|([^;\s]+))", content_type)
    if found is None:
        raise invalid("A multipart upload needs a Content-Type with a boundary.")
    boundary = b"--" + next(group for group in found.groups() if group).encode()
    end = body.rfind(b"\n" + boundary + b"--")
    _, opening, rest = body[:end].partition(boundary)
    description, second, content_part = rest.partition(b"\n" + boundary)
    if end < 0 or not opening or not second:
        raise invalid("A multipart upload has two parts, metadata and content.")
    _, metadata = _headers_and_rest(description)
    headers, content = _headers_and_rest(content_part)
    # A line break before the closing boundary is part of the boundary.
    content = content[:-1] if body[end - 1 : end] == b"\r" else content
    try:
        resource = json.loads(metadata) if metadata.strip() else {}
    except ValueError as error:
        raise invalid(f"The metadata of a multipart upload is not JSON: {error}") from None
    return resource, headers.get("content-type"), content


def _headers_and_rest(part: bytes) -> tuple[dict[str, str], bytes]:
    """A part begins at the end of its boundary's line; an empty line separates headers from content."""
    head, content = re.split(rb"\r?\n\r?\n", part, maxsplit=1) if re.search(rb"\r?\n\r?\n", part) else (part, b"")
    lines = [line.partition(":") for line in head.decode("latin-1").splitlines() if ":" in line]
    return {name.strip().lower(): value.strip() for name, _, value in lines}, content


# Resumable uploads


async def _start_resumable(request: Request, store: Store, bucket: str) -> Response:
    resource = await json_body(request)
    if content_type := request.headers.get("x-upload-content-type"):
        resource = {"contentType": content_type} | resource
    name, fields = _described(request, resource)
    require_write(request, store, bucket, name)
    stated = _digests(resource) | stated_digests(request.headers)
    session = store.sessions.start(bucket, name, fields, Preconditions.from_query(request.query_params), stated)
    return Response(
        status_code=200, headers={"Location": session_url(request, bucket, session), "X-GUploader-UploadID": session.id}
    )


def session_url(request: Request, bucket: str, session: Session) -> str:
    return f"{base_url(request)}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={session.id}"


async def continue_resumable(request: Request, store: Store, bucket: str) -> Response:
    """``PUT`` to a session: more bytes, the last bytes, or a query for how many have arrived.

    It needs no permission: whoever has the session's address may go on with it. Only what would replace an object that came
    to be there in the meantime needs the right to delete it.
    """
    session = store.sessions.get(request.query_params.get("upload_id", ""))
    async with store.sessions.lock(session):
        session = store.sessions.get(session.id)
        if session.result is not None:
            return JSONResponse(session.result)
        first, total = _content_range(request.headers.get("content-range"))
        incoming = store.sessions.incoming(session)
        if first is not None:
            await _append(request, incoming, first)
        if "content-range" not in request.headers:
            total = incoming.size
        if total is None or incoming.size < total:
            return _incomplete(incoming)
        if incoming.size > total:
            raise invalid(f"The session has received {incoming.size} bytes, more than the {total} announced.")
        check_digests(incoming.finish(), session.digests | stated_digests(request.headers))
        require_replace(request, store, session.bucket, session.name)
        return JSONResponse(store.sessions.finish(session, partial(object_resource, request)))


async def cancel_resumable(request: Request, store: Store, bucket: str) -> Response:
    session = store.sessions.get(request.query_params.get("upload_id", ""))
    async with store.sessions.lock(session):
        store.sessions.drop(store.sessions.get(session.id))
    return Response(status_code=499)


async def _append(request: Request, incoming: Incoming, first: int) -> None:
    """Writes the request's bytes, which begin at offset ``first``, leaving out those that have already arrived."""
    known = incoming.size - first
    if known < 0:
        raise invalid(f"The bytes begin at {first}, but only {incoming.size} have arrived.")
    try:
        async for data in request.stream():
            incoming.write(data[known:])
            known = max(0, known - len(data))
    finally:
        incoming.pause()


def _content_range(header: str | None) -> tuple[int | None, int | None]:
    """(offset of the first byte or None for a query, total size or None if unknown). Raises ApiError 400."""
    if header is None:
        return 0, None
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", header.strip())
    if found is None:
        raise invalid(f"Not a Content-Range: {header!r}")
    first, _, total = found.groups()
    return None if first is None else int(first), None if total == "*" else int(total)


def _incomplete(incoming: Incoming) -> Response:
    headers = {"Range": f"bytes=0-{incoming.size - 1}"} if incoming.size else {}
    return Response(status_code=308, headers=headers)


# Digests that a client states


def stated_digests(headers: Mapping[str, str]) -> dict[str, str]:
    """``crc32c`` and ``md5``, base64, from ``x-goog-hash`` and ``content-md5``."""
    pairs = (item.strip().partition("=") for item in headers.get("x-goog-hash", "").split(","))
    stated = {name: value for name, _, value in pairs if name in ("crc32c", "md5")}
    if md5 := headers.get("content-md5"):
        stated["md5"] = md5
    return stated


def _digests(resource: dict[str, Any]) -> dict[str, str]:
    return {name: str(resource[key]) for name, key in (("crc32c", "crc32c"), ("md5", "md5Hash")) if resource.get(key)}


def check_digests(body: Body, stated: dict[str, str]) -> None:
    """Raises ApiError 400 if the content that arrived is not the content that was sent."""
    for name, actual in (("crc32c", body.crc32c), ("md5", body.md5)):
        if name in stated and stated[name] != actual:
            message = f"Provided {name} {stated[name]!r} doesn't match calculated {name} {actual!r}."
            raise ApiError(400, "invalid", "BadDigest", message)


def _finished(incoming: Incoming, stated: dict[str, str]) -> Body:
    body = incoming.finish()
    check_digests(body, stated)
    return body
