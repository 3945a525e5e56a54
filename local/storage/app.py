"""The ASGI application: finds the operation that a request names, and phrases refusals in the terms of its API."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import unquote
from xml.sax.saxutils import escape

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from local.storage import copies, json_api, uploads, xml_api
from local.storage.errors import ApiError, not_implemented
from local.storage.identities import Identities
from local.storage.store import Store

HEALTH_PATH = "/_health"
Operation = Callable[..., Awaitable[Response]]

BUCKET = r"/(?:download/)?storage/v1/b/([^/]+)"
OBJECT = BUCKET + r"/o/([^/]+)"
UPLOAD = r"/(?:resumable/)?upload/storage/v1/b/([^/]+)/o"
# Paths are matched before percent-decoding, because an object's name may contain slashes. The JSON API comes first, so the
# XML API cannot reach a bucket named like its first path segments ("storage", "upload").
OPERATIONS: list[tuple[str, dict[str, Operation]]] = [
    (r"/storage/v1/b", {"GET": json_api.list_buckets, "POST": json_api.create_bucket}),
    (
        BUCKET,
        {
            "GET": json_api.get_bucket,
            "PATCH": json_api.patch_bucket,
            "PUT": json_api.replace_bucket,
            "DELETE": json_api.delete_bucket,
        },
    ),
    (BUCKET + "/iam", {"GET": json_api.get_policy, "PUT": json_api.set_policy}),
    (BUCKET + "/iam/testPermissions", {"GET": json_api.test_permissions}),
    (BUCKET + "/o", {"GET": json_api.list_objects}),
    (OBJECT + "/compose", {"POST": copies.compose}),
    (OBJECT + "/(?:copyTo|rewriteTo)/b/([^/]+)/o/([^/]+)", {"POST": copies.copy}),
    (OBJECT + "/moveTo/o/([^/]+)", {"POST": copies.move}),
    (
        OBJECT,
        {
            "GET": json_api.get_object,
            "HEAD": json_api.get_object,
            "PATCH": json_api.patch_object,
            "PUT": json_api.replace_metadata,
            "DELETE": json_api.delete_object,
        },
    ),
    (UPLOAD, {"POST": uploads.upload, "PUT": uploads.continue_resumable, "DELETE": uploads.cancel_resumable}),
    (r"/([^/_][^/]*)/?", {"GET": xml_api.get_bucket, "HEAD": xml_api.get_bucket}),
    (
        r"/([^/_][^/]*)/(.+)",
        {
            "GET": xml_api.get_object,
            "HEAD": xml_api.get_object,
            "PUT": xml_api.put_object,
            "POST": xml_api.post_object,
            "DELETE": xml_api.delete_object,
        },
    ),
]
ROUTES = [(re.compile(pattern), operations) for pattern, operations in OPERATIONS]
# Nothing in nightshift sends these. Without this rule they would be taken for XML API requests.
NOT_THERE = re.compile(r"/batch(?:/storage/v1)?/?")
JSON_PATH = re.compile(r"/(?:(?:download/|upload/|resumable/upload/)?storage/v1|batch)(?:/|$)")


class Application:
    """Answers requests from one store. Handlers touch the store only between two awaits, so each step is atomic."""

    def __init__(self, store: Store, identities: Identities) -> None:
        self._store = store
        self._identities = identities

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"Only HTTP is served, not {scope['type']}.")
        request = Request(scope, receive)
        try:
            response = await self.respond(request)
        except ClientDisconnect:
            # There is no client left to answer; the body that was being received has been discarded.
            return
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        path = request.scope["raw_path"].decode("latin-1")
        try:
            if path == HEALTH_PATH:
                return PlainTextResponse("ok")
            request.state.caller = self._identities.caller(request)
            operation, names = _route(request.method, path)
            return await operation(request, self._store, *names)
        except ApiError as error:
            # A client that is still sending would not see the answer: in HTTP/1.1 the body must be read first.
            with suppress(RuntimeError):
                async for _ in request.stream():
                    pass
            return _json_refusal(error) if JSON_PATH.match(path) else _xml_refusal(error)


def _route(method: str, path: str) -> tuple[Operation, tuple[str, ...]]:
    """The operation and the names in its path, decoded. Raises ApiError 400, 404 and 405."""
    if method == "POST" and NOT_THERE.fullmatch(path):
        raise not_implemented(f"POST {path}")
    for pattern, operations in ROUTES:
        if found := pattern.fullmatch(path):
            if method not in operations:
                raise ApiError(405, "methodNotAllowed", "MethodNotAllowed", f"{method} is not supported on {path}")
            return operations[method], tuple(unquote(name) for name in found.groups())
    raise ApiError(404, "notFound", "NotFound", f"No such address: {path}")


def _json_refusal(error: ApiError) -> Response:
    if error.status == 304:
        return Response(status_code=304)
    reason = {"domain": "global", "reason": error.reason, "message": error.message}
    return JSONResponse({"error": {"code": error.status, "message": error.message, "errors": [reason]}}, error.status)


def _xml_refusal(error: ApiError) -> Response:
    if error.status == 304:
        return Response(status_code=304)
    details = f"<Message>{escape(error.message)}</Message>"
    if error.status == 403:
        details = f"<Message>Access denied.</Message><Details>{escape(error.message)}</Details>"
    content = f"<Error><Code>{error.code}</Code>{details}</Error>"
    return Response(xml_api.DECLARATION + content, error.status, media_type="application/xml")
