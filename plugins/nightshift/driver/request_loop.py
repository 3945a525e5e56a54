"""The request loop: keeps as many rows of open chunks with each engine as it can take, and settles each.

It is the same for a worker of a run (`nightshift.driver.worker`) and for a subscriber (streams). Who owns it opens
chunks in `scheduler` and takes their results there. Each request is a task that ends in one call of the scheduler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.driver.attribution import Canary
from nightshift.driver.backoff import Backoff, Silence
from nightshift.driver.budget import ByteBudget, Hold
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.fault_search import PROBES, SAY_EVERY_S, Hooks
from nightshift.driver.health import EngineBudget, EngineHealth, EngineLike, Losses
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.sender import RequestObserver, Sender
from nightshift.driver.stats import Stats
from nightshift.driver.window import Window
from nightshift.tasks.base import TaskKind

log = logging.getLogger(__name__)

WATCH_S: Final = 1.0

FLIGHT_BYTES: Final = 512 << 20
"""Of requests in flight, with their images, if nothing else is said."""


@dataclass(frozen=True)
class RequestLoopLimits:
    """window_start, window_most: rows in flight, of each engine. requests_most: requests of all. flight_bytes: memory of
    requests, one at least."""

    window_start: int
    window_most: int = 8192
    requests_most: int = 8192
    flight_bytes: int = FLIGHT_BYTES
    engine: EngineBudget = field(default_factory=EngineBudget)


async def _nothing() -> None:
    """What an owner has to do that has no earlier attempts, and nothing to check."""


@dataclass(frozen=True, kw_only=True)
class RequestLoopCallbacks:
    """What the loop needs of who owns it.

    recall(): a request that was answered in another attempt. back(): awaited when the engine has returned, before anything is
    sent. moved(): called whenever a chunk may have got results. given_up(): called when the engine has used up its
    budget. spawn: makes a task whose failure ends the owner.
    """

    recall: Callable[[], Awaitable[Canary | None]] = _nothing
    back: Callable[[], Awaitable[None]] = _nothing
    moved: Callable[[], None]
    given_up: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    traces: RequestObserver | None = None


class Life:
    """How long a worker or a subscriber works: until it must end, or one of its tasks fails."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    async def lead(self, *parts: Coroutine[Any, Any, None], ended: bool, last: Callable[[], None]) -> None:
        """Runs the parts until it ends, and raises what ended it. ended: it had to end before it began. last(): called then."""
        self._over = asyncio.get_running_loop().create_future()
        if ended:
            self._over.set_result(None)
        tasks = [self.spawn(part) for part in parts]
        try:
            await self._over
        finally:
            last()
            for task in tasks:
                task.cancel()

    def spawn(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure ends this life."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.end(error)

        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(ended)
        return task

    def end(self, error: BaseException | None = None) -> None:
        """Ends it, with an error or without. Only the first call counts."""
        if self._over is None or self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)


