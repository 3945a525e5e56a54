"""The batcher as a process, and in the engine's place a server for faults that a real one cannot be made to show.

Its answers are a function of the item, so that a test can tell whose answer a caller got.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

from tests.integration.driver.serving import ThreadedServer

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"

HURRIED = (
    "from nightshift.batcher import connections, server\n"
    "connections.SLOW_S = 0.2\n"
    "connections.LINGER_S = 0.5\n"
    "server.ACCEPTING_S, server.ANSWERING_S, server.GONE_S = 0.2, 0.6, 2.0\n"
    "from nightshift.cli import entry\n"
    "entry()\n"
)
"""The command but for the time that a drain takes, and that a slow caller is given."""


@dataclass(frozen=True)
class Seen:
    """A request as it came. items: those of its list, one if it has none."""

    path: str
    headers: dict[str, str]
    items: list[Any]
    body: dict[str, Any]


Behaviour = Callable[[web.Request, list[Any]], Awaitable[web.StreamResponse | None]]
"""Given a request and its items: a response of its own, or None for the usual answer."""


def answer_to(item: Any) -> float:
    """A number that no other item of a test has."""
    return float(zlib.crc32(str(item).encode()))


class Gate:
    """A behaviour that holds every request until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()

    async def __call__(self, _: web.Request, __: list[Any]) -> None:
        await asyncio.to_thread(self.open.wait, 60)


