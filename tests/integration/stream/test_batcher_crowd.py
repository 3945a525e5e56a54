"""Many callers of `nightshift batcher` at once, honest ones and others: each honest one gets its own answer, beside no other's.

The long one, 500 callers a second, is not in the gate.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from aiohttp import web

from tests.integration.stream.servers import BatcherProcess, Callers, Seen, Upstream, answer_to

pytestmark = pytest.mark.integration

NAMING: Final = ("Authorization", "X-Forwarded-User", "X-Forwarded-Client-Cert", "X-Tenant", "Baggage", "Cookie")
WHO: Final = ("alice", "bob", "carol")
ITEMS_MOST: Final = 16
MEMORY_MIB: Final = 64
OWN_MIB: Final = 100
"""Of the process without a caller, of heads and of replies."""
CALLER_KIB: Final = 24
"""Of a caller in hand, besides its request: 21 were measured. A machine that is slow has many of them."""
POST: Final = b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


async def refusing(_: web.Request, items: list[Any]) -> web.StreamResponse | None:
    """Refuses what is bad, as vLLM does, after a while."""
    await asyncio.sleep(0.02)
    return web.json_response({"error": {"message": "bad"}}, status=400) if any("bad" in each for each in items) else None


class Honest:
    """Callers that come at a rate, whatever becomes of earlier ones. most: at once. wrong: what they got and should not."""

    def __init__(self, callers: Callers, seed: int) -> None:
        self._callers = callers
        self._draw = random.Random(seed)
        self.wrong: list[Any] = []
        self.answered = 0
        self.waiting = self.most = 0

    async def come(self, count: int, rate: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
                group.create_task(self._one(number))

    async def _one(self, number: int) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self._ask(number)
        finally:
            self.waiting -= 1

    async def _ask(self, number: int) -> None:
        draw = self._draw
        name, who = draw.choice([None, *NAMING]), draw.choice(WHO)
        kind = "bad" if draw.random() < 0.02 else "good"
        texts = [f"{number}/{n}/{name}/{who if name else None}/{kind}" for n in range(draw.choice([1, 1, 1, 1, 3, 40]))]
        asking = self._callers.ask("/v1/embeddings", {"model": "m", "input": texts}, **({name: who} if name else {}))
        if draw.random() < 0.05:
            leaving = asyncio.ensure_future(asking)
            await asyncio.wait((leaving,), timeout=draw.random() / 20)
            leaving.cancel()
            return
        status, body = await asking
        expected = [{"index": n, "embedding": [answer_to(text)]} for n, text in enumerate(texts)]
        if (status, body.get("data")) != ((400, None) if kind == "bad" else (200, expected)):
            self.wrong.append((texts[0], status, str(body)[:200]))
        self.answered += 1


class Others:
    """Callers that hold what they can, each again and again until `stop`."""

    def __init__(self, batcher: BatcherProcess, seed: int) -> None:
        self._port = batcher.port
        self._draw = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, each: int) -> None:
        kinds: list[Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]]
        kinds = [self._silent, self._slow_head, self._slow_body, self._announced, self._huge_head, self._almost_whole]
        self._tasks = [asyncio.create_task(self._again(kind)) for kind in kinds for _ in range(each)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _again(self, kind: Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]]) -> None:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            reading = asyncio.create_task(reader.read())
            sending = asyncio.create_task(kind(writer))
            try:
                await asyncio.wait((reading, sending), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reading, sending):
                    task.cancel()
                await asyncio.gather(reading, sending, return_exceptions=True)
                writer.transport.abort()
            await asyncio.sleep(self._draw.random() / 5)

    async def _silent(self, _: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    async def _slow_head(self, writer: asyncio.StreamWriter) -> None:
        writer.write(POST)
        await self._dribble(writer, b"X-Slow: 1\r\n")

    async def _slow_body(self, writer: asyncio.StreamWriter) -> None:
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        await self._dribble(writer, b"1\r\n \r\n")

    async def _announced(self, writer: asyncio.StreamWriter) -> None:
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % (8 << 20))
        await asyncio.sleep(30)

    async def _huge_head(self, writer: asyncio.StreamWriter) -> None:
        writer.write(POST + b"X-Huge: ")
        for _ in range(50):
            writer.write(b"a" * (1 << 20))
            await writer.drain()

    async def _almost_whole(self, writer: asyncio.StreamWriter) -> None:
        """All of a large body but its end."""
        writer.write(POST + b"Content-Length: %d\r\n\r\n" % (1 << 20) + b"{" + b" " * ((1 << 20) - 2))
        await asyncio.sleep(30)

    async def _dribble(self, writer: asyncio.StreamWriter, piece: bytes) -> None:
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(self._draw.random())


def identity(each: Seen) -> tuple[str, str]:
    """What the server is told of who asks."""
    found = [(name, each.headers[name.lower()]) for name in NAMING if name.lower() in each.headers]
    assert len(found) <= 1, each.headers
    return found[0] if found else ("None", "None")


async def crowd(*, count: int, rate: float, others: int) -> None:
    """Honest callers at a rate, beside so many others of each kind."""
    # A machine that is slow has more of the honest ones in hand: there is room for all of them.
    room = ("--max-queue", 8192, "--max-connections", 8192)
    arguments = ("--max-batch-size", ITEMS_MOST, "--max-memory-mb", MEMORY_MIB, "--max-upstream", 16, *room)
    with Upstream(refusing) as upstream, BatcherProcess(upstream.url, *arguments) as batcher:
        async with Callers(batcher) as callers:
            hostile = Others(batcher, seed=1)
            hostile.begin(others)
            await asyncio.sleep(1)
            honest = Honest(callers, seed=2)
            await honest.come(count, rate)
            metrics = await callers.metrics()
            await hostile.stop()
            memory = batcher.rss_most_mib

    print(json.dumps({name: value for name, value in metrics.items() if "rejected_total" in name}))
    print(f"{honest.answered} answered, {len(upstream.seen)} requests to the server, {honest.most} at once, {memory:.0f} MiB")
    assert honest.wrong == []
    assert honest.answered > 0.9 * count
    for each in upstream.seen:
        assert {tuple(item.split("/")[2:4]) for item in each.items} == {identity(each)}
        assert len(each.items) <= ITEMS_MOST
    assert memory < MEMORY_MIB + OWN_MIB + honest.most * CALLER_KIB / 1024


@pytest.mark.gate
async def test_hundreds_of_callers() -> None:
    await crowd(count=400, rate=150, others=5)


async def test_500_callers_a_second() -> None:
    await crowd(count=15_000, rate=500, others=60)
