"""A small HTTP/1.1 client for one host: kept-alive connections, one request at a time on each, one future per request.

It exists because it is cheap: a general client takes several times its CPU, and at thousands of requests a second the
accelerator waits for the client's CPU. llhttp (httptools) parses; cookies, redirects, proxies, compression and limits on
connections are left out. A connection is reused only after a complete reply that asked for no close and had no bytes after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from nightshift.driver import descriptors
from nightshift.driver.http_heads import Heads

CONNECT_TIMEOUT_S: Final = 10.0
CHECK_TIMEOUT_S: Final = 60.0
"""A server whose queue is full may take long to answer even a small GET."""
BODY_MAX_BYTES: Final = 256 << 20
SILENT_MAX_BYTES: Final = 128 << 10
"""More than this in a row without a byte of body (headers, trailers, 1xx replies) is not a reply. Counted per read."""
JOINED_MAX_BYTES: Final = 64 << 10
"""A smaller body is written together with its head; of a larger one no copy is made."""
KEEPALIVE_IDLE_S: Final = 60
"""Balancers and NATs drop a silent connection after minutes, and a long answer is minutes of silence."""


class ConnectionLost(OSError):
    """Refused, reset, closed in the middle of a reply, or a reply that is not HTTP. Its message never shows what was sent."""


class ReplyTooLarge(ConnectionLost):
    """The reply's body is larger than the client accepts."""


class NotConnected(ConnectionLost):
    """There was no connection, so the server has never had the request."""


class NoDescriptors(ConnectionLost):
    """This process, or its machine, has no file descriptor left for another connection."""


class _Unanswered(ConnectionLost):
    """Lost before a byte of the reply: on a connection used before, most likely closed while it was idle."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole reply. headers: names in lower case, values as Latin-1 text, repeated ones joined by a comma."""

    status: int
    headers: dict[str, str]
    body: bytes


Get = Callable[[str], Awaitable[Response]]
"""A GET of a path."""
Count = Callable[[int], None]


