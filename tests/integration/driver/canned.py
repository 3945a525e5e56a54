"""An HTTP server in the engine's place, for faults that a real engine cannot be made to show when a test wants them.

Its vectors are a function of the text, so that a test can tell whose vector a row got. Everything else about the driver is
tested against real vLLM (test_vllm.py).
"""

from __future__ import annotations

import asyncio
import base64
import threading
from array import array
from collections.abc import Awaitable, Callable
from types import TracebackType

from aiohttp import web

Behaviour = Callable[[list[str]], Awaitable[web.StreamResponse | None]]
"""Given a request's texts: a response of its own, or None for the usual answer."""


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 1000)]


class CannedEngine:
    """Serves on a free port in a thread of its own. `seen` is every text of every request, in order of arrival."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self._behaviour = behaviour
        self.port = port
        self.seen: list[str] = []
        self.in_flight_max = 0
        self._in_flight = 0
        self.healthy = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> CannedEngine:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.post("/v1/embeddings", self._embed),
            ]
        )
        runner = web.AppRunner(app, shutdown_timeout=0)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        self._loop.run_until_complete(site.start())
        self.port = runner.addresses[0][1]
        started.set()
        self._loop.run_forever()
        # Requests that a behaviour made hang would hold the clean-up for as long as they hang.
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(runner.cleanup())

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "canned"})

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        texts: list[str] = (await request.json())["input"]
        self.seen += texts
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            if self._behaviour is not None and (special := await self._behaviour(texts)) is not None:
                return special
        finally:
            self._in_flight -= 1
        data = [
            {"index": n, "embedding": base64.b64encode(array("f", vector_of(text)).tobytes()).decode()}
            for n, text in enumerate(texts)
        ]
        return web.json_response({"data": data, "usage": {"prompt_tokens": sum(map(len, texts))}})
