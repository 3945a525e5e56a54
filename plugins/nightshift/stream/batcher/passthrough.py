"""Passes a request through as it is: its body and the reply's in pieces, as they come, in flat memory.

`nightshift.driver.http` reads whole replies, and what is passed through may be a stream that a user reads along. So each such
request has a connection of its own, which ends with it: if the caller leaves, the upstream sees that, and stops its work.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

import httptools

from nightshift.stream.batcher.headers import end_to_end
from nightshift.stream.batcher.routes import error_body

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

CONNECT_TIMEOUT_S: Final = 10.0
PIECE_BYTES: Final = 64 << 10
HEAD_MAX_BYTES: Final = 128 << 10
"""Of a reply's status line and headers."""


class Broken(Exception):
    """There is no whole reply. status: what the caller gets, if the reply has not begun."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Passer:
    """base_url: as for `nightshift.driver.http.HttpClient`, which checks it. idle_s: how long the server may be
    silent, and the caller take nothing."""

    def __init__(self, base_url: str, idle_s: float) -> None:
        url = urlsplit(base_url)
        assert url.hostname is not None
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._host = url.hostname
        self._port = url.port or (443 if self._ssl else 80)
        name = b"[%b]" % url.hostname.encode() if ":" in url.hostname else url.hostname.encode("idna")
        self._authority = name if url.port is None else b"%b:%d" % (name, url.port)
        self._prefix = url.path.rstrip("/").encode()
        self._idle_s = idle_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send, body: bytes | None = None) -> None:
        """Passes one request on. body: if it has been read already; then `receive` only tells that the caller has left."""
        reply = _Reply(send, head_only=scope["method"] == "HEAD")
        try:
            await self._exchange(scope, receive, reply, body)
        except Broken as error:
            if not reply.begun:
                await respond(send, error.status, {}, error_body(scope["path"])(error.status, str(error)))
            # Otherwise the server closes the connection: the caller must not take what it has for the whole.

    async def _exchange(self, scope: Scope, receive: Receive, reply: _Reply, body: bytes | None) -> None:
        """Raises Broken. Returns early if the caller leaves."""
        reader, writer = await self._connect()
        download = asyncio.ensure_future(self._download(reader, reply))
        upload = asyncio.ensure_future(self._upload(scope, receive, writer, body))
        try:
            await asyncio.wait((download, upload), return_when=asyncio.FIRST_COMPLETED)
            # The upstream may refuse a body before it has read it: then the reply says more than the upload's failure.
            if download.done() or not upload.result():
                await download
        finally:
            for task in (download, upload):
                task.cancel()
            writer.transport.abort()
            await asyncio.gather(download, upload, return_exceptions=True)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(self._host, self._port, ssl=self._ssl, limit=PIECE_BYTES)
        except TimeoutError:
            raise Broken(504, f"no connection to the server within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise Broken(502, f"no connection to the server: {error}") from error

    async def _upload(self, scope: Scope, receive: Receive, writer: asyncio.StreamWriter, body: bytes | None) -> bool:
        """Sends the request; returns True when the caller has left, and False if the upstream reads no more."""
        head, chunked = self._head(scope, body)
        try:
            writer.write(head)
            if body is not None:
                writer.write(body)
            await writer.drain()
            while (message := await receive())["type"] == "http.request":
                piece = message.get("body", b"")
                if piece:
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                if chunked and not message.get("more_body", False):
                    writer.write(b"0\r\n\r\n")
                    chunked = False
                await writer.drain()
        except OSError:
            return False
        return True

    def _head(self, scope: Scope, body: bytes | None) -> tuple[bytes, bool]:
        """The request up to its body, and whether the body follows in chunks."""
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        lines = [b"%b %b%b%b HTTP/1.1" % (scope["method"].encode(), self._prefix, scope["raw_path"], query)]
        lines += [b"Host: " + self._authority, b"Connection: close"]
        chunked = body is None and any(name == b"transfer-encoding" for name, _ in scope["headers"])
        for name, value in end_to_end(scope["headers"]):
            # A length beside another framing would let two servers see two different requests.
            if name != "host" and not (name == "content-length" and (chunked or body is not None)):
                lines.append(f"{name}: {value}".encode("latin-1"))
        if chunked:
            lines.append(b"Transfer-Encoding: chunked")
        elif body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n", chunked

    async def _download(self, reader: asyncio.StreamReader, reply: _Reply) -> None:
        """Hands the reply on as it comes. Raises Broken."""
        while not reply.complete:
            try:
                async with asyncio.timeout(self._idle_s):
                    data = await reader.read(PIECE_BYTES)
            except TimeoutError:
                raise Broken(504, f"the server was silent for {self._idle_s:g} s") from None
            except OSError as error:
                raise Broken(502, f"the server broke off: {error}") from error
            try:
                async with asyncio.timeout(self._idle_s):
                    await reply.feed(data)
            except TimeoutError:
                raise Broken(504, f"the caller took nothing for {self._idle_s:g} s") from None


class _Reply:
    """Parses a reply, and sends on what is there of it."""

    def __init__(self, send: Send, *, head_only: bool) -> None:
        self._send = send
        self._head_only = head_only
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._headed = False
        self._fed = 0
        self._status = 0
        self.begun = False
        self.complete = False

    async def feed(self, data: bytes) -> None:
        """data: empty at the end of the connection. Raises Broken."""
        try:
            if data:
                self._parser.feed_data(data)
            elif self._headed and not any(
                name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self._headers
            ):
                self.complete = True  # A body that ends with the connection.
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:
                raise Broken(502, f"the server's reply is not HTTP/1.1: {error}") from error
        if not data and not self.complete:
            raise Broken(502, "the server closed the connection before the end of its reply")
        self._fed += len(data)
        if not self._headed:
            if self._fed > HEAD_MAX_BYTES:
                raise Broken(502, f"the server's reply has more than {HEAD_MAX_BYTES} bytes of headers")
            return
        if not self.begun:
            if self._status >= 600 or self._status == 101:
                raise Broken(502, f"the server answered with the status {self._status}, which cannot be passed on")
            self.begun = True
            kept = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in end_to_end(self._headers)]
            await self._send({"type": "http.response.start", "status": self._status, "headers": kept})
        body = b"".join(self._pieces)
        self._pieces.clear()
        if body or self.complete:
            await self._send({"type": "http.response.body", "body": body, "more_body": not self.complete})

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self.complete:
            self._status = self._parser.get_status_code()
            self._headed = self._status >= 200 or self._status == 101
            if not self._headed:
                self._headers = []
            elif self._head_only:
                self.complete = True

    def on_body(self, data: bytes) -> None:
        if not self.complete:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self._headed:
            self.complete = True


async def respond(send: Send, status: int, headers: MutableMapping[str, str], body: bytes) -> None:
    """A whole reply to a caller, as JSON unless the headers say otherwise."""
    found = {"content-type": "application/json", **headers, "content-length": str(len(body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    # In pieces: the server takes each only when the caller has read most of those before it.
    for start in range(0, len(body), PIECE_BYTES):
        await send({"type": "http.response.body", "body": body[start : start + PIECE_BYTES], "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
