"""A proxy between Airflow and a cluster's API: writes down each request, and misbehaves on request as networks do.

It speaks plain HTTP to its clients, who reach the API through the kubeconfig that it gives them, and TLS to the API. It runs
in a thread of its own, so that blocking tests may use it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from local.ports import new_port

HOST: Final = "127.0.0.1"
# A close that sends RST in place of FIN: what a client sees when a middlebox forgets the connection.
LINGER_NONE: Final = struct.pack("ii", 1, 0)
HOP_BY_HOP: Final = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"})
PARTS: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


@dataclass(frozen=True)
class Call:
    """A request, as a client sent it."""

    method: str
    path: str
    query: str

    @property
    def verb(self) -> str:
        """As RBAC names it."""
        parts = PARTS.fullmatch(self.path)
        if self.method == "GET":
            if "watch=true" in self.query:
                return "watch"
            return "get" if parts is None or parts["name"] else "list"
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[self.method]

    @property
    def resource(self) -> str:
        """As RBAC names it: resource.group/subresource; the path where it is no object of a namespace."""
        parts = PARTS.fullmatch(self.path)
        if parts is None:
            return self.path
        group = f".{parts['group']}" if parts["group"] else ""
        return f"{parts['resource']}{group}" + (f"/{parts['subresource']}" if parts["subresource"] else "")


class Held:
    """A request that is kept back. port: its client's, once it has come."""

    def __init__(self, which: Callable[[Call], bool], *, forwarded: bool) -> None:
        self.which = which
        self.forwarded = forwarded
        self.port = 0
        self._come = threading.Event()
        self._go = threading.Event()

    def come(self, port: int) -> None:
        self.port = port
        self._come.set()

    def wait(self, patience_s: float) -> None:
        """Returns when it has come, and has taken effect if that is wanted."""
        assert self._come.wait(patience_s), f"no such request within {patience_s:.0f} s"

    def release(self) -> None:
        self._go.set()

    async def released(self) -> None:
        await asyncio.to_thread(self._go.wait)


class ApiProxy:
    """In front of the API of `kubeconfig`; a context manager. folder: for the clients' kubeconfig.

    token: whose rights the clients have; None: those of `kubeconfig`.
    """

    def __init__(self, kubeconfig: Path, folder: Path, *, token: str | None = None) -> None:
        document = yaml.safe_load(kubeconfig.read_text())
        self._upstream = URL(document["clusters"][0]["cluster"]["server"])
        self._tls = _tls(document, with_user=token is None)
        self._token = token
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.calls: list[Call] = []
        self._swallow: Callable[[Call], bool] = lambda _: False
        self._fails: Callable[[Call], bool] = lambda _: False
        self.swallowed = 0
        self._silent = False
        self._held: Held | None = None
        self._late: set[asyncio.Task[None]] = set()
        self._site: web.SockSite | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    @property
    def kubeconfig(self) -> Path:
        """For clients that are to come this way."""
        cluster = {"server": self.url}
        user = {"token": self._token} if self._token else {}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "proxy", "user": user}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        }
        path = self._folder / f"proxy-{self._port}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def swallow(self, which: Callable[[Call], bool]) -> None:
        """The next request of that kind takes effect, and its client's connection breaks before the reply."""
        self._swallow = which

    def fail(self, which: Callable[[Call], bool]) -> None:
        """Answers 503 to all requests of that kind, from now on."""
        self._fails = which

    def mend(self) -> None:
        """Ends `fail`."""
        self._fails = lambda _: False

    @contextlib.contextmanager
    def holding(self, which: Callable[[Call], bool], *, forwarded: bool) -> Iterator[Held]:
        """Keeps back the next request of that kind until it is released: its reply if `forwarded`, else the request itself.

        A client that gives up, or dies, leaves its request here: it goes on its way all the same.
        """
        self._held = held = Held(which, forwarded=forwarded)
        try:
            yield held
        finally:
            self._held = None
            held.release()

    def reset(self) -> None:
        """Breaks every connection that there is, in the middle of whatever passes."""
        self._do(self._reset())

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Nobody listens, and no connection is left."""
        self._do(self._close())
        try:
            yield
        finally:
            self._do(self._open())

    @contextlib.contextmanager
    def half_open(self) -> Iterator[None]:
        """Connections are taken and stay, and nothing comes through them. In the end they are forgotten, with what was in them:
        a half-open connection does not come back to life."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False
            self.reset()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> None:
        # A connection per request: one that the API's end left half open would be a fault that nobody asked for.
        connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0, access_log=None)
        await self._runner.setup()
        # It is given up, and taken again, by `refusing`.
        self._port = new_port()
        await self._open()

    async def _stop(self) -> None:
        await self._reset()
        await self._runner.cleanup()
        await self._session.close()

    async def _open(self) -> None:
        listener = socket.create_server((HOST, self._port), backlog=1024)
        self._site = web.SockSite(self._runner, listener)
        await self._site.start()

    async def _close(self) -> None:
        assert self._site is not None
        await self._site.stop()
        await self._reset()

    async def _reset(self) -> None:
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                _break(connection.transport)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        call = Call(request.method, request.path, request.query_string)
        self.calls.append(call)
        await self._pass()
        if self._fails(call):
            return web.json_response({"kind": "Status", "message": "the proxy is told to fail", "code": 503}, status=503)
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP]
        url = URL(f"{self._upstream.origin()}{request.raw_path}", encoded=True)
        body = await request.read()
        if (held := self._held) is not None and held.which(call):
            self._held = None
            late = asyncio.create_task(self._keep_back(held, request, url, headers, body))
            self._late.add(late)
            await asyncio.shield(late)
            return web.Response(status=502)
        async with self._session.request(request.method, url, headers=headers, data=body or None) as reply:
            if self._swallow(call):
                self._swallow = lambda _: False
                self.swallowed += 1
                await reply.read()
                _break(request.transport)
                return web.Response(status=502)
            await self._pass()
            kept = [(name, value) for name, value in reply.headers.items() if name.lower() not in HOP_BY_HOP]
            response = web.StreamResponse(status=reply.status)
            response.headers.extend(kept)
            await response.prepare(request)
            async for part in reply.content.iter_any():
                await self._pass()
                await response.write(part)
            await response.write_eof()
            return response

    async def _keep_back(self, held: Held, request: web.Request, url: URL, headers: list[tuple[str, str]], body: bytes) -> None:
        """Its client hears nothing more of it but a broken connection."""
        assert request.transport is not None
        port: int = request.transport.get_extra_info("peername")[1]

        async def forward() -> None:
            async with self._session.request(request.method, url, headers=headers, data=body or None) as reply:
                await reply.read()

        if held.forwarded:
            await forward()
        held.come(port)
        await held.released()
        if not held.forwarded:
            await forward()
        _break(request.transport)

    async def _pass(self) -> None:
        """Returns when what is under way may go on: never for what a half-open connection holds, which ends by a reset."""
        if self._silent:
            await asyncio.Event().wait()


def _break(transport: asyncio.BaseTransport) -> None:
    link = transport.get_extra_info("socket")
    assert isinstance(transport, asyncio.Transport)
    if link is not None and not transport.is_closing():
        with contextlib.suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
    transport.abort()


def _tls(document: dict[str, Any], *, with_user: bool) -> ssl.SSLContext:
    """For the cluster of a kubeconfig, with its user's certificate if wanted."""
    data = base64.b64decode(document["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=data)
    if with_user:
        user = document["users"][0]["user"]
        with tempfile.NamedTemporaryFile() as file:
            # Python loads a certificate from a file only.
            file.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            file.flush()
            context.load_cert_chain(file.name)
    return context
