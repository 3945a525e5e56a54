"""Whose fault a failed request is: that of its rows, or the engine's.

Two requests that overlap in time met the same engine. If one of them is answered, the other one's rows are to blame for its
failure. If nobody is answered, nobody knows: then failed requests wait here, nothing new is sent, and after pauses a few of
those that wait are sent again, beside a *canary*: a request that was answered before, whose answer is thrown away. If it
is answered, the rows that fail beside it are to blame. If it fails too, the engine is: it is waited for like an absent one, no
try of any row is spent, and when its budget is used up the worker makes way for another engine.

An attempt that has had no answer yet takes its canary from the run: a row that was answered in another attempt. A redo's rows
failed before and may all fail again, so it looks in the runs that it completes, too. If there is none either, the rows must
decide about each other: requests of several rows are halved, and rows that were never sent are sent beside those that failed,
so that one good row is found among bad ones; it is the canary from then on. If none is found within the budget, the engine is
to blame, unless a few rows are all that is left: so few may well all be bad, and their tries decide, or such a run would never
end. (A long run of nothing but bad rows ends with the attempts that it may take.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from nightshift.driver.health import EngineBudget
from nightshift.driver.patience import Patience
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.stats import Stats
from nightshift.driver.window import Window

log = logging.getLogger(__name__)

PROBES: Final = 8
"""Requests that may be with the engine while it answers nobody, besides those that it had before."""
SAY_AFTER_S: Final = 3.0
"""One bad row in a healthy engine is judged within this time, which is not worth a line in the log."""
SAY_EVERY_S: Final = 60.0


class Verdict(Enum):
    """What becomes of a failed request."""

    ROWS = auto()
    """Its rows are to blame."""
    ENGINE = auto()
    """They are not."""
    PROBE = auto()
    """That is not known yet: it is to be sent again now."""
    HALVES = auto()
    """The same, in halves."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A request that was answered once. payloads: of its rows."""

    path: str
    body: bytes
    payloads: list[Any]


@dataclass(frozen=True, slots=True)
class _Held:
    """A failed request that waits for its verdict. failed: when (the loop's time)."""

    group: Group
    failed: float
    verdict: asyncio.Future[Verdict]