class Upstream(ThreadedServer):
    """Serves lists. `seen`: the requests to them, in order of arrival. `arrived` counts them, for tests that wait for one."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        super().__init__(0)
        self._behaviour = behaviour
        self.seen: list[Seen] = []
        self.arrived = threading.Semaphore(0)
        self.left = threading.Event()
        self.piece = threading.Event()
        self.health = 404
        self.shape = [-1, 1]
        """Of the tensors of its V2 models, as their metadata say it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/embeddings", self._embeddings),
            web.post("/v1/completions", self._completions),
            web.post("/v1/models/{name}:predict", self._predict),
            web.post("/v2/models/{name}/infer", self._infer),
            web.get("/v2/models/{name}", self._metadata),
            web.post("/v1/chat/completions", self._stream),
            web.get("/broken", self._broken),
            web.get("/unchanged", self._unchanged),
            web.get("/health", self._health),
            web.route("*", "/echo/{rest:.*}", self._echo),
        ]

    async def _special(self, request: web.Request, body: dict[str, Any], items: Any) -> web.StreamResponse | None:
        items = items if isinstance(items, list) else [items]
        self.seen.append(Seen(request.path_qs, {name.lower(): value for name, value in request.headers.items()}, items, body))
        self.arrived.release()
        return None if self._behaviour is None else await self._behaviour(request, items)

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (special := await self._special(request, body, body["input"])) is not None:
            return special
        data = [{"index": n, "embedding": [answer_to(item)]} for n, item in enumerate(self.seen_items(body["input"]))]
        usage = {"prompt_tokens": 10 * len(data), "total_tokens": 10 * len(data)}
        return web.json_response({"id": "embd-1", "model": body["model"], "data": data, "usage": usage})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (special := await self._special(request, body, body["prompt"])) is not None:
            return special
        choices = [{"index": n, "text": f"{item}!"} for n, item in enumerate(self.seen_items(body["prompt"]))]
        return web.json_response({"id": "cmpl-1", "choices": choices})

    async def _predict(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (special := await self._special(request, body, body["instances"])) is not None:
            return special
        return web.json_response({"predictions": [answer_to(each) for each in body["instances"]]})

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        tensor = body["inputs"][0]
        if (special := await self._special(request, body, tensor["data"])) is not None:
            return special
        output = {"name": "y", "datatype": "FP32", "shape": tensor["shape"], "data": [2 * value for value in tensor["data"]]}
        return web.json_response({"model_name": "m", "id": "made-up", "outputs": [output]})

    async def _metadata(self, _: web.Request) -> web.Response:
        tensors = [[{"name": name, "datatype": "FP32", "shape": self.shape}] for name in "xy"]
        return web.json_response({"name": "m", "inputs": tensors[0], "outputs": tensors[1]})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Two events; the second when `piece` is set. Notes in `left` whether the caller has left before."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        while not self.piece.is_set():
            if request.transport is None or request.transport.is_closing():
                self.left.set()
                return response
            await asyncio.sleep(0.01)
        await response.write(b"data: two\n\n")
        return response

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.health)

    async def _broken(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return response

    async def _unchanged(self, request: web.Request) -> web.StreamResponse:
        """A 304 with the length that a 200 would have."""
        assert request.transport is not None
        request.transport.write(b'HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 1000\r\n\r\n')
        await asyncio.sleep(0.05)
        request.transport.close()
        return web.Response()

    async def _echo(self, request: web.Request) -> web.Response:
        """What it got, as headers and body."""
        body = await request.read()
        headers = {"X-Path": request.path_qs, "X-Method": request.method, "X-Seen": request.headers.get("X-Given", "")}
        return web.Response(status=int(request.headers.get("X-Status", "200")), body=body, headers=headers)

    @staticmethod
    def seen_items(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [value]


class BatcherProcess:
    """``nightshift batcher`` in front of a server, with these arguments besides.

    hurried: it is not patient. trusted: a file with the certificate that it trusts. key: the server's.
    """

    def __init__(
        self, upstream: str, *arguments: object, hurried: bool = False, trusted: Path | None = None, key: str = ""
    ) -> None:
        program = ("-c", HURRIED) if hurried else ("-m", "nightshift.cli")
        command = [sys.executable, *program, "batcher", "--upstream", upstream, "--port", "0", *map(str, arguments)]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PLUGINS), "NIGHTSHIFT_ENGINE_KEY": key}
        if trusted is not None:
            environment["SSL_CERT_FILE"] = str(trusted)
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        self.said = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"listening on (http://\S+:\d+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(f"the batcher did not start: {self.said}")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def rss_most_mib(self) -> float:
        """The most memory that it has ever had."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1024

    @property
    def sockets(self) -> int:
        """How many it has open."""
        return sum(each.readlink().name.startswith("socket:") for each in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def finish(self) -> int:
        """Waits for the end, and for all that it has said; the exit code."""
        await asyncio.to_thread(self._reader.join)
        return await asyncio.to_thread(self.process.wait)


class Callers:
    """Asks a batcher, as many at once as a test likes. Use as an async context manager."""

    def __init__(self, batcher: BatcherProcess) -> None:
        self.url = batcher.url

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0)
        self.session = aiohttp.ClientSession(self.url, connector=connector, timeout=aiohttp.ClientTimeout(total=120))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def ask(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """The status and the JSON of a reply."""
        status, _, parsed = await self.ask_all(path, body, **headers)
        return status, parsed

    async def ask_all(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any]:
        """headers: an underscore in a name stands for a hyphen. Returns those of the reply with names in lower case."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(path, json=body, headers=given) as reply:
            found = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status, found, await reply.json(content_type=None)

    async def raw(self, body: Any) -> bytes:
        """The body of a reply that has status 200."""
        async with self.session.post("/v1/embeddings", json=body) as reply:
            assert reply.status == 200
            return await reply.read()

    async def embed(self, text: Any, **headers: str) -> tuple[int, Any]:
        return await self.ask("/v1/embeddings", {"model": "m", "input": text}, **headers)

    async def metrics(self) -> dict[str, float]:
        async with self.session.get("/nightshift/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    async def until(self, name: str, value: float) -> None:
        """Waits until a metric has that value."""
        while (await self.metrics()).get(f"nightshift_batcher_{name}") != value:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)


async def seen(upstream: Upstream, requests: int) -> None:
    """Waits until that many more requests have arrived."""
    for _ in range(requests):
        assert await asyncio.to_thread(upstream.arrived.acquire, timeout=600)
