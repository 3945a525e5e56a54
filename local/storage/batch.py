"""Batches of the JSON API: up to 100 requests in one body, each answered as if it had come alone, in order."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from email import message_from_bytes
from email.message import Message
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message as AsgiMessage

from local.storage.errors import invalid

BATCH_MAX = 100
Respond = Callable[[Request], Awaitable[Response]]


async def batch(request: Request, respond: Respond) -> Response:
    """``respond`` answers one request; it is the whole application's."""
    content_type = request.headers.get("content-type", "").encode("latin-1")
    parsed = message_from_bytes(b"Content-Type: " + content_type + b"\r\n\r\n" + await request.body())
    parts = parsed.get_payload()
    if not parsed.is_multipart() or not isinstance(parts, list) or len(parts) > BATCH_MAX:
        raise invalid(f"A batch is a multipart/mixed body of at most {BATCH_MAX} requests.")
    boundary = f"batch_{uuid.uuid4().hex}"
    answer = b""
    for part in parts:
        if not isinstance(part, Message):
            raise invalid("A part of the batch cannot be read.")
        answer += f"--{boundary}\r\nContent-Type: application/http\r\n{_content_id(part)}\r\n".encode()
        response = await respond(_inner_request(request, part))
        if isinstance(response, StreamingResponse):
            raise invalid("A batch cannot hold downloads.")
        answer += _as_http(response) + b"\r\n"
    return Response(answer + f"--{boundary}--\r\n".encode(), media_type=f"multipart/mixed; boundary={boundary}")


def _content_id(part: Message) -> str:
    asked = part.get("Content-ID", "").strip().strip("<>")
    return f"Content-ID: <response-{asked}>\r\n" if asked else ""


def _inner_request(outer: Request, part: Message) -> Request:
    """The request in a part: request line, headers, an empty line, perhaps a body. Raises ApiError 400."""
    payload = part.get_payload(decode=True)
    line, _, rest = (payload if isinstance(payload, bytes) else b"").lstrip().partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) < 2:
        raise invalid("A part of the batch holds no request.")
    method, target = words[0], words[1]
    if target.startswith(("http://", "https://")):
        target = "/" + target.split("/", 3)[3]
    path, _, query = target.partition("?")
    inner = message_from_bytes(rest)
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in inner.items() if name.lower() != "host"
    ]
    headers.append((b"host", outer.headers.get("host", "localhost").encode("latin-1")))
    body = inner.get_payload(decode=True)
    scope = {"type": "http", "method": method.upper(), "raw_path": path.encode("latin-1"), "path": path}
    scope |= {"query_string": query.encode("latin-1"), "headers": headers, "http_version": "1.1"}

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": body if isinstance(body, bytes) else b"", "more_body": False}

    return Request(scope, receive)


def _as_http(response: Response) -> bytes:
    head = f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}\r\n"
    head += "".join(f"{name.decode('latin-1')}: {value.decode('latin-1')}\r\n" for name, value in response.raw_headers)
    return head.encode("latin-1") + b"\r\n" + bytes(response.body)