@dataclass(frozen=True)
class Hooks:
    """What a trial needs of its worker.

    recall(): a request that was answered in another attempt. more(count): sends so many requests that do not wait here;
    returns how many there were. over(): called when requests may be sent again. given_up(): called when the budget is used up.
    spawn: makes a task whose failure ends the worker.
    """

    recall: Callable[[], Awaitable[Canary | None]]
    more: Callable[[int], int]
    over: Callable[[], None]
    given_up: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Trial:
    """The failed requests of one worker. sing(canary): sends it; whether it was answered."""

    def __init__(
        self,
        scheduler: Scheduler,
        patience: Patience,
        stats: Stats,
        window: Window,
        budget: EngineBudget,
        hooks: Hooks,
        sing: Callable[[Canary], Awaitable[bool]],
    ) -> None:
        self._scheduler = scheduler
        self._patience = patience
        self._stats = stats
        self._window = window
        self._budget = budget
        self._hooks = hooks
        self._sing = sing
        self._canary: Canary | None = None
        self._answered_at = float("-inf")
        self._tries_decide = False
        self._held: list[_Held] = []
        self._failed_rows: set[int] = set()
        """Rows that failed since the engine answered nobody; no more of them than show that they are more than a few."""
        self._error = ""
        self._began = 0.0
        self._counted = 0.0
        self._said_at: float | None = None
        self._search: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether the engine answers nobody, as far as is known: nothing new may be sent."""
        return self._search is not None

    @property
    def needs_others(self) -> bool:
        """Whether rows that were never sent are needed to find out whose fault it is: there is no canary."""
        return self.open and self._canary is None

    def answered(self, sent: float, canary: Canary) -> None:
        """A request that was sent at `sent` (the loop's time) was answered just now; it may serve as canary."""
        if self._canary is None or len(canary.body) < len(self._canary.body):
            self._canary = canary
        self.heard(sent)

    def heard(self, sent: float) -> None:
        """The engine answered a request that was sent at `sent`: who failed while it was under way is to blame."""
        self._answered_at = asyncio.get_running_loop().time()
        self._tries_decide = False
        if self._said_at is not None:
            log.warning("the engine answers again", extra={"fields": {"waited_s": self._waited_s}})
        self._close(lambda held: Verdict.ROWS if sent < held.failed else Verdict.ENGINE)

    async def verdict(self, group: Group, error: str) -> Verdict:
        """The request of this group failed just now: waits until it is known why. error: what the engine said."""
        if self._patience.stop.is_set():
            return Verdict.ENGINE
        if self._answered_at > group.sent or self._tries_decide:
            return Verdict.ROWS
        loop = asyncio.get_running_loop()
        held = _Held(group, loop.time(), loop.create_future())
        self._held.append(held)
        self._error = error
        if len(self._failed_rows) <= self._budget.few:
            self._failed_rows.update(row.ordinal for row in group.rows)
        if self._search is None:
            self._began = self._counted = loop.time()
            self._search = self._hooks.spawn(self._find_out())
        try:
            return await held.verdict
        finally:
            if held in self._held:
                self._held.remove(held)

    def restarted(self) -> None:
        """The engine has just been started again: what the last one did says nothing of it. Also at the worker's end."""
        self._close(lambda _: Verdict.ENGINE)
        self._hooks.over()

    def _close(self, judge: Callable[[_Held], Verdict]) -> None:
        """Gives everybody who waits the verdict, and ends the search."""
        if self._search is None:
            return
        for held in self._held:
            if not held.verdict.done():
                held.verdict.set_result(judge(held))
        self._held.clear()
        self._failed_rows.clear()
        if self._search is not asyncio.current_task():
            self._search.cancel()
        self._search = None
        self._count_time()
        self._said_at = None
        self._hooks.over()

    async def _find_out(self) -> None:
        """Probes the engine, round by round, until somebody is answered or the budget is used up."""
        loop = asyncio.get_running_loop()
        if self._canary is None:
            self._canary = await self._hooks.recall()
        rounds = 0
        while True:
            await self._patience.pause(self._patience.jitter(rounds))
            rounds += 1
            out = self._scheduler.sent_times
            if not self._held and not out:
                self._close(lambda _: Verdict.ENGINE)
                return
            late = loop.time() - self._began > self._budget.failing_s
            # What waits for memory or for a dead engine will be with the engine as well.
            busy = self._scheduler.requests_in_flight - len(self._held)
            asked = self._release(min(PROBES, self._window.requests) - busy, late=late)
            if self._canary is not None:
                sent = loop.time()
                if await self._sing(self._canary):
                    self.heard(sent)
                    return
            self._count_time()
            self._say()
            # What the engine had before it failed anybody may be long requests that it still computes.
            over = loop.time() - self._began > self._budget.failing_s
            if over and not any(time < self._began for time in self._scheduler.sent_times):
                self._end_of_budget(nothing_else=late and not asked)
                return

    def _release(self, room: int, *, late: bool) -> int:
        """Sends a round of probes; returns how many of them are not among those that wait.

        late: the budget is used up, so what matters is whether there is anything else that could be sent.
        """
        asked = 0
        if self._canary is None:
            # Rather new ones than those that failed: a window of one request must not stay with the first.
            asked = self._hooks.more(max(late, (room + 1) // 2))
            room -= asked
        else:
            # One at least fails beside the canary, or nobody would ever be judged.
            room = max(room, 1)
        released, self._held = self._held[: max(room, 0)], self._held[max(room, 0) :]
        for held in released:
            if not held.verdict.done():
                halves = self._canary is None and len(held.group.rows) > 1
                held.verdict.set_result(Verdict.HALVES if halves else Verdict.PROBE)
        return asked

    def _end_of_budget(self, *, nothing_else: bool) -> None:
        fields = {"waited_s": self._waited_s, "error": self._error[:200]}
        if self._canary is None and nothing_else and len(self._failed_rows) <= self._budget.few:
            log.warning(
                "no row was ever answered, and these are all that is left: they are judged by their tries",
                extra={"fields": {**fields, "rows": len(self._failed_rows)}},
            )
            self._tries_decide = True
            self._close(lambda _: Verdict.ROWS)
        else:
            log.error("gave up on the engine: it answers no request", extra={"fields": fields})
            self._hooks.given_up()

    @property
    def _waited_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self._began, 1)

    def _count_time(self) -> None:
        now = asyncio.get_running_loop().time()
        self._stats.engine_failing_s += now - self._counted
        self._counted = now

    def _say(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._began < SAY_AFTER_S or (self._said_at is not None and now - self._said_at < SAY_EVERY_S):
            return
        self._said_at = now
        fields = {
            "waited_s": self._waited_s,
            "at_most_s": self._budget.failing_s,
            "requests_waiting": len(self._held),
            "error": self._error[:200],
        }
        log.warning("waiting for the engine: it reports that it is healthy, but answers no request", extra={"fields": fields})