class HttpClient:
    """Requests to the host of `base_url` (http or https; a path in it is put before every request's path).

    headers: sent with every request. ssl_context: the default one if None. body_max_bytes: of one reply. connection_life_s: a
    connection that is older is not used again, so that servers which join behind one address get their part. Opens one
    connection per concurrent request. Raises ValueError for a URL or headers that cannot be sent; its message
    shows no header's value.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        body_max_bytes: int = BODY_MAX_BYTES,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        connection_life_s: float = math.inf,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("the engine's URL must be http://HOST[:PORT][/PATH] or https://...")
        if url.username is not None or url.query or url.fragment:
            raise ValueError("the engine's URL must not contain a user, password, query or fragment")
        self._ssl = (ssl_context or ssl.create_default_context()) if url.scheme == "https" else None
        self._host = url.hostname
        self._port = url.port or (443 if self._ssl else 80)
        # The resolver uses the same codec later: a name that it cannot encode fails now.
        self._host.encode("idna")
        host = f"[{self._host}]" if ":" in self._host else self._host.encode("idna").decode()
        authority = host if url.port is None else f"{host}:{url.port}"
        prefix = url.path.rstrip("/")
        self._heads = Heads(authority, prefix, headers or {})
        self._name = f"{url.scheme}://{authority}{prefix}"
        self._connect_timeout_s = connect_timeout_s
        self.body_max_bytes = body_max_bytes
        self.connection_life_s = connection_life_s
        # Used from the end: the connection used last is the least likely to have been closed since.
        self.idle: list[_Connection] = []
        self.all: dict[_Connection, None] = {}
        self._most: float = math.inf
        """Connections to have at once; finite after descriptors have run out."""
        self._opening = 0
        self._era = 0
        self._closed = False
        self._none_left = asyncio.Event()

    def __repr__(self) -> str:
        return f"<HttpClient {self._name} connections={len(self.all)} idle={len(self.idle)}>"

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
        check: Callable[[Get], Awaitable[None]] | None = None,
        count: Count | None = None,
    ) -> Response:
        """One request and its whole reply, whatever its status. count: told the bytes of its body as they come.

        check: awaited before anything else is sent on a connection, with a GET on this connection: another server behind the
        address, or one that was started again, is met on a new one. Its errors pass through.
        Raises TimeoutError after `timeout_s`, ConnectionLost when there is no complete reply (NotConnected or NoDescriptors if
        there could be none), ValueError for a method, path or header that cannot be sent. If a reused connection turns out
        closed, the request is sent again on a new one, so the server may see it twice.
        """
        data = [self._heads.of(method, path, headers) + b"%d\r\n\r\n" % len(body), body]
        if len(body) < JOINED_MAX_BYTES:
            data = [b"".join(data)]
        deadline = asyncio.get_running_loop().time() + timeout_s
        sent = False
        try:
            while self.idle:
                connection = self.idle.pop()
                if connection.old:
                    connection.fail("it is too old")
                elif connection.usable:
                    try:
                        connection = await self._checked(connection, deadline, check)
                        return await connection.exchange(data, deadline, count=count)
                    except _Unanswered:
                        sent = True
                        break
            connection = await self._checked(await self._connect(deadline), deadline, check)
            return await connection.exchange(data, deadline, count=count)
        except NotConnected as error:
            if sent:
                raise ConnectionLost(str(error)) from error
            raise
        except _Timeout:
            raise TimeoutError(f"no reply within {timeout_s:g} s") from None

    def check_again(self) -> None:
        """The server may be another one, even behind connections that are open: a proxy keeps them."""
        self._era += 1

    async def close(self) -> None:
        """Closes every connection; requests in flight end with ConnectionLost."""
        self._closed = True
        for connection in list(self.all):
            connection.fail("the client was closed")
        if self.all:
            await self._none_left.wait()

    @property
    def has_too_many(self) -> bool:
        """Whether connections have to be closed when they are no longer needed."""
        return len(self.all) > self._most

    def forget(self, connection: _Connection) -> None:
        """The connection's transport is closed."""
        self.all.pop(connection, None)
        if self._closed and not self.all:
            self._none_left.set()

    async def _checked(
        self, connection: _Connection, deadline: float, check: Callable[[Get], Awaitable[None]] | None
    ) -> _Connection:
        """The connection after its check; another one if the server closes each after a reply."""
        era = self._era
        if check is None or connection.era == era:
            return connection
        deadline = min(deadline, asyncio.get_running_loop().time() + CHECK_TIMEOUT_S)

        async def get(path: str) -> Response:
            nonlocal connection
            data = [self._heads.of("GET", path) + b"0\r\n\r\n"]
            if connection.usable:
                with contextlib.suppress(_Unanswered):  # It was closed while it was idle.
                    return await connection.exchange(data, deadline, held=True)
            connection = await self._connect(deadline)
            return await connection.exchange(data, deadline, held=True)

        try:
            await check(get)
        except BaseException as error:
            connection.fail("its check failed")
            if isinstance(error, _Timeout | ConnectionLost) and not isinstance(error, NoDescriptors | NotConnected):
                raise NotConnected(f"the server does not say what it is: {str(error) or 'no reply in time'}") from error
            raise
        connection.era = era
        return connection if connection.usable else await self._connect(deadline)

    async def _connect(self, deadline: float) -> _Connection:
        if self._closed:
            raise ConnectionLost("the client was closed")
        if len(self.all) + self._opening >= self._most:
            raise NoDescriptors(f"no connection: no more than {self._most} since file descriptors ran out")
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._connect_timeout_s
        try:
            async with asyncio.timeout_at(min(deadline, latest)) as limit:
                connection = await self._open(loop)
        except OSError as error:
            if not limit.expired():
                if descriptors.spent(error):
                    # Whoever else needs one, the store above all, would find none as long as all of these are kept alive.
                    self._most = min(self._most, max(1, (len(self.all) + self._opening) * 3 // 4))
                    raise NoDescriptors(f"no connection: {error}") from error
                raise NotConnected(f"no connection: {error}") from error
            if deadline <= latest:
                raise _Timeout from None
            raise NotConnected(f"no connection within {self._connect_timeout_s:g} s") from error
        if self._closed:
            connection.fail("the client was closed")
        return connection

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        connection = _Connection(self, loop)
        self._opening += 1
        try:
            await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._ssl)
        except BaseException:
            # If cancelled just after the transport was made, uvloop closes it and never tells its protocol.
            connection.usable = False
            self.forget(connection)
            raise
        finally:
            self._opening -= 1
        return connection


class _Timeout(Exception):
    """A request's time is up. Not a TimeoutError: the system raises that too, when a connection gets no answer."""


class _Connection(asyncio.Protocol):
    """One connection, with at most one request on it. `_waiter` is the request's future; None means idle or dead.

    era: in which it was checked (`HttpClient.check_again`).
    """

    def __init__(self, client: HttpClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Response] | None = None
        self.usable = self._held = False
        self.era = -1
        self._made_at = loop.time()
        self._begin()

    @property
    def old(self) -> bool:
        return self._loop.time() - self._made_at >= self._client.connection_life_s

    def _begin(self) -> None:
        """Forgets the last reply."""
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body: bytes | bytearray = b""
        self._size = 0
        self._silent = 0
        self._headed = self._complete = self._keep = self._answered = False

    async def exchange(self, data: list[bytes], deadline: float, *, held: bool = False, count: Count | None = None) -> Response:
        """Sends a request and waits for its reply until `deadline` (loop time). Raises _Timeout, ConnectionLost.

        held: whether it is not idle afterwards: its caller has more to send. count: as in `HttpClient.request`.
        """
        self._held, self._count = held, count
        if not self.usable:
            raise _Unanswered("the connection was closed as soon as it was opened")
        self._begin()
        waiter: asyncio.Future[Response] = self._loop.create_future()
        self._waiter = waiter
        for part in data:
            self._transport.write(part)
        timer = self._loop.call_at(deadline, self._expire, waiter)
        try:
            return await waiter
        except BaseException:
            # A connection whose reply is still to come must never be used again.
            if self._waiter is waiter:
                self._drop()
            elif waiter.done() and not waiter.cancelled():
                waiter.exception()  # Cancelled after the failure, before it was seen: asyncio would complain.
            raise
        finally:
            timer.cancel()

    def fail(self, message: str) -> None:
        """Ends the connection, and the request on it with ConnectionLost."""
        self._settle(ConnectionLost(message))

    def _expire(self, waiter: asyncio.Future[Response]) -> None:
        if self._waiter is waiter:
            self._settle(_Timeout())

    def _settle(self, error: Exception) -> None:
        waiter = self._waiter
        self._drop()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _drop(self) -> None:
        self._waiter = None
        if self.usable:
            self.usable = False
            if self in self._client.idle:
                self._client.idle.remove(self)
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked by isinstance: uvloop's transports have their own classes.
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True
        self._client.all[self] = None
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self._drop()  # It belongs to no request, and would run into the next reply.
            return
        self._answered = True
        size = self._size
        problem = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            problem = f"the reply is not HTTP/1.1: {error}"
        if self._complete:
            self._finish()
        elif problem is not None:
            self.fail(problem)
        elif self._size > self._client.body_max_bytes:
            self._settle(ReplyTooLarge(f"the reply is larger than {self._client.body_max_bytes} bytes"))
        else:
            self._silent = self._silent + len(data) if size == self._size else 0
            if self._silent > SILENT_MAX_BYTES:
                self.fail(f"more than {SILENT_MAX_BYTES} bytes of reply without any of its body")

    def eof_received(self) -> None:
        chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
        if self._headed and "content-length" not in self._headers and not chunked:
            self._finish()  # A body that ends with the connection.
        else:
            self._lost("the peer closed the connection")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(str(error or "") or "the peer closed the connection")
        self._client.forget(self)

    def _lost(self, how: str) -> None:
        if self._answered:
            self.fail(f"{how}, in the middle of its reply")
        else:
            self._settle(_Unanswered(f"{how}, before its reply"))

    def _finish(self) -> None:
        """The reply is complete: hands it over, and returns the connection if it may be reused."""
        waiter, self._waiter = self._waiter, None
        body, self._body = bytes(self._body), b""  # An idle connection would keep it until its next reply.
        too_large = len(body) > self._client.body_max_bytes
        keep = self._keep and not self.old and not too_large and not self._client.has_too_many
        if keep and not self._transport.get_write_buffer_size():
            if not self._held:
                self._client.idle.append(self)
        else:
            # A server that answers before it has read the request may never read the rest of it.
            self._drop()
        if waiter is not None and not waiter.done():
            if too_large:
                waiter.set_exception(ReplyTooLarge(f"the reply is larger than {self._client.body_max_bytes} bytes"))
            else:
                waiter.set_result(Response(self._status, self._headers, body))

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._complete:
            self._keep = False  # A reply without a request.

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip()
            self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        if not self._complete:
            self._headed = True
            self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._size += len(data)
            if self._count is not None:
                self._count(len(data))
            if not self._body:
                self._body = data
            else:
                # Not a list of pieces: of a reply in pieces of a few bytes, that would take thirty times its size.
                self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
                self._body += data

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if 100 <= self._status < 200 and self._status != 101:
            self._headers = {}
            self._headed = False
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive() and self._status >= 200
