"""A chat server that is not vLLM, in a process's own thread, and the command `nightshift batch` as a person runs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, Any

from aiohttp import web

from tests.integration.driver.serving import ThreadedServer

PLUGINS = Path(__file__).resolve().parents[3] / "plugins"

HURRIED = (
    "from nightshift.driver import attribution, backoff\n"
    "backoff.BACKOFF_S = backoff.BACKOFF_MAX_S = 0.01\n"
    "attribution.ALIKE_S = 0.5\n"
    "from nightshift.cli import entry\n"
    "entry()\n"
)
"""The command but for its pauses between two tries, and for how long it waits if all lines are refused alike."""
Behaviour = Callable[[str], Awaitable[web.StreamResponse | None]]
"""Given a request's text: a response of its own, or None for the usual answer."""


def answer_to(text: str) -> str:
    return f"you said {text}"


class ChatServer(ThreadedServer):
    """``/v1/chat/completions`` and nothing else: no /health, /version, /metrics or /v1/models. `seen`: texts, as they came."""

    def __init__(self, behaviour: Behaviour | None = None, delay_s: float = 0.0, key: str | None = None, port: int = 0) -> None:
        self._behaviour = behaviour
        self._delay_s = delay_s
        self._key = key
        super().__init__(port)
        self.seen: list[str] = []
        self.in_flight = 0
        self.in_flight_max = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self._chat)]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": {"message": f"wrong key {request.headers.get('Authorization')}"}}, status=401)
        body = await request.json()
        text = body["messages"][0]["content"]
        self.seen.append(text)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        try:
            await asyncio.sleep(self._delay_s)
            if self._behaviour is not None and (special := await self._behaviour(text)) is not None:
                return special
        finally:
            self.in_flight -= 1
        message = {"role": "assistant", "content": answer_to(text)}
        return web.json_response(
            {
                "id": "chat",
                "model": body.get("model"),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 2, "completion_tokens": 3},
            }
        )


def a_request(name: str, text: str, **changes: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body, **changes}


def write_requests(path: Path, requests: list[dict[str, Any] | str]) -> Path:
    """Text stands in the file as it is."""
    lines = [request if isinstance(request, str) else json.dumps(request) for request in requests]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def content_of(line: dict[str, Any]) -> Any:
    return line["response"]["body"]["choices"][0]["message"]["content"]


class BatchProcess:
    """``nightshift batch`` with these arguments."""

    def __init__(
        self,
        *arguments: object,
        key: str | None = None,
        storage: str | None = None,
        hurried: bool = False,
        folder: Path | None = None,
        stdin: IO[bytes] | int | None = None,
        stdout: IO[bytes] | int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """hurried: it hardly waits before it tries again. folder: where it is run. environment: added to what it gets."""
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PLUGINS), **(environment or {})}
        if key is not None:
            environment["OPENAI_API_KEY"] = key
        if storage is not None:
            environment["STORAGE_EMULATOR_HOST"] = storage
        program = ("-c", HURRIED) if hurried else ("-m", "nightshift.cli")
        command = [sys.executable, *program, "batch", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        self.said = ""

    def wait_for(self, words: str) -> None:
        """Reads what it says up to a line with these words."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"no {words!r} in {self.said}")

    def finish(self) -> int:
        """Waits for the end; the exit code."""
        self.said += self.process.communicate()[1]
        return self.process.returncode
