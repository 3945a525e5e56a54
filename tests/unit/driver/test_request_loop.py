"""What the request loop does for one of several engines, and leaves alone at the others. Engines are stand-ins that hang."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nightshift.driver.backoff import Backoff
from nightshift.driver.engine import Failed, Load, SendResult
from nightshift.driver.engines import Standing
from nightshift.driver.request_loop import RequestLoop, RequestLoopCallbacks, RequestLoopLimits
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.stats import Stats
from nightshift.tasks.base import load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit


class Hangs:
    """replies: of the requests that it has; it tells no load unless that is set."""

    def __init__(self) -> None:
        self.replies: list[asyncio.Future[SendResult]] = []
        self.told: Load | None = None

    async def send(self, path: str, body: bytes, *, canary: bool = False, headers: Any = None) -> SendResult:
        reply: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self.replies.append(reply)
        try:
            return await reply
        finally:
            self.replies.remove(reply)

    async def healthy(self) -> bool:
        return True

    def ask_restart(self) -> None: ...

    async def load(self) -> Load | None:
        return self.told


class Two:
    """A loop with two engines, each with four requests."""

    def __init__(self) -> None:
        kind = load_kind(a_spec(request__rows_per_request=1))
        self.clients = [Hangs(), Hangs()]
        self.scheduler = Scheduler(kind)
        rows = [{"text": f"text {n}"} for n in range(8)]
        self.scheduler.open_chunk(0, range(8), iter(rows), {})
        owner = RequestLoopCallbacks(
            moved=lambda: None, given_up=lambda: None, spawn=lambda part: asyncio.get_running_loop().create_task(part)
        )
        limits = RequestLoopLimits(window_start=4, window_most=4)
        patience = Backoff(random.Random(0), asyncio.Event())
        self.loop = RequestLoop(kind, self.clients, self.scheduler, limits, patience, Stats(), owner)
        self.first, self.second = self.loop._engines

    @property
    def now(self) -> tuple[int, ...]:
        """How many requests each has."""
        return tuple(len(client.replies) for client in self.clients)


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[Two]:
    made = Two()
    made.loop.run()
    await asyncio.sleep(0.01)
    assert made.now == (4, 4)
    yield made
    await made.loop.land(0.0)


async def test_what_one_engine_has_is_called_back_from_it_alone() -> None:
    async with two() as made:
        made.second.standing = Standing.ILL
        made.second.health.resend()
        await asyncio.sleep(0.01)

        assert made.now == (4, 0)
        assert made.scheduler.rows_in_flight == 4


async def test_what_waits_for_its_verdict_is_not_called_back_with_what_an_ill_engine_has() -> None:
    async with two() as made:
        made.clients[1].replies[0].set_result(Failed("all is lost", status=500))
        await asyncio.sleep(0.01)
        [held] = made.loop.sender.fault_search.known.held
        made.loop._call_back_from(1, resting=False)

        assert [group for group in made.scheduler.in_flight if group.engine == 1] == [held.group]


async def test_an_engine_that_is_back_says_nothing_of_the_other() -> None:
    async with two() as made:
        for client in made.clients:
            client.replies[0].set_result(Failed("all is lost", status=500))
        await asyncio.sleep(0.01)
        assert (made.first.standing, made.second.standing) == (Standing.DOUBTED, Standing.DOUBTED)
        made.second.health.resumed()

        assert (made.first.standing, made.second.standing) == (Standing.DOUBTED, Standing.ANSWERS)


async def test_a_window_follows_the_rows_of_its_own_engine() -> None:
    async with two() as made:
        seen: list[int] = []
        made.second.window.sample = lambda load, rows: seen.append(rows)  # type: ignore[method-assign,assignment]
        made.clients[1].told = Load(4, 0, 0.1, 0)
        await made.loop._look(made.second)

        assert seen == [4]


async def test_nobody_asks_an_engine_once_the_loop_ends() -> None:
    """The search would go on without a pause, and hold up the whole process when its client no longer waits for anything."""
    async with two() as made:
        made.clients[1].replies[0].set_result(Failed("all is lost", status=500))
        await asyncio.sleep(0.01)
        made.loop.send_no_more()
        await asyncio.sleep(0.01)

        assert made.loop.sender.fault_search.known.held == []
        assert not any("_find_out" in str(task) for task in asyncio.all_tasks())
        assert made.now == (4, 3)
