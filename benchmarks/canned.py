"""``python -m benchmarks.canned``: an engine that computes nothing, fast enough not to affect the measure.

Speaks what the driver needs of vLLM: embeddings, chat, health, models, version, metrics; and KServe's V1 ``:predict``.
It prints its port. A request's rows take seats for some seconds and queue while none are free, as in a continuous batch;
``/canned`` reports what arrived.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import time
from array import array
from collections import deque
from functools import cache
from typing import Any, Final

import orjson
import uvloop

HEAD: Final = (
    b"HTTP/1.1 %s\r\ndate: Sat, 21 Nov 2026 11:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: %d\r\n"
    b"content-type: application/json\r\n\r\n"
)
ANSWER: Final = "The package reads YAML files and checks them against a schema before it writes anything. " * 2
END: Final = b"\r\n\r\n"


class Engine:
    """Seats and a queue. seats: rows computed at once, 0: any number. seconds: how long a request holds its seats.

    per_token_s: seconds for each token that a chat request's text asks for in its last word. width: of an embedding.
    """

    def __init__(self, seats: int, seconds: float, per_token_s: float, width: int) -> None:
        self.seats = seats
        self.seconds = seconds
        self.per_token_s = per_token_s
        self.width = width
        self.running = 0
        self.rows = 0
        self.requests = 0
        self.first = 0.0
        self.last = 0.0
        self.busy = 0.0
        self._queue: deque[tuple[Connection, bytes, int, float]] = deque()
        self._counted_at = 0.0

    @property
    def waiting(self) -> int:
        return sum(rows for _, _, rows, _ in self._queue)

    def take(self, connection: Connection, path: bytes, body: bytes) -> None:
        """A request has arrived in full."""
        now = time.monotonic()
        parsed = orjson.loads(body)
        predicts = path.endswith(b":predict")
        texts = parsed.get("instances" if predicts else "input")
        rows = len(texts) if isinstance(texts, list) else 1
        self.rows += rows
        self.requests += 1
        self.first = self.first or now
        seconds = self.seconds
        if self.per_token_s:
            seconds += self.per_token_s * int(parsed["messages"][0]["content"].rsplit(" ", 1)[1])
        reply = (predictions if predicts else embeddings)(rows, self.width) if texts is not None else chat()
        if not self.seats and not seconds:
            connection.send(reply)
            return
        self._queue.append((connection, reply, rows, seconds))
        self._fill()

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue and (not self.seats or not self.running or self.running + self._queue[0][2] <= self.seats):
            connection, reply, rows, seconds = self._queue.popleft()
            self._count()
            self.running += rows
            loop.call_later(seconds, self._done, connection, reply, rows)

    def _done(self, connection: Connection, reply: bytes, rows: int) -> None:
        self._count()
        self.running -= rows
        self.last = time.monotonic()
        connection.send(reply)
        self._fill()

    def _count(self) -> None:
        """Adds up seat seconds."""
        now = time.monotonic()
        if self._counted_at:
            self.busy += self.running * (now - self._counted_at)
        self._counted_at = now

    def page(self, path: bytes) -> bytes:
        """The answer to a GET."""
        if path.startswith(b"/metrics"):
            return b"vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc 0.1\n" % (
                self.running,
                self.waiting,
            )
        if path.startswith(b"/v1/models"):
            return b'{"data":[{"id":"m","root":"org/m"}]}'
        if path.startswith(b"/version"):
            return b'{"version":"canned"}'
        names = ("rows", "requests", "first", "last", "busy", "running")
        return orjson.dumps({name: getattr(self, name) for name in names} if path.startswith(b"/canned") else {})


@cache
def embeddings(rows: int, width: int) -> bytes:
    """An answer to `rows` texts."""
    vector = base64.b64encode(array("f", [0.25 + n / 1000 for n in range(width)]).tobytes()).decode()
    data = [{"object": "embedding", "index": index, "embedding": vector} for index in range(rows)]
    usage = {"prompt_tokens": 12 * rows, "total_tokens": 12 * rows}
    return whole(orjson.dumps({"id": "embd-1", "object": "list", "model": "m", "data": data, "usage": usage}))


@cache
def predictions(rows: int, width: int) -> bytes:
    """KServe's answer to `rows` instances: a vector each, in base64."""
    vector = base64.b64encode(array("f", [0.25] * width).tobytes()).decode()
    return whole(orjson.dumps({"predictions": [vector] * rows}))


@cache
def chat() -> bytes:
    """An answer to a chat request, with the fields that vLLM sends."""
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER, "refusal": None, "annotations": None, "tool_calls": []}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 24, "total_tokens": 60, "completion_tokens": 36}
    reply: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1795000000, "model": "m"}
    return whole(orjson.dumps({**reply, "choices": [choice], "usage": usage, "system_fingerprint": None}))


def whole(body: bytes) -> bytes:
    return HEAD % (b"200 OK", len(body)) + body


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bytes = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def send(self, reply: bytes) -> None:
        if self._transport is not None:
            self._transport.write(reply)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while (end := self._bytes.find(END)) >= 0:
            head = self._bytes[:end]
            at = head.lower().find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            start = end + len(END)
            if len(self._bytes) < start + length:
                return
            body, self._bytes = self._bytes[start : start + length], self._bytes[start + length :]
            method, path, _ = head.split(b" ", 2)
            if method == b"GET":
                self.send(whole(self._engine.page(path)))
            else:
                self._engine.take(self, path, body)


async def serve(engine: Engine) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seats", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--per-token-s", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=384)
    options = parser.parse_args()
    uvloop.run(serve(Engine(options.seats, options.seconds, options.per_token_s, options.width)))


if __name__ == "__main__":
    main()
