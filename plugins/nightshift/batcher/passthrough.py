"""Passes a request through as it is: its body and the reply's in pieces, as they come, in flat memory.

`nightshift.driver.http` reads whole replies, and what is passed through may be a stream that a user reads along. So aiohttp's
client does it, and each request has a connection of its own, which ends with it: if the caller leaves, the server sees that.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Final

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from aiohttp.client_exceptions import ConnectionTimeoutError, ServerTimeoutError
from yarl import URL

from nightshift.batcher.connections import HEAD_MAX_BYTES, HEADERS_MOST, SERVER, Connection, connection_of
from nightshift.batcher.headers import end_to_end, utf8

CONNECT_TIMEOUT_S: Final = 10.0
PIECE_BYTES: Final = 64 << 10
PENDING_BYTES: Final = 4 * PIECE_BYTES
"""Of a reply whose caller takes none of it now: what is read of it ahead, the piece, and what is in the socket's buffer."""
_UNSET: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""What aiohttp would add where a caller has said nothing."""


class Refused(Exception):
    """What a caller gets instead of an answer. reason: as in metrics; empty if it is the server's fault."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def too_large(most: int) -> Refused:
    return Refused(413, f"the request has more than {most} bytes (--max-body-mb)", "body")


class Passer:
    """base_url: as for `nightshift.driver.http.HttpClient`, which checks it. idle_s: how long the server may be silent, and the
    caller take nothing. key: a header for callers who have none of that name."""

    def __init__(self, base_url: str, idle_s: float, key: Mapping[str, str]) -> None:
        self._base = base_url.rstrip("/")
        self._idle_s = idle_s
        self._key = key
        self._session = ClientSession(
            connector=TCPConnector(limit=0, force_close=True, ssl=ssl.create_default_context()),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            timeout=ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._idle_s),
            skip_auto_headers=_UNSET,
            read_bufsize=PIECE_BYTES,
            max_line_size=HEAD_MAX_BYTES,
            max_field_size=HEAD_MAX_BYTES,
            max_headers=HEADERS_MOST,
        )

    async def close(self) -> None:
        await self._session.close()

    async def __call__(
        self, request: web.BaseRequest, begun: bytes = b"", *, whole: bool = False, most: int | None = None
    ) -> web.StreamResponse:
        """Passes one request on. begun: what has been read of its body; whole: that is all. most: bytes that it may have.

        Raises Refused, RequestPayloadError for a body that is not HTTP.
        """
        connection = connection_of(request)
        headers = utf8(end_to_end(request.raw_headers))
        headers.popall("Host", None)
        for name, value in self._key.items():
            headers.setdefault(name, value)
        upload = _Upload(request, connection, begun, whole, most)
        if whole or "Transfer-Encoding" in request.headers:
            headers.popall("Content-Length", None)
        target = URL(self._base + request.raw_path, encoded=True)
        data = begun if whole else upload.pieces() if request.body_exists else None
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, target, headers=headers, data=data, allow_redirects=False
            ) as reply:
                upload.reply = reply
                if reply.status >= 600 or reply.status < 200:
                    raise Refused(502, f"the server answered with the status {reply.status}, which cannot be passed on")
                kept = utf8(end_to_end(reply.raw_headers))
                kept.setdefault("server", SERVER)
                response = web.StreamResponse(status=reply.status, reason=reply.reason, headers=kept)
                if upload.unread:
                    response.force_close()
                await response.prepare(request)
                async for piece in reply.content.iter_any():
                    await self._hand_on(connection, response, piece)
                await response.write_eof()
        except (ClientError, TimeoutError, OSError) as error:
            if response is None:
                raise upload.failure or self._broken(error) from error
            # The caller must not take what it has for the whole.
            connection.cut()
        assert response is not None
        return response

    async def _hand_on(self, connection: Connection, response: web.StreamResponse, piece: bytes) -> None:
        """Its caller has to take the piece. Raises TimeoutError."""
        connection.hold(PENDING_BYTES)
        connection.reads()
        async with asyncio.timeout(self._idle_s):
            await response.write(piece)
        connection.works()
        connection.hold(-PENDING_BYTES)

    def _broken(self, error: Exception) -> Refused:
        if isinstance(error, ConnectionTimeoutError):
            return Refused(504, f"no connection to the server within {CONNECT_TIMEOUT_S:g} s")
        if isinstance(error, TimeoutError | ServerTimeoutError):
            return Refused(504, f"the server was silent for {self._idle_s:g} s")
        if isinstance(error, OSError):
            return Refused(502, f"no connection to the server: {error}")
        return Refused(502, f"the server's reply is not HTTP/1.1, or it broke off: {error}")


class _Upload:
    """A caller's body on its way. failure: why it ended early, if that is the caller's fault; then the reply, if one has
    begun, ends too. unread: some of it is to come."""

    def __init__(self, request: web.BaseRequest, connection: Connection, begun: bytes, whole: bool, most: int | None) -> None:
        self._request = request
        self._connection = connection
        self._begun = begun
        self._most = most
        self.unread = request.body_exists and not whole
        self.failure: Exception | None = None
        self.reply: ClientResponse | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        size = len(self._begun)
        try:
            self._within(size)
            if self._begun:
                yield self._begun
                self._begun = b""
                self._connection.hold(-size)
            async for piece in self._request.content.iter_any():
                size += len(piece)
                self._connection.hold(-min(len(piece), self._connection.held))
                self._within(size)
                yield piece
        except (web.RequestPayloadError, Refused) as error:
            self.failure = error
            if self.reply is not None:
                self.reply.close()
            raise
        self.unread = False
        self._connection.works()

    def _within(self, size: int) -> None:
        if self._most is not None and size > self._most:
            raise too_large(self._most)
