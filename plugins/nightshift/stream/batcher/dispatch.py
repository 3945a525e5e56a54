"""Collects callers into bundles and sends them: several requests at once, each with callers that may share one.

Callers wait in lanes, one for each key. A lane's bundle is taken only when there is room for another request to the upstream,
so while the upstream is busy bundles grow, up to their limit, instead of queuing half full. Lanes that are due take turns, with
each other and with bundles that need more than one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from nightshift.stream.batcher.endpoint import Asked, Endpoint
from nightshift.stream.batcher.metrics import Metrics
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
    this one alone. since: loop time. alone: it shares its request with no other."""

    endpoint: Endpoint
    target: str
    counting: tuple[tuple[str, str], ...]
    own: dict[str, str]
    body: bytes
    asked: Asked
    since: float
    answer: asyncio.Future[Answer]
    alone: bool = False

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
            self.answer.set_result(answer)


Seat = Callable[[], AbstractAsyncContextManager[None]]
"""A place for one more request at the upstream, as soon as it is this one's turn."""
Send = Callable[[list[Caller], Seat], Awaitable[None]]
"""Sends a bundle and settles every caller in it that still waits. It has a place for one request, and may ask for more."""


@dataclass(eq=False)
class _Lane:
    bundles: Bundler[Caller]
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _Flight:
    """asking: for a place for one more request."""

    bundle: list[Caller]
    task: asyncio.Task[None] = field(init=False)
    asking: deque[asyncio.Future[None]] = field(default_factory=deque)


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
        self._due: OrderedDict[Hashable, None] = OrderedDict()
        self._flights: dict[Caller, _Flight] = {}
        self.in_flight = 0
        self._draining = False

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

    def submit(self, caller: Caller) -> None:
        """Its `Caller.answer` is settled later, whatever happens."""
        lane = self._lanes.get(caller.key)
        if lane is None:
            # Sizes are items here: a caller with several takes the room of several.
            most = 1 if caller.alone else self._items_most
            bundles = Bundler[Caller](items_most=most, size_most=most, wait_s=self._wait_s)
            lane = self._lanes[caller.key] = _Lane(bundles)
        lane.bundles.add(caller, caller.asked.count, caller.since)
        self._metrics.waiting.inc()
        self._arrange(caller.key, lane)
        self._pump()

    def leave(self, caller: Caller) -> None:
        """The caller has gone: it takes no place in a bundle any more. A request that no other waits for is broken off."""
        caller.answer.cancel()
        lane = self._lanes.get(caller.key)
        if lane is not None and lane.bundles.remove(caller):
            self._metrics.waiting.dec()
            self._metrics.gone.labels("waiting").inc()
            self._arrange(caller.key, lane)
        elif (flight := self._flights.get(caller)) is not None:
            self._metrics.gone.labels("sent").inc()
            if not any(each.waits for each in flight.bundle):
                flight.task.cancel()

    def drain(self) -> None:
        """From now on no caller waits for others."""
        self._draining = True
        for key, lane in list(self._lanes.items()):
            self._arrange(key, lane)
        self._pump()

    def abandon(self, answer: Callable[[Caller], Answer]) -> int:
        """Gives everybody who still waits this answer, and breaks off every request. Returns how many that were."""
        left = [caller for lane in self._lanes.values() for bundle in iter(lane.bundles.flush, None) for caller in bundle or ()]
        self._metrics.waiting.dec(len(left))
        for key, lane in list(self._lanes.items()):
            self._arrange(key, lane)
        left += [caller for caller in self._flights if caller.waits]
        for caller in left:
            caller.settle(answer(caller))
        for flight in list(self._flights.values()):
            flight.task.cancel()
        return len(left)

    def _arrange(self, key: Hashable, lane: _Lane) -> None:
        """Puts a lane where it belongs: among those that are due, or behind a timer, or away if it is empty."""
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        at = lane.bundles.next_due
        if at is None:
            del self._lanes[key]
            self._due.pop(key, None)
        elif self._draining or at <= self._loop.time():
            self._due[key] = None
        else:
            self._due.pop(key, None)
            lane.timer = self._loop.call_at(at, self._ripe, key, lane)

    def _ripe(self, key: Hashable, lane: _Lane) -> None:
        self._arrange(key, lane)
        self._pump()

    def _pump(self) -> None:
        """Sends bundles that are due while there is room."""
        while self._due and self.in_flight < self._upstream_most:
            key, _ = self._due.popitem(last=False)
            if isinstance(key, _Flight):
                self._grant(key)
                continue
            lane = self._lanes[key]
            bundle = lane.bundles.flush() if self._draining else lane.bundles.due(self._loop.time())
            if bundle:
                self._start(bundle)
            self._arrange(key, lane)

    def _start(self, bundle: list[Caller]) -> None:
        flight = _Flight(bundle)
        now = self._loop.time()
        self._metrics.waiting.dec(len(bundle))
        for caller in bundle:
            self._flights[caller] = flight
            self._metrics.wait_seconds.observe(now - caller.since)
        self.in_flight += 1
        self._metrics.in_flight.set(self.in_flight)
        flight.task = self._loop.create_task(self._fly(flight))
        # Not at the end of the task's own code: a task that is cancelled before its first step never gets there.
        flight.task.add_done_callback(lambda _: self._landed(flight))

    async def _fly(self, flight: _Flight) -> None:
        await self._send(flight.bundle, lambda: self._seat(flight))

    def _landed(self, flight: _Flight) -> None:
        for caller in flight.bundle:
            del self._flights[caller]
        self._vacate()

    @contextlib.asynccontextmanager
    async def _seat(self, flight: _Flight) -> AsyncIterator[None]:
        given = self._loop.create_future()
        flight.asking.append(given)
        self._due[flight] = None
        self._pump()
        try:
            await given
            yield
        finally:
            if given.done() and not given.cancelled():
                self._vacate()

    def _grant(self, flight: _Flight) -> None:
        """A place for one of a flight's further requests, if one still asks."""
        while flight.asking:
            given = flight.asking.popleft()
            if not given.done():
                given.set_result(None)
                self.in_flight += 1
                self._metrics.in_flight.set(self.in_flight)
                break
        if flight.asking:
            self._due[flight] = None

    def _vacate(self) -> None:
        self.in_flight -= 1
        self._metrics.in_flight.set(self.in_flight)
        self._pump()
