"""Whose fault a failed request is: that of its rows, or the engine's.

Two requests to one engine that overlap in time met the same engine. If one of them is answered, the other one's rows are to
blame for its failure. If neither is answered, it is unknown: then failed requests wait here, nothing new is sent, and after
pauses a few of those that wait are sent again, beside a *canary*: a request that was answered before, whose answer is thrown
away. If it is answered, the rows that fail beside it are to blame. If it fails too, the engine is: it is waited for like an
absent one, no try of any row is spent, and when its budget is used up the worker makes way for another engine.

A *lasting* failure (`nightshift.driver.engine.Failed`) is made at the door: a key that is wrong, a filter in front of the
engine that dislikes a text, a page of a server that is no engine. Requests that were let in earlier may be answered long
after the door was shut, so only one that was sent at the same time tells. Meanwhile new requests go out, so that one row that
is turned away holds up no other. If nothing was ever answered and every request is turned away in the same way, that is a
mistake of the configuration: it ends the worker after `ALIKE_S`, with the engine's words. (Unless every row says by itself
what it asks for, as in a batch file: then they are all to blame.)

An attempt that has had no answer yet takes its canary from the run: a row that was answered in another attempt. A redo's rows
failed before and may all fail again, so it looks in the runs that it completes, too. If there is none either, the rows must
decide about each other: requests of several rows are halved, and rows that were never sent are sent beside those that failed,
so that one good row is found among bad ones; it is the canary from then on. If none is found within the budget, the engine is
to blame, unless a few rows are all that is left: so few may well all be bad, and their tries decide, or such a run would never
end. (A long run of nothing but bad rows ends with the attempts that it may take.)

What one of several engines does says nothing of another: only an answer of the same engine puts the blame on a row. An engine
that answers nobody while another one does gets nothing but canaries until it answers one; what it has failed goes to the
others, without a try spent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from nightshift.driver.backoff import Backoff
from nightshift.driver.engine import WrongEngine
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.faults import Canary, Fault, Heard, Held, Hooks, Verdict
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.stats import Retry, Stats

log = logging.getLogger(__name__)

PROBES: Final = 8
"""Requests that may be with the engine while it answers none, besides those that it had before."""
ROUNDS_LEAST: Final = 3
"""Of probes, before anything is concluded from the way in which all fail."""
ALIKE_S: Final = 60.0
"""How long an engine that has answered nothing may turn every request away in the same way."""
TOGETHER_S: Final = 1.0
"""Requests that were sent within this many seconds of each other came to the same door."""
AT_THE_DOOR_S: Final = 2.0
"""The longest pause between two rounds of probes while nothing was ever answered, and all are turned away."""
CREDENTIALS: Final = (401, 407)
"""They concern who asks, never what is asked."""
PROBE_EVERY_S: Final = 0.1
"""How often it is looked whether a probe that was not sent is still to be sent."""
SAY_AFTER_S: Final = 3.0
"""One bad row in a healthy engine is judged within this time, which is not worth a line in the log."""
SAY_EVERY_S: Final = 60.0


class Attribution:
    """The failed requests of one worker. send_canary(canary, engine): sends it; what went wrong, None if it was answered."""

    def __init__(
        self,
        scheduler: Scheduler,
        engines: Engines,
        patience: Backoff,
        stats: Stats,
        budget: EngineBudget,
        hooks: Hooks,
        send_canary: Callable[[Canary, Engine], Awaitable[Fault | None]],
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._patience = patience
        self._stats = stats
        self._budget = budget
        self._hooks = hooks
        self._send_canary = send_canary
        self._canary: Canary | None = None
        self._heard: defaultdict[int, Heard] = defaultdict(Heard)
        """By the engine's number."""
        self._tries_decide = False
        self._alike: tuple[str, int | None] | None = None
        """How every request fails, once that is known to be the rows' own mistake."""
        self._held: list[Held] = []
        self._probes: set[Group] = set()
        """Of the last round, while none of them is sent."""
        self._out = asyncio.Event()
        self._failed_rows: set[tuple[int, int]] = set()
        """Rows that failed since the engine answered none; no more of them than show that they are more than a few."""
        self._ways: dict[tuple[str, int | None], Fault] = {}
        """In how many ways requests failed since then, each with its last fault."""
        self._error = ""
        self._began = 0.0
        self._counted = 0.0
        self._said_at: float | None = None
        self._said_shut = float("-inf")
        self._search: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether no engine answers requests, as far as is known: nothing new may be sent."""
        return self._search is not None and self._any_shut and not self._engines.answer

    @property
    def heard_any(self) -> bool:
        """Whether this attempt ever had an answer."""
        return self._last_answer > float("-inf")

    @property
    def needs_others(self) -> bool:
        """Whether rows that were never sent are needed to find out whose fault it is: there is no canary."""
        return self._search is not None and self._canary is None

    @property
    def _last_answer(self) -> float:
        """When it came, of any engine."""
        return max((heard.answered for heard in self._heard.values()), default=float("-inf"))

    @property
    def _any_shut(self) -> bool:
        return any(engine.shut for engine in self._engines)

    def answered(self, sent: float, engine: Engine, canary: Canary) -> None:
        """A request that was sent at `sent` (the loop's time) was answered just now; it may serve as canary."""
        if self._canary is None or len(canary.body) < len(self._canary.body):
            self._canary = canary
        self.heard(sent, engine)

    def heard(self, sent: float, engine: Engine) -> None:
        """The engine answered a request that was sent at `sent`: who failed there while it was under way is to blame."""
        heard = self._heard[engine.number]
        heard.answered = asyncio.get_running_loop().time()
        heard.sent = max(heard.sent, sent)
        self._tries_decide = False
        self._alike = None
        if self._search is None or not self._concerns(engine):
            return
        if self._said_at is not None:
            log.warning("the engine answers again", extra={"fields": {"waited_s": self._waited_s}})

        def judge(held: Held) -> Verdict | None:
            if held.group.engine != engine.number:
                return None
            if held.fault.lasting and sent < held.group.sent - TOGETHER_S:
                return None
            return self._blame(held.group) if sent < held.failed + TOGETHER_S * held.fault.lasting else Verdict.ENGINE

        self._judge(judge, [engine])

    def _concerns(self, engine: Engine) -> bool:
        """Whether an answer of this engine says anything about what is searched for."""
        concerned = {held.group.engine for held in self._held} | {each.number for each in self._engines if each.shut}
        return not concerned or engine.number in concerned

    async def verdict(self, group: Group, fault: Fault) -> Verdict:
        """The request of this group failed just now: waits until it is known why."""
        if self._patience.stop.is_set():
            return Verdict.ENGINE
        if self._alike == (fault.why, fault.status):
            return Verdict.FINAL
        if self._answers_beside(group.engine, group.sent, fault) or self._tries_decide:
            return self._blame(group)
        loop = asyncio.get_running_loop()
        held = Held(group, fault, loop.time(), loop.create_future())
        self._held.append(held)
        self._engines.of(group).shut |= not fault.lasting
        self._note(fault)
        if len(self._failed_rows) <= max(self._budget.few, self._budget.enough):
            self._failed_rows.update((row.chunk, row.ordinal) for row in group.rows)
        if self._search is None:
            self._began = self._counted = loop.time()
            self._search = self._hooks.spawn(self._find_out())
        try:
            return await held.verdict
        finally:
            if held in self._held:
                self._held.remove(held)

    def _answers_beside(self, engine: int, sent: float, fault: Fault) -> bool:
        """Whether the engine has answered another request that met it together with one that was sent at `sent` and failed."""
        heard = self._heard[engine]
        return heard.sent >= sent - TOGETHER_S if fault.lasting else heard.answered > sent

    def sent(self, group: Group) -> None:
        """The group is sent just now."""
        if group in self._probes:
            self._probes.clear()
            self._out.set()

    def restarted(self, engine: Engine | None = None) -> None:
        """The engine has just been started again: what the last one did says nothing of it. None: all, at the worker's end."""
        self._judge(lambda _: Verdict.ENGINE, self._engines if engine is None else [engine])
        self._hooks.over()

    def _blame(self, group: Group) -> Verdict:
        return Verdict.CANARY if abs(self._heard[group.engine].canary - group.sent) <= TOGETHER_S else Verdict.ROWS

    def _note(self, fault: Fault) -> None:
        self._error = str(fault)
        self._ways[fault.why, fault.status] = fault

    def _judge(self, judge: Callable[[Held], Verdict | None], opened: Iterable[Engine]) -> None:
        """Gives those that wait their verdicts, and ends the search unless some wait on, or an engine is still shut.

        opened: engines that may get new requests again.
        """
        if self._search is None:
            return
        self._count_time()
        verdicts = [(held, judge(held)) for held in self._held]
        self._held = [held for held, verdict in verdicts if verdict is None]
        for held, verdict in verdicts:
            if verdict is not None and not held.verdict.done():
                held.verdict.set_result(verdict)
        for engine in opened:
            engine.shut = False
        self._failed_rows.clear()
        self._ways.clear()
        self._said_at = None
        if self._held or self._any_shut:
            # One was answered, and these are not judged yet: from now on they are the only ones.
            self._began = asyncio.get_running_loop().time()
            for held in self._held:
                self._note(held.fault)
        else:
            if self._search is not asyncio.current_task():
                self._search.cancel()
            self._search = None
        self._hooks.over()

    async def _find_out(self) -> None:
        """Probes the engine, round by round, until one is answered or the budget is used up."""
        loop = asyncio.get_running_loop()
        if self._canary is None:
            self._canary = await self._hooks.recall()
        rounds = 0
        while True:
            at = await self._next_round(rounds)
            if at is None:
                continue
            rounds += 1
            out = self._scheduler.sent_times
            if not self._held and not out:
                self._judge(lambda _: Verdict.ENGINE, self._engines)
                return
            if not out and rounds >= ROUNDS_LEAST and self._all_turned_away():
                return
            if self._canary is None and self._engines.others_answer(at):
                self._leave_to_others(at)
                continue
            late = loop.time() - self._began > self._budget.failing_s
            # What waits for memory or for a dead engine will be with the engine as well.
            busy = self._scheduler.requests_in_flight - len(self._held)
            asked = self._release(at, min(PROBES, at.window.requests) - busy, late=late)
            if self._canary is not None:
                if await self._sings(at):
                    return
                if self._engines.others_answer(at):
                    if at.shut:
                        self._leave_to_others(at)
                    continue
            self._count_time()
            self._say()
            # What the engine had before it failed anybody may be long requests that it still computes.
            over = loop.time() - self._began > self._budget.failing_s
            if over and not any(time < self._began for time in self._scheduler.sent_times):
                self._end_of_budget(nothing_else=late and not asked)
                return

    async def _next_round(self, rounds: int) -> Engine | None:
        """Waits for it; the engine that it is about, None if there is none now."""
        pause = self._patience.jitter(rounds)
        if self.needs_others and not self._any_shut:
            # It says no at once, and has yet to say anything else: to ask it more often costs it little.
            pause = min(pause, AT_THE_DOOR_S)
        await self._patience.pause(pause)
        at = self._next_probed()
        if at is not None:
            await at.silence.over()
        if at is not self._next_probed():
            return None  # It has answered meanwhile.
        self._engines.probed = at
        return at

    def _next_probed(self) -> Engine | None:
        """The engine of the next round: of the request that has waited longest, else one that is shut. None: they are away."""
        if len(self._engines) == 1:
            return next(iter(self._engines))
        waiting = [self._engines.of(held.group) for held in self._held]
        there = [each for each in (*waiting, *self._engines) if each.health.good]
        return next((each for each in there if each in waiting or each.shut), None)

    async def _probe_out(self) -> None:
        """Waits until a probe is sent: requests to other engines may have the memory, and a canary is to be beside it."""
        while len(self._engines) > 1 and not self._patience.stop.is_set():
            if not any(map(self._scheduler.wants, self._probes)):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_EVERY_S):
                    await self._out.wait()

    async def _sings(self, engine: Engine) -> bool:
        """Sends the engine the canary, once a probe is out; whether the search has ended."""
        assert self._canary is not None
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._probe_out()
        while self._heard[engine.number].answered <= began:
            sent = loop.time()
            fault = await self._send_canary(self._canary, engine)
            if fault is None:
                self._heard[engine.number].canary = sent
                self.heard(sent, engine)
                break
            if fault.why is Retry.DESCRIPTORS:
                # It did not reach the engine, which may answer others meanwhile: the search may be about one beside it.
                await self._patience.pause(self._patience.jitter(1))
                continue
            if self._answers_beside(engine.number, sent, fault):
                break
            self._note(fault)
            engine.shut |= len(self._engines) > 1
            return False
        return self._search is not asyncio.current_task()

    def _all_turned_away(self) -> bool:
        """Whether nothing was ever answered and all fail in one way that lasts, for long enough; ends the search then.

        Raises WrongEngine unless the rows are to blame.
        """
        faults = list(self._ways.values())
        if self.heard_any or len(faults) != 1 or not faults[0].lasting or self._waited_s < ALIKE_S:
            return False
        (fault,) = faults
        if not self._budget.rows_ask or fault.status in CREDENTIALS:
            if len(self._failed_rows) < self._budget.enough and fault.status not in CREDENTIALS:
                return False
            said = fault.message if fault.status is None else f"{fault.status}: {fault.message}"
            raise WrongEngine(f"the engine has answered no request, and turns every one away: {said}", status=fault.status)
        self._blame_all(fault)
        return True

    def _blame_all(self, fault: Fault) -> None:
        log.warning(
            "the engine has answered no request, and all fail alike: they are judged as they are",
            extra={"fields": {"waited_s": self._waited_s, "error": str(fault)[:200]}},
        )
        self._judge(lambda _: Verdict.FINAL, self._engines)
        self._alike = fault.why, fault.status

    def _release(self, at: Engine, room: int, *, late: bool) -> int:
        """Sends the engine a round of probes; returns how many of them are not among those that wait.

        late: the budget is used up, so what matters is whether there is anything else that could be sent.
        """
        asked = 0
        if self._canary is None:
            # Rather new ones than those that failed: a window of one request must not stay with the first.
            asked = self._hooks.more(max(late, (room + 1) // 2, 0))
            room -= asked
        else:
            # One at least fails beside the canary, or none would ever be judged.
            room = max(room, 1)
        released = [held for held in self._held if held.group.engine == at.number][: max(room, 0)]
        self._held = [held for held in self._held if held not in released]
        self._probes = {held.group for held in released}
        self._out.clear()
        for held in released:
            if not held.verdict.done():
                halves = self._canary is None and len(held.group.rows) > 1
                held.verdict.set_result(Verdict.HALVES if halves else Verdict.PROBE)
        return asked

    def _end_of_budget(self, *, nothing_else: bool) -> None:
        fields = {"waited_s": self._waited_s, "error": self._error[:200]}
        faults = list(self._ways.values())
        if (
            self._budget.rows_ask
            and not self.heard_any
            and len(faults) == 1
            and faults[0].why in (Retry.FAILED, Retry.INVALID_OUTPUT)
        ):
            self._blame_all(faults[0])
        elif self._canary is None and nothing_else and len(self._failed_rows) <= self._budget.few:
            log.warning(
                "no row was ever answered, and these are all that is left: they are judged by their tries",
                extra={"fields": {**fields, "rows": len(self._failed_rows)}},
            )
            self._tries_decide = True
            self._judge(lambda _: Verdict.ROWS, self._engines)
        else:
            log.error("gave up on the engine: it answers no request", extra={"fields": fields})
            self._hooks.given_up()

    @property
    def _waited_s(self) -> float:
        return round(asyncio.get_running_loop().time() - self._began, 1)

    def _count_time(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.open or not self.heard_any:
            self._stats.engine_failing_s += now - self._counted
        self._counted = now

    def _leave_to_others(self, engine: Engine) -> None:
        """The engine answers nobody, as far as is known, and others may: they get what it has failed."""
        engine.shut = True
        now = asyncio.get_running_loop().time()
        if now - self._said_shut >= SAY_EVERY_S:
            self._said_shut = now
            log.warning(
                "one engine answers no request: it gets none until it answers, and the others get its rows",
                extra={"fields": {"engine": engine.number, "error": self._error[:200]}},
            )
        self._judge(lambda held: Verdict.ENGINE if held.group.engine == engine.number else None, ())

    def _say(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - max(self._began, self._last_answer) < SAY_AFTER_S or (
            self._said_at is not None and now - self._said_at < SAY_EVERY_S
        ):
            return
        self._said_at = now
        fields = {
            "waited_s": self._waited_s,
            "at_most_s": self._budget.failing_s,
            "requests_waiting": len(self._held),
            "error": self._error[:200],
        }
        log.warning("waiting for the engine: it reports that it is healthy, but answers no request", extra={"fields": fields})