@dataclass(eq=False)
class RequestLoop:
    """The requests of one worker or subscriber. clients: of its engines, one at least. sender: for its owner's requests."""

    kind: TaskKind
    clients: Sequence[EngineLike]
    scheduler: Scheduler
    limits: RequestLoopLimits
    patience: Backoff
    stats: Stats
    owner: RequestLoopCallbacks

    def __post_init__(self) -> None:
        self._attempts: dict[Group, asyncio.Task[None]] = {}
        self._said_closed = float("-inf")
        self._losses = Losses(len(self.clients))
        self._engines = Engines(self.scheduler)
        for number, client in enumerate(self.clients):
            self._engines.add(self._make_engine(number, client))
        hooks = Hooks(
            recall=self.owner.recall,
            more=self._send_more,
            over=self.run,
            call_back=lambda number: self._call_back_from(number, resting=False),
            given_up=self.owner.given_up,
            spawn=self.owner.spawn,
        )
        self._budget = ByteBudget(self.limits.flight_bytes)
        self.sender = Sender(
            self.kind,
            self._engines,
            self.scheduler,
            self.patience,
            self.stats,
            self._budget,
            self.limits.engine,
            hooks,
            self.owner.traces,
        )

    def _make_engine(self, number: int, client: EngineLike) -> Engine:
        health = EngineHealth(
            client,
            self.scheduler,
            self.patience,
            self.stats,
            self.limits.engine,
            self._losses,
            number=number,
            others_answer=lambda: self._engines.others_answer(made),
            given_up=self.owner.given_up,
            back=self.owner.back,
            resend=lambda: self._call_back_from(number, resting=True),
            resumed=lambda: self.sender.fault_search.restarted(made),
            spawn=self.owner.spawn,
        )
        window = Window(start=self.limits.window_start, step=self.kind.rows_per_request, most=self.limits.window_most)
        made = Engine(number, client, window, health, Silence(self.patience))
        return made

    @property
    def room(self) -> int:
        """Rows that may be with the engines at once, as far as is known; 0 while they are absent or answer no request."""
        return self._engines.limit if self._may_send else 0

    @property
    def needed(self) -> int:
        """Rows that must be here at least to find out whose fault it is that no row was ever answered; 0 if that is not asked.

        Whatever the engine may have at once: those that fail, and a few that may show whether others fare better.
        """
        asked = self._engines.there and self.sender.fault_search.needs_others and not self.patience.stop.is_set()
        return self.scheduler.rows_in_flight + PROBES if asked else 0

    @property
    def hungry(self) -> bool:
        """Whether another chunk should be opened: none has rows left to send, or others are needed and there are only a few."""
        return self.scheduler.hungry or (self.needed > 0 and self.scheduler.sources < PROBES)

    @property
    def idle_place(self) -> bool:
        """Whether an engine may get a row now, and has one place free at least."""
        return self._may_send and self._engines.room

    @property
    def crowded(self) -> bool:
        """Whether a request waits for memory: nothing new should be opened."""
        return self._budget.crowded

    def run(self) -> None:
        """Sends what may be sent; called whenever that may have changed."""
        flying, stats = self.scheduler, self.stats
        while (
            self._may_send
            and self._engines.room
            and flying.requests_in_flight < self.limits.requests_most
            and not self._budget.crowded
            and self._send_more(1)
        ):
            pass
        stats.rows_in_flight, stats.requests_in_flight = flying.rows_in_flight, flying.requests_in_flight
        stats.window = self._engines.limit
        self.owner.moved()

    def forgive(self) -> None:
        """What failed so far says nothing of the engines: they are to have another chance."""
        self.sender.fault_search.restarted()

    def send_no_more(self) -> None:
        """Its owner ends. Rows that wait for a verdict go back: where no pause lasts, nobody may go on asking an engine."""
        self.patience.stop.set()
        self.forgive()

    def call_back(self, groups: Iterable[Group]) -> None:
        """Cancels these requests; the engine then stops computing them."""
        for group in list(groups):
            self._attempts.pop(group).cancel()
            self.scheduler.returned(group)

    def _call_back_from(self, engine: int, *, resting: bool) -> None:
        """Cancels the requests of one engine. resting: also those that it does not have now."""
        self.call_back(group for group in self._attempts if group.engine == engine and resting >= group.resting)

    def call_back_chunk(self, number: int) -> None:
        """Cancels the requests of one chunk."""
        self.call_back(group for group in self._attempts if group.chunk == number)

    def watches(self) -> list[Coroutine[Any, Any, None]]:
        """For each engine one that follows its own numbers, for ever."""
        return [self._watch(engine) for engine in self._engines]

    async def _watch(self, engine: Engine) -> None:
        while True:
            if engine.health.good:
                await self._look(engine)
            await asyncio.sleep(WATCH_S)

    async def _look(self, engine: Engine) -> None:
        if (load := await engine.client.load()) is None:
            engine.window.unseen()
            await engine.health.look()
            return
        engine.window.sample(load, self.scheduler.rows_at[engine.number])
        now = asyncio.get_running_loop().time()
        if engine.window.closed and now - self._said_closed >= SAY_EVERY_S:
            self._said_closed = now
            fields = {"requests_waiting": load.waiting, "requests_running": load.running}
            log.warning(
                "the engine is full of requests of others: nothing new is sent until its queue is shorter",
                extra={"fields": fields},
            )
        self.run()

    async def land(self, deadline: float) -> None:
        """Lets requests in flight come back until `deadline` (the loop's time), then cancels them."""
        if self._attempts:
            await asyncio.wait(list(self._attempts.values()), timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        for task in list(self._attempts.values()):
            task.cancel()
        self.run()

    @property
    def engine_answers(self) -> bool:
        """Whether an engine is there, and answers requests as far as is known."""
        return self._engines.answer

    @property
    def _may_send(self) -> bool:
        return not self.patience.stop.is_set() and self._engines.ready

    def _send_more(self, count: int) -> int:
        """Sends up to `count` of the groups that wait, whatever the window; how many there were."""
        for sent in range(count):
            group = self.scheduler.next_group()
            if group is None:
                return sent
            held = self.sender.ask(group)
            self._attempts[group] = self.owner.spawn(self._attempt(group, held))
            # A task that is cancelled before it begins would never give them back.
            self._attempts[group].add_done_callback(lambda _, held=held: held.release())  # type: ignore[misc]
        return count

    async def _attempt(self, group: Group, held: Hold) -> None:
        try:
            await self.sender.send(group, held)
        finally:
            self._attempts.pop(group, None)
            if self.owner.traces is not None:
                self.owner.traces.settled(group)
        self.run()
