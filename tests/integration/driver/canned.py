"""An HTTP server in the engine's place, for faults that a real engine cannot be made to show when a test wants them.

Its vectors are a function of the text, so that a test can tell whose vector a row got. Everything else about the driver is
tested against real vLLM (test_vllm.py).
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Awaitable, Callable

from aiohttp import web

from tests.integration.driver.serving import ThreadedServer

Behaviour = Callable[[list[str]], Awaitable[web.StreamResponse | None]]
"""Given a request's texts: a response of its own, or None for the usual answer."""


class Outage:
    """A behaviour: 500 for every request from the `after`-th on, until `over` is set."""

    def __init__(self, after: int = 0) -> None:
        self.over = False
        self._left = after

    async def __call__(self, _: list[str]) -> web.StreamResponse | None:
        self._left -= 1
        if self._left >= 0 or self.over:
            return None
        return web.json_response({"error": {"message": "all is lost"}}, status=500)


def vector_of(text: str) -> list[float]:
    return [float(len(text)), float(sum(map(ord, text)) % 1000)]


class CannedEngine(ThreadedServer):
    """Serves on a free port in a thread of its own. `seen` is every text of every request, in order of arrival."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self._behaviour = behaviour
        super().__init__(port)
        self.seen: list[str] = []
        self.in_flight_max = 0
        self._in_flight = 0
        self.healthy = True
        self.model: dict[str, object] = {"id": "m", "root": "org/m"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/v1/models", self._models),
            web.get("/version", self._version),
            web.post("/v1/embeddings", self._embed),
            web.post("/v1/chat/completions", self._chat),
        ]

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [self.model]})

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "canned"})

    async def _chat(self, request: web.Request) -> web.Response:
        """Answers with the seed that it was asked to sample with."""
        seed = (await request.json())["seed"]
        choice = {"index": 0, "message": {"role": "assistant", "content": str(seed)}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

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
