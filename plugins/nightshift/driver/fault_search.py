"""Finds out why requests fail: waits, and sends probes and canaries, until `nightshift.driver.attribution` can judge.

Each engine that has failed a request for an unknown cause is searched by itself, in rounds with pauses between them, until it
answers or the budget is used up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.driver.attribution import EARLY, Attribution, Canary, Fault, Held, Judged, Verdict
from nightshift.driver.backoff import Backoff
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Retry, Stats

log = logging.getLogger(__name__)

PROBES: Final = 8
"""Requests that may be with the engine while it answers none, besides those that it had before."""
ROUNDS_LEAST: Final = 3
"""Of probes, before anything is concluded from the way in which all fail."""
AT_THE_DOOR_S: Final = 2.0
"""The longest pause between two rounds of probes while nothing was ever answered, and all are turned away."""
PROBE_EVERY_S: Final = 0.1
"""How often it is looked whether a probe that was not sent is still to be sent."""
RESTART_S: Final = 180.0
"""How long an engine must be ill before its supervisor is asked to start it again, and the time until it is asked again."""
SAY_AFTER_S: Final = 3.0
"""One bad row in a healthy engine is judged within this time, which is not worth a line in the log."""
SAY_EVERY_S: Final = 60.0


@dataclass(frozen=True)
class Hooks:
    """What a search needs of its worker.

    recall(): a request that was answered in another attempt. more(count): sends up to that many requests that do not wait here;
    returns how many there were. over(): called when requests may be sent again. call_back(engine's number): takes back what the
    engine has, to be sent to another one. given_up(): called when the budget is used up.
    spawn: makes a task whose failure ends the worker.
    """

    recall: Callable[[], Awaitable[Canary | None]]
    more: Callable[[int], int]
    over: Callable[[], None]
    call_back: Callable[[int], None]
    given_up: Callable[[], None]
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(eq=False)
class _Search:
    """Of one engine. probes: of the last round, while none of them is sent; out: set when one is.

    said, asked: when the log said last that it is ill, and when it was last asked for to be started again (the loop's time).
    """

    task: asyncio.Task[None]
    probes: set[Group] = field(default_factory=set)
    out: asyncio.Event = field(default_factory=asyncio.Event)
    said: float = float("-inf")
    asked: float = float("-inf")


@dataclass(eq=False)
class FaultSearch:
    """The failed requests of one worker. send_canary(canary, engine): sends it; what went wrong, None if it was answered."""

    scheduler: Scheduler
    engines: Engines
    patience: Backoff
    stats: Stats
    budget: EngineBudget
    hooks: Hooks
    send_canary: Callable[[Canary, Engine], Awaitable[Fault | None]]
    _searches: dict[int, _Search] = field(init=False, default_factory=dict)
    """By the engine's number."""
    _counted: float = field(init=False, default=0.0)
    _said_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.known = Attribution(self.engines, self.budget)

    @property
    def needs_others(self) -> bool:
        """Whether rows that were never sent are needed to find out whose fault it is: there is no canary."""
        return bool(self._searches) and self.known.canary is None

    def answered(self, sent: float, engine: Engine, canary: Canary) -> None:
        """A request that was sent at `sent` (the loop's time) was answered just now; it may serve as canary."""
        if self.known.canary is None or len(canary.body) < len(self.known.canary.body):
            self.known.canary = canary
        self.note_answer(sent, engine)

    def note_answer(self, sent: float, engine: Engine) -> None:
        """The engine answered a request that was sent at `sent`."""
        now = _now()
        self.known.note_answer(engine, sent, now)
        if engine.number not in self._searches:
            return
        if self._said_at is not None:
            log.warning("the engine answers again", extra={"fields": {"waited_s": self._waited_s}})
        self._tell(lambda: self.known.clear(engine, sent, now), [engine])

    async def verdict(self, group: Group, fault: Fault) -> Verdict:
        """The request of this group failed just now: waits until it is known why."""
        if self.patience.stop.is_set():
            return Verdict.ENGINE
        if (verdict := self.known.judge(group, fault)) is not None:
            return verdict
        held = Held(group, fault, _now(), asyncio.get_running_loop().create_future())
        self.known.hold(held)
        if group.engine not in self._searches:
            if not self._searches:
                self._counted = _now()
                self.known.begin(self._counted)
            self._searches[group.engine] = _Search(self.hooks.spawn(self._find_out(self.engines.of(group))))
        try:
            return await held.verdict
        finally:
            self.known.let_go(held)

    def sent(self, group: Group) -> None:
        """The group is sent just now."""
        if (search := self._searches.get(group.engine)) is not None and group in search.probes:
            search.probes.clear()
            search.out.set()

    def restarted(self, engine: Engine | None = None) -> None:
        """The engine has just been started again: what the last one did says nothing of it. None: all, at the worker's end."""
        engines = list(self.engines) if engine is None else [engine]
        self._tell(lambda: self.known.forgive(engines, _now()), engines)
        self.hooks.over()

    def _tell(self, judge: Callable[[], Judged], reopened: Iterable[Engine] = ()) -> None:
        """Tells those that are judged their verdicts. The searches of reopened engines end, unless requests are held there."""
        if not self._searches:
            return
        self._count_time()
        _set(judge())
        for engine in reopened:
            if engine.number in self._searches and not self.known.held_at(engine):
                search = self._searches.pop(engine.number)
                if search.task is not asyncio.current_task():
                    search.task.cancel()
        self._said_at = None
        self.hooks.over()

    async def _find_out(self, engine: Engine) -> None:
        """Asks the engine, round by round, until it answers or the budget is used up."""
        if self.known.canary is None and len(self._searches) == 1:
            self.known.canary = await self.hooks.recall()
        search, rounds = self._searches.get(engine.number), 0
        while search is not None and await self._goes_on(engine, search, rounds):
            rounds += 1

    async def _goes_on(self, engine: Engine, search: _Search, rounds: int) -> bool:
        """Pauses, and then asks the engine once; whether it must be asked again."""
        await self._pause(engine, rounds)
        known, single, others = self.known, len(self.engines) == 1, self.engines.others_answer(engine)
        if not engine.health.good and not single:
            # It is asked when it is back. Until then the others get what it has failed.
            if others and known.held_at(engine):
                self._give_away(engine, search)
            return True
        if self._is_idle(engine, others=others):
            self._tell(lambda: known.forgive([engine], _now()), [engine])
            return False
        if rounds + 1 >= ROUNDS_LEAST and (alike := known.find_alike(_now())) is not None:
            return self._conclude_alike(alike)
        late, asked = self._is_over, 0
        if known.canary is None and others and not late:
            self._give_away(engine, search)
            return True
        if known.canary is None:
            asked, fault = self._probe(engine, search, late=late), None
        else:
            fault = await self._send_canary(engine, search)
        if self._searches.get(engine.number) is not search:
            return False
        if self.engines.others_answer(engine):
            if fault is not None:
                self._give_away(engine, search, fault)
            return True
        self._count_time()
        self._say()
        # What the engine had before it failed anybody may be long requests that it still computes.
        if self._is_over and not any(sent < known.silent_since for sent in self._sent()):
            self._end_budget(nothing_else=late and not asked)
            return False
        return True

    async def _pause(self, engine: Engine, rounds: int) -> None:
        """Before a round."""
        pause = self.patience.jitter(rounds)
        if self.needs_others and not engine.shut:
            # It says no at once, and has yet to say anything else: to ask it more often costs it little.
            pause = min(pause, AT_THE_DOOR_S)
        await self.patience.pause(pause)
        if (put_off_s := self.known.ready_at(engine) - _now()) > 0:
            # A probe that waited after it was released would not be with the engine beside the canary.
            await self.patience.pause(put_off_s)
        await engine.silence.over()

    def _is_idle(self, engine: Engine, *, others: bool) -> bool:
        """Whether only new rows can tell: it has none, and there is no canary, or no other engine that goes on meanwhile."""
        unasked = self.known.canary is None or len(self.engines) == 1
        return unasked and not others and not self._sent(engine.number) and not self.known.held_at(engine)

    def _sent(self, engine: int | None = None) -> list[float]:
        """When the requests that an engine has now, or all have, were sent (the loop's time)."""
        return [each.sent for each in self.scheduler.in_flight if engine in (None, each.engine) and not each.resting]

    async def _send_canary(self, engine: Engine, search: _Search) -> Fault | None:
        """Sends the engine the canary, of several engines first alone, then beside probes; what went wrong with it."""
        held = bool(self.known.held_at(engine))
        if len(self.engines) > 1 and held:
            fault = await self._send(engine, search, judge=False)
            if fault is not None or self._searches.get(engine.number) is not search:
                return fault
        if len(self.engines) == 1 or held:
            self._probe(engine, search)
            await self._wait_for_probe(search)
        return await self._send(engine, search, judge=True)

    async def _send(self, engine: Engine, search: _Search, *, judge: bool) -> Fault | None:
        """Sends the engine the canary, until it or any request is answered, or it fails.

        judge: whether its answer judges those that are held.
        """
        assert self.known.canary is not None
        began, last = _now(), self.known.last_answers[engine.number]
        while last.answered <= began:
            sent = _now()
            try:
                async with asyncio.timeout(self.known.patience(engine)):
                    fault = await self.send_canary(self.known.canary, engine)
            except TimeoutError:
                fault = EARLY
            if fault is None:
                last.canary = sent
                if judge:
                    self.note_answer(sent, engine)
                else:
                    self.known.note_answer(engine, sent, _now())
                return None
            if fault.why is Retry.DESCRIPTORS:
                # It did not reach the engine, which may answer others meanwhile.
                await self.patience.pause(self.patience.jitter(1))
                continue
            if self.known.is_answered_beside(engine.number, sent, fault):
                return None
            self.known.doubt(engine, fault)
            return fault
        return None

    async def _wait_for_probe(self, search: _Search) -> None:
        """Waits until one is sent: requests to other engines may have the memory, and a canary is to be beside it."""
        while len(self.engines) > 1 and not self.patience.stop.is_set():
            if not any(map(self.scheduler.wants, search.probes)):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_EVERY_S):
                    await search.out.wait()

    def _probe(self, engine: Engine, search: _Search, *, late: bool = False) -> int:
        """Sends the engine a round of probes; returns how many of them are not among those that are held.

        late: the budget is used up, so what matters is whether there is anything else that could be sent.
        """
        asked = 0
        # What waits for memory or for a dead engine will be with the engine as well.
        busy = sum(group.engine == engine.number for group in self.scheduler.in_flight) - len(self.known.held_at(engine))
        room = min(PROBES, engine.window.requests) - busy
        if self.known.canary is None:
            # Rather new ones than those that failed: a window of one request must not stay with the first.
            self.engines.probed = engine
            asked = self.hooks.more(max((room + 1) // 2, 1 if late else 0))
            room -= asked
        else:
            # One at least fails beside the canary, or none would ever be judged.
            room = max(room, 1)
        released = self.known.release(engine, room, _now())
        search.probes = {held.group for held, _ in released}
        search.out.clear()
        _set(released)
        return asked

    def _give_away(self, engine: Engine, search: _Search, fault: Fault | None = None) -> None:
        """The engine answers nobody, as far as is known, and others may: they get its rows. fault: of its canary."""
        now = _now()
        if now - search.said >= SAY_EVERY_S:
            search.said = now
            error = str(self.known.last)[:200]
            log.warning(
                "one engine answers no request: it gets none until it answers, and the others get its rows",
                extra={"fields": {"engine": engine.number, "error": error}},
            )
        if any(held.fault.why is Retry.TIMEOUT for held in self.known.held_at(engine)):
            # What came later than those that had all their time waits in vain as well.
            self.hooks.call_back(engine.number)
        self._tell(lambda: self.known.give_away(engine, now))
        since = max(self.known.ill_since[engine.number], search.asked)
        if fault is not None and fault is not EARLY and now - since >= RESTART_S:
            search.asked = now
            log.warning(
                "one engine is ill: its supervisor is asked to start it again", extra={"fields": {"engine": engine.number}}
            )
            engine.client.ask_restart()

    def _conclude_alike(self, alike: Fault | WrongEngine) -> bool:
        """Every request was turned away in this way; whether the search goes on all the same."""
        if self._sent():
            # One of them may yet be answered. Nothing is added to them, or a slow refusal would never be concluded from.
            return True
        if isinstance(alike, WrongEngine):
            raise alike
        self._blame_all(alike)
        return False

    def _blame_all(self, fault: Fault) -> None:
        log.warning(
            "the engine has answered no request, and all fail alike: they are judged as they are",
            extra={"fields": {"waited_s": self._waited_s, "error": str(fault)[:200]}},
        )
        self._tell(lambda: self.known.blame_all(fault, _now()), self.engines)

    def _end_budget(self, *, nothing_else: bool) -> None:
        fields = {"waited_s": self._waited_s, "error": str(self.known.last)[:200]}
        match self.known.conclude(nothing_else=nothing_else):
            case Fault() as fault:
                self._blame_all(fault)
            case Verdict.ROWS:
                log.warning(
                    "no row was ever answered, and these are all that is left: they are judged by their tries",
                    extra={"fields": {**fields, "rows": len(self.known.failed_rows)}},
                )
                self._tell(lambda: self.known.let_tries_decide(_now()), self.engines)
            case _:
                log.error("gave up on the engine: it answers no request", extra={"fields": fields})
                self.hooks.given_up()

    @property
    def _is_over(self) -> bool:
        """Whether the budget is used up."""
        return _now() - self.known.silent_since > self.budget.failing_s

    @property
    def _waited_s(self) -> float:
        return round(_now() - self.known.silent_since, 1)

    def _count_time(self) -> None:
        now = _now()
        if not self.known.ever_answered or (any(engine.shut for engine in self.engines) and not self.engines.answer):
            self.stats.engine_failing_s += now - self._counted
        self._counted = now

    def _say(self) -> None:
        now = _now()
        if now - self.known.silent_since < SAY_AFTER_S or (self._said_at is not None and now - self._said_at < SAY_EVERY_S):
            return
        self._said_at = now
        fields = {
            "waited_s": self._waited_s,
            "at_most_s": self.budget.failing_s,
            "requests_waiting": len(self.known.held),
            "error": str(self.known.last)[:200],
        }
        log.warning("waiting for the engine: it reports that it is healthy, but answers no request", extra={"fields": fields})


def _now() -> float:
    return asyncio.get_running_loop().time()


def _set(judged: Judged) -> None:
    for held, verdict in judged:
        if not held.verdict.done():
            held.verdict.set_result(verdict)
