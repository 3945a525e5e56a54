"""Collects callers into bundles and sends them: several requests at once, each with callers that may share one.

Callers wait in lanes, one for each key. A lane's bundle is taken only when there is room for another request to the upstream,
so while the upstream is busy bundles grow, up to their limit, instead of queuing half full. Lanes that are due take turns, with
each other and with bundles that need more than one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

from nightshift.batcher.endpoint import Asked, Endpoint
from nightshift.batcher.headers import Counting
from nightshift.batcher.metrics import Metrics
from nightshift.stream.bundling import Bundler


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole reply for one caller. headers: names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(eq=False, slots=True)
class Caller:
    """One request that waits. target: its path and query as they are sent. counting, own: headers of a merged request, and of
    this one alone. since: loop time. alone: it shares its request with no other. hold: told the bytes of its answer."""

    endpoint: Endpoint
    target: str
    counting: Counting
    own: dict[str, str]
    body: bytes
    asked: Asked
    since: float
    answer: asyncio.Future[Answer]
    alone: bool = False
    hold: Callable[[int], None] = lambda _: None

    @property
    def key(self) -> Hashable:
        """Equal for callers whose requests may be merged."""
        return self.alone, self.endpoint.name, self.target, self.counting, self.asked.shared

    @property
    def waits(self) -> bool:
        """False once it has its answer, or has gone."""
        return not self.answer.done()

    def settle(self, answer: Answer) -> None:
        if self.waits:
            self.hold(len(answer.body))
            self.answer.set_result(answer)


Seat = Callable[[], AbstractAsyncContextManager[None]]
"""A place for one more request at the upstream, as soon as it is this one's turn."""
Send = Callable[[list[Caller], Seat], Awaitable[None]]
"""Sends a bundle and settles every caller in it that still waits. It has a place for one request, and may ask for more."""


@dataclass(eq=False)
class _Lane:
    """full: set when it need not wait for others. task: sends its next bundle, and waits for that until it is due."""

    bundles: Bundler[Caller]
    full: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


@dataclass(frozen=True)
class _Flight:
    bundle: list[Caller]
    task: asyncio.Task[None]


class Dispatcher:
    """items_most: in one merged request; a caller with more is alone in it. wait_s: how long a caller waits for others.
    upstream_most: requests at once. in_flight: how many there are."""

    def __init__(self, send: Send, metrics: Metrics, *, items_most: int, wait_s: float, upstream_most: int) -> None:
        self._send = send
        self._metrics = metrics
        self._items_most = items_most
        self._wait_s = wait_s
        self._upstream_most = upstream_most
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Hashable, _Lane] = {}
        self._flights: dict[Caller, _Flight] = {}
        # Who waits for one gets it in turn.
        self._seats = asyncio.Semaphore(upstream_most)
        self.in_flight = 0
        self._draining = False
        self._taken: asyncio.Future[Answer] = self._loop.create_future()
        self._taken.cancel()

    def __repr__(self) -> str:
        waiting = sum(len(lane.bundles) for lane in self._lanes.values())
        return f"<Dispatcher lanes={len(self._lanes)} waiting={waiting} in_flight={self.in_flight}/{self._upstream_most}>"

    async def ask(self, caller: Caller) -> Answer:
        """Submits a caller, and waits for its answer. If this is cancelled, it leaves."""
        self.submit(caller)
        try:
            # Not the future itself, which a cancellation would end: `leave` has to know whether it waits.
            await asyncio.wait((caller.answer,))
            return caller.answer.result()
        finally:
            if caller.waits:
                self.leave(caller)
            # Others of its bundle may wait for long, and until then the bundle keeps it: not its answer, too.
            caller.answer = self._taken

    def submit(self, caller: Caller) -> None:
        """Its `Caller.answer` is settled later, whatever happens."""
        lane = self._lanes.get(caller.key)
        if lane is None:
            # Sizes are items here: a caller with several takes the room of several.
            most = 1 if caller.alone else self._items_most
            lane = self._lanes[caller.key] = _Lane(Bundler(items_most=most, size_most=most, wait_s=self._wait_s))
            lane.task = self._loop.create_task(self._fly(caller.key, lane))
        lane.bundles.add(caller, caller.asked.count, caller.since)
        self._metrics.waiting.inc()
        if lane.bundles.full:
            lane.full.set()

    def leave(self, caller: Caller) -> None:
        """The caller has gone: it takes no place in a bundle any more. A request that no other waits for is broken off."""
        caller.answer.cancel()
        lane = self._lanes.get(caller.key)
        if lane is not None and lane.bundles.remove(caller):
            self._metrics.waiting.dec()
            self._metrics.gone.labels("waiting").inc()
            if not len(lane.bundles):
                lane.task.cancel()
                del self._lanes[caller.key]
        elif (flight := self._flights.get(caller)) is not None:
            self._metrics.gone.labels("sent").inc()
            if not any(each.waits for each in flight.bundle):
                flight.task.cancel()

    def drain(self) -> None:
        """From now on no caller waits for others."""
        self._draining = True
        for lane in self._lanes.values():
            lane.full.set()

    def abandon(self, answer: Callable[[Caller], Answer]) -> int:
        """Gives everybody who still waits this answer, and breaks off every request. Returns how many that were."""
        left = [caller for caller in self._flights if caller.waits]
        for lane in self._lanes.values():
            lane.task.cancel()
            while bundle := lane.bundles.flush():
                left += bundle
                self._metrics.waiting.dec(len(bundle))
        self._lanes.clear()
        for caller in left:
            caller.settle(answer(caller))
        for flight in self._flights.values():
            flight.task.cancel()
        return len(left)

    async def _fly(self, key: Hashable, lane: _Lane) -> None:
        """Sends the next bundle of a lane, once it is due and there is a seat."""
        while True:
            await self._until_due(lane)
            async with self._seat():
                bundle = lane.bundles.flush() if self._draining else lane.bundles.due(self._loop.time())
                if bundle is None:
                    continue  # Some of it have left meanwhile.
                flight = _Flight(bundle, lane.task)
                if len(lane.bundles):
                    lane.task = self._loop.create_task(self._fly(key, lane))
                else:
                    del self._lanes[key]
                now = self._loop.time()
                self._metrics.waiting.dec(len(bundle))
                for caller in bundle:
                    self._flights[caller] = flight
                    self._metrics.wait_seconds.observe(now - caller.since)
                try:
                    return await self._send(bundle, partial(self._seat, asyncio.Lock()))
                finally:
                    for caller in bundle:
                        del self._flights[caller]

    async def _until_due(self, lane: _Lane) -> None:
        while not self._draining and (at := lane.bundles.next_due) is not None and at > self._loop.time():
            lane.full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await lane.full.wait()

    @contextlib.asynccontextmanager
    async def _seat(self, turn: asyncio.Lock | None = None) -> AsyncIterator[None]:
        """turn: of a bundle's further requests: one of them at a time waits with the others."""
        async with turn or contextlib.nullcontext():
            await self._seats.acquire()
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self._metrics.in_flight.set(self.in_flight)
            self._seats.release()
