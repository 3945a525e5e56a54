"""An HTTP proxy that misbehaves on request, between the drivers and what they talk to.

What it can do to a client: reset its connections, answer errors for a while, hold requests and replies for a while, and swallow
the reply of a write that has taken effect. Each client has a port of its own, so that a witness knows who asked what and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import aiohttp
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nightshift.driver.engine import CANARY

HOST: Final = "127.0.0.1"
# Of one connection, not of the message: RFC 9110, 7.6.1. aiohttp writes its own, and knows the length of a whole body.
HOP_BY_HOP: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
# A close that sends RST in place of FIN: what a client sees when a node vanishes or a middlebox forgets the connection.
LINGER_NONE: Final = struct.pack("ii", 1, 0)
BODY_MAX: Final = 1 << 28


@dataclass(slots=True)
class Exchange:
    """A request on its way. client: whose port it came by. canary: its answer will be thrown away.

    Times are the loop's; None for what has not happened.

    forwarded: sent upstream. status, reply: what upstream said. delivered: handed to the client's connection.
    """

    client: str
    method: str
    target: str
    body: bytes
    number: int
    canary: bool = False
    forwarded: float | None = None
    status: int | None = None
    reply: bytes = b""
    delivered: float | None = None


class Witness(Protocol):
    """Told what passes, in the moment it does."""

    def forwarded(self, exchange: Exchange) -> None: ...

    def answered(self, exchange: Exchange) -> None: ...

    def delivered(self, exchange: Exchange) -> None: ...


class Silent:
    """A witness that forgets everything."""

    def forwarded(self, exchange: Exchange) -> None: ...

    def answered(self, exchange: Exchange) -> None: ...

    def delivered(self, exchange: Exchange) -> None: ...


@dataclass(frozen=True)
class Storm:
    """status: of every answer. retry_after: the header's value; empty: no such header. questions: whether GETs get it, too."""

    status: int = 503
    retry_after: str = ""
    questions: bool = True

    def answers(self, request: web.Request) -> bool:
        return self.questions or request.method != "GET"


@dataclass
class Weather:
    """What the proxy does to requests now. storm: how it answers them itself. swallow: how many replies to writes will be lost.

    gate: cleared while everything is held.
    """

    storm: Storm | None = None
    swallow: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()


class FaultProxy:
    """Forwards to `upstream` (a base URL). Use as an async context manager; `door` opens a port for one client."""

    def __init__(self, upstream: str, witness: Witness | None = None) -> None:
        self.upstream = URL(upstream)
        self.weather = Weather()
        self.swallowed = 0
        self._witness = witness or Silent()
        self._clients: dict[int, str] = {}
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> FaultProxy:
        # A connection per request: one that upstream's end left half open would be a fault that nobody asked for.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # When a client goes away upstream sees its connection go too, as without a proxy.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0, access_log=None)
        await self._runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.weather.gate.set()
        self.reset()
        await self._runner.cleanup()
        await self._session.close()

    @contextlib.asynccontextmanager
    async def door(self, client: str) -> AsyncIterator[str]:
        """The base URL of a port for one client, open while the context is."""
        listener = socket.create_server((HOST, 0), backlog=1024)
        port: int = listener.getsockname()[1]
        self._clients[port] = client
        site = web.SockSite(self._runner, listener)
        await site.start()
        try:
            yield f"http://{HOST}:{port}"
        finally:
            await site.stop()

    def reset(self) -> int:
        """Breaks every connection that there is, in the middle of whatever passes; returns how many."""
        assert self._runner.server is not None
        broken = 0
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                _break(connection.transport)
                broken += 1
        return broken

    @contextlib.contextmanager
    def storm(self, storm: Storm) -> Iterator[None]:
        """Answers by itself while the context lasts."""
        self.weather.storm = storm
        try:
            yield
        finally:
            self.weather.storm = None

    @contextlib.contextmanager
    def stall(self) -> Iterator[None]:
        """Holds requests, and replies that are on their way, while the context lasts."""
        self.weather.gate.clear()
        try:
            yield
        finally:
            self.weather.gate.set()

    def swallow(self, replies: int) -> None:
        """The next `replies` writes take effect, and the client never hears of it."""
        self.weather.swallow += replies

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        client = self._clients[request.transport.get_extra_info("sockname")[1]]
        body, canary = await request.read(), any(name in request.headers for name in CANARY)
        exchange = Exchange(client, request.method, request.raw_path, body, next(self._numbers), canary)
        if (storm := self.weather.storm) is not None and storm.answers(request):
            headers_of_storm = {"Retry-After": storm.retry_after} if storm.retry_after else None
            return web.Response(status=storm.status, text="storm", headers=headers_of_storm)
        await self.weather.gate.wait()
        headers = await self._forward(exchange, _end_to_end(request.headers))
        await self.weather.gate.wait()
        lost = headers is not None and request.method in ("PUT", "POST") and self.weather.swallow > 0
        if headers is None or lost:
            self.weather.swallow -= lost
            self.swallowed += lost
            _break(request.transport)
            return web.Response(status=502)
        response = web.Response(status=exchange.status or 502, headers=headers, body=exchange.reply)
        await response.prepare(request)
        await response.write_eof()
        exchange.delivered = asyncio.get_running_loop().time()
        self._witness.delivered(exchange)
        return response

    async def _forward(self, exchange: Exchange, headers: CIMultiDict[str]) -> CIMultiDict[str] | None:
        """Sends the request on; the headers of the reply, or None when there was no whole reply."""
        loop = asyncio.get_running_loop()
        exchange.forwarded = loop.time()
        self._witness.forwarded(exchange)
        url = URL(f"{self.upstream.origin()}{exchange.target}", encoded=True)
        try:
            async with self._session.request(
                exchange.method, url, headers=headers, data=exchange.body or None, allow_redirects=False
            ) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, OSError):
            return None
        exchange.status, exchange.reply = reply.status, body
        self._witness.answered(exchange)
        kept = _end_to_end(reply.headers)
        if exchange.method == "HEAD" and "Content-Length" in reply.headers:
            kept["Content-Length"] = reply.headers["Content-Length"]
        return kept


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in HOP_BY_HOP)


def _break(transport: asyncio.BaseTransport) -> None:
    link = transport.get_extra_info("socket")
    if link is not None and not transport.is_closing():
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
