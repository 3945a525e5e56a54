"""Whether an engine is there: notices its death once, waits for its restart within a budget, then gives up.

While another engine answers, the budget is not touched: the rows go there, and this engine is used again when it is back. An
engine that is there and fails everybody is the business of `nightshift.driver.attribution`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from nightshift.driver.backoff import Backoff
from nightshift.driver.engine import Gone, Load, SendResult, Stranger
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.stats import Stats

log = logging.getLogger(__name__)

ENGINE_BUDGET_S: Final = 300.0
"""How long an engine may stay away (a restart loads the weights again) before the worker makes way for a new one."""
UNWELL: Final = 4
"""Health checks in a row (a second apart) that the engine may fail before it counts as gone."""
PROBE_EVERY_S: Final = 0.5


@dataclass(frozen=True)
class EngineBudget:
    """What an engine is allowed before its client gives up on it; the defaults are those of a night.

    absent_s: how long it may stay away. losses: times in a row that it may vanish with no answer in between, and no dead
    letter that explains it; of several engines, as many times for each. To find a row that kills it takes six at most: two for
    each of two requests, which take turns if memory is enough for one, and two alone.
    failing_s: how long it may answer no request while it calls itself healthy. Longer than it may be absent: its weights are
    loaded, so what ails it may pass, and another worker would have to load them again. few: if no more rows than these are all
    that is left then, their tries decide; 0: they never do. enough: rows that it must turn away, and answer none, before
    that counts as a mistake of the configuration. rows_ask: every row says by itself what it asks for, so a mistake that
    all share is theirs. refusals_first: rows that it may refuse as such (400) before it has answered any; then it is waited
    for.
    """

    absent_s: float = ENGINE_BUDGET_S
    losses: float = 7
    failing_s: float = 900.0
    few: int = 8
    enough: int = 1
    rows_ask: bool = False
    refusals_first: float = float("inf")


class EngineLike(Protocol):
    """What the loop needs of the engine: `nightshift.driver.engine.EngineClient`, or the simulator's."""

    async def send(
        self, path: str, body: bytes, *, canary: bool = False, headers: Mapping[str, str] | None = None
    ) -> SendResult: ...

    async def healthy(self) -> bool: ...

    async def load(self) -> Load | None: ...

    def ask_restart(self) -> None: ...


@dataclass
class Losses:
    """Of all engines of a worker since one of them answered last. engines: how many there are."""

    engines: int
    count: int = 0


@dataclass(eq=False)
class EngineHealth:
    """One engine of a worker. good: requests may be sent.

    number: its own; others_answer(): whether another engine answers. back(): awaited when the engine has returned, before
    anything is sent. resend(): called when requests in flight still wait for replies of its previous life, and may be sent
    again. resumed(): called when requests may be sent again. given_up(): called when the budget is used up. spawn: makes a
    task whose failure ends the worker.
    """

    engine: EngineLike
    scheduler: Scheduler
    patience: Backoff
    stats: Stats
    budget: EngineBudget
    losses: Losses
    _: KW_ONLY
    number: int
    others_answer: Callable[[], bool]
    given_up: Callable[[], None]
    back: Callable[[], Awaitable[None]]
    resend: Callable[[], None]
    resumed: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    _unwell: int = field(init=False, default=0)
    _hung: bool = field(init=False, default=False)
    _buried: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _recovery: asyncio.Task[None] | None = field(init=False, default=None)

    @property
    def good(self) -> bool:
        return self._recovery is None

    def answered(self) -> None:
        """The engine answered rows just now."""
        self.losses.count = 0

    async def look(self) -> None:
        """Checks the engine's health. One that shuts down may keep connections open and never answer on them."""
        if not self.good:
            return
        self._unwell = 0 if await self.engine.healthy() else self._unwell + 1
        if self._unwell >= UNWELL and self.good:
            self._unwell = 0
            self._hung = True
            self._begin(Gone("the engine fails its health check"))

    async def alive(self, loss: Gone) -> bool:
        """A connection broke. Returns True if the engine still runs.

        If it is the only one, waits until it is back or given up; of several, until its rows may be sent elsewhere.
        """
        if self.good and await self.engine.healthy():
            return True
        recovery = self._recovery
        if recovery is None:
            recovery = self._begin(loss)
        elif self._hung:
            # The engine that hung has now died.
            self._hung = False
            self.scheduler.engine_died(loss.message, loss.status, self.number)
        await (asyncio.shield(recovery) if self.losses.engines == 1 else self._buried.wait())
        return False

    def _begin(self, loss: Gone) -> asyncio.Task[None]:
        self._buried.clear()
        self._recovery = self.spawn(self._recover(loss))
        return self._recovery

    async def _recover(self, loss: Gone) -> None:
        loop = asyncio.get_running_loop()
        began = counted = loop.time()
        self.stats.engine_losses += 1
        self.losses.count += 1
        died = not self._hung and not isinstance(loss, Stranger)
        if died and self.scheduler.engine_died(loss.message, loss.status, self.number):
            self.losses.count = 0
        self._buried.set()
        log.warning("engine lost", extra={"fields": {"error": str(loss), **self._named}})
        while not (back := await self.engine.healthy()) and not self.patience.stop.is_set():
            if self.others_answer():
                began = loop.time()
                self._resend_what_hangs()
            elif loop.time() - began > self.budget.absent_s:
                break
            await self.patience.pause(PROBE_EVERY_S)
            # As it passes: who watches an outage reads it before the end.
            counted = self._count_time(counted)
        self._count_time(counted)
        if self.patience.stop.is_set():
            return
        if not back or (self.losses.count >= self.budget.losses * self.losses.engines and not self.others_answer()):
            log.error("gave up on the engine", extra={"fields": self._named})
            self.given_up()
            return
        log.info("engine back", extra={"fields": self._named})
        await self.back()
        self._resend_what_hangs()
        self._recovery = None
        self.resumed()

    @property
    def _named(self) -> dict[str, int]:
        """For the log: how often engines were lost, and which one this is, of several."""
        return {"losses": self.losses.count} | ({"engine": self.number} if self.losses.engines > 1 else {})

    def _resend_what_hangs(self) -> None:
        if self._hung:
            self._hung = False
            self.resend()

    def _count_time(self, since: float) -> float:
        """Counts the time since then as one without an engine, or one of several as its part; returns now."""
        now = asyncio.get_running_loop().time()
        self.stats.engine_wait_s += (now - since) / self.losses.engines
        return now
