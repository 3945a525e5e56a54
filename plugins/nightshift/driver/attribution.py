"""Whose fault a failed request is: that of its rows, or the engine's. Synchronous, without I/O.

Two requests to one engine that overlap in time met the same engine. If one of them is answered, the other one's rows are to
blame for its failure. If neither is answered, it is unknown: the failed request is held, and its engine is asked again
(`nightshift.driver.fault_search`), with probes (requests that are held) and a *canary*: a request that was answered before,
whose answer is thrown away. What one engine does says nothing of another, so each has a standing of its own::

    standing  what happens                                          then      what becomes of the requests that it failed
    ANSWERS   one fails, another one is answered beside it          ANSWERS   their rows are to blame
    ANSWERS   one fails lastingly, none was sent with it            ANSWERS   held; new ones go out meanwhile
    ANSWERS   one fails, none is answered beside it                 DOUBTED   held; it gets no new ones
    DOUBTED   a request or a canary is answered                     ANSWERS   what was with it meanwhile: its rows are to blame;
                                                                              what failed before: sent again, no try spent
    DOUBTED   its canary fails, another engine answers              ILL       sent again, to the others, no try spent
    DOUBTED   its canary fails, no other engine answers             DOUBTED   held; the next round of probes
    DOUBTED   the same until the budget is used up                  (end)     the worker makes way for other engines; or their
                                                                              tries decide; or all rows are to blame (below)
    ILL       one that it still had fails, another engine answers   ILL       sent again at once, to the others, no try spent
    ILL       one that it still had fails, no other engine answers  DOUBTED   held
    ILL       a request or a canary is answered                     ANSWERS   as from DOUBTED
    any       the engine was started again                          ANSWERS   sent again, no try spent

Of several engines, one that is doubted gets the canary alone first, so that rows do not wait for one that is ill. Probes follow
once it is answered, so that a bad row does not go from engine to engine for ever. No answer within `ALONE_S` counts as a
failure, but only once for each engine and row: two engines that are merely slow must not pass a bad row on for ever, either.

A *lasting* failure (`nightshift.driver.engine.Failed`) is made at the door: a key that is wrong, a filter in front of the
engine that dislikes a text, a page of a server that is no engine. Requests that were let in earlier may be answered long
after the door was shut, so only one that was sent at the same time tells. If nothing was ever answered and every request is
turned away in the same way, that is a mistake of the configuration: it ends the worker after `ALIKE_S`, with the engine's
words. (Unless every row says by itself what it asks for, as in a batch file: then they are all to blame.)

An attempt that has had no answer yet takes its canary from the run: a row that was answered in another attempt. A redo's rows
failed before and may all fail again, so it looks in the runs that it completes, too. If there is none either, the rows must
decide about each other: requests of several rows are halved, and rows that were never sent are sent beside those that failed,
so that one good row is found among bad ones; it is the canary from then on. If none is found within the budget, the engine is
to blame, unless a few rows are all that is left: so few may well all be bad, and their tries decide, or such a run would never
end. (A long run of nothing but bad rows ends with the attempts that it may take.)
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from nightshift.driver.engines import Engine, Engines, Standing
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Retry

ALIKE_S: Final = 60.0
"""How long an engine that has answered nothing may turn every request away in the same way."""
TOGETHER_S: Final = 1.0
"""Requests that were sent within this many seconds of each other came to the same door."""
ALONE_S: Final = 60.0
"""How long rows wait for the canary of their engine while another one answers."""
CREDENTIALS: Final = (401, 407)
"""They concern who asks, never what is asked."""


class Verdict(Enum):
    """What becomes of a failed request."""

    ROWS = auto()
    """Its rows are to blame."""
    CANARY = auto()
    """The same, and the one that was answered meanwhile is a canary that was sent beside it."""
    FINAL = auto()
    """Its rows are to blame, and another try would show nothing more."""
    ENGINE = auto()
    """They are not."""
    PROBE = auto()
    """That is not known yet: it is to be sent again now."""
    HALVES = auto()
    """The same, in halves."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A request that brought no answer. until: when the engine may be asked again (the loop's time), if it said so. lasting: as
    of `nightshift.driver.engine.Failed`."""

    why: Retry
    message: str
    status: int | None = None
    until: float = 0.0
    lasting: bool = False

    def __str__(self) -> str:
        return f"{self.why}: {self.message}" if self.status is None else f"{self.why}: {self.status}: {self.message}"


@dataclass(frozen=True, slots=True)
class Canary:
    """A request that was answered once. payloads: of its rows."""

    path: str
    body: bytes
    payloads: list[Any]


@dataclass(slots=True)
class LastAnswers:
    """Of one engine: when its last answer came, and when the youngest request and canary that it answered were sent."""

    answered: float = float("-inf")
    sent: float = float("-inf")
    canary: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Held:
    """A failed request that waits for its verdict. failed: when (the loop's time)."""

    group: Group
    fault: Fault
    failed: float
    verdict: asyncio.Future[Verdict]


EARLY: Final = Fault(Retry.TIMEOUT, f"no answer to a small request within {ALONE_S:.0f} s")
"""Of a canary that had not all the time of a request."""

Judged = list[tuple[Held, Verdict]]
"""Requests that wait no more."""


class Attribution:
    """What is known of each engine of a worker, and the failed requests that are held. now: the loop's time, in seconds."""

    def __init__(self, engines: Engines, budget: EngineBudget) -> None:
        self._engines = engines
        self._budget = budget
        self.canary: Canary | None = None
        self.last_answers: defaultdict[int, LastAnswers] = defaultdict(LastAnswers)
        """By the engine's number."""
        self.held: list[Held] = []
        self.last: Fault | None = None
        """The one that was noted last."""
        self.ill_since: dict[int, float] = {}
        """By the engine's number."""
        self._tries_decide = False
        self._alike: tuple[str, int | None] | None = None
        """How every request fails, once that is known to be the rows' own mistake."""
        self.failed_rows: set[tuple[int, int]] = set()
        """Rows that failed since the engine answered none; no more of them than show that they are more than a few."""
        self._ways: dict[tuple[str, int | None], Fault] = {}
        """In how many ways requests failed since then, each with its last fault."""
        self._began = 0.0

    @property
    def ever_answered(self) -> bool:
        """Whether this attempt ever had an answer."""
        return self.last_answer > float("-inf")

    @property
    def last_answer(self) -> float:
        """When it came, of any engine."""
        return max((last.answered for last in self.last_answers.values()), default=float("-inf"))

    @property
    def silent_since(self) -> float:
        """When the first request of those failed that tell of no engine that answers."""
        return max(self._began, self.last_answer)

    def held_at(self, engine: Engine) -> list[Held]:
        return [held for held in self.held if held.group.engine == engine.number]

    def is_answered_beside(self, engine: int, sent: float, fault: Fault) -> bool:
        """Whether the engine has answered another request that met it together with one that was sent at `sent` and failed."""
        last = self.last_answers[engine]
        return last.sent >= sent - TOGETHER_S if fault.lasting else last.answered > sent

    def judge(self, group: Group, fault: Fault) -> Verdict | None:
        """What is known at once of a request that failed just now; None: it must be held."""
        if self._alike == (fault.why, fault.status):
            return Verdict.FINAL
        if self.is_answered_beside(group.engine, group.sent, fault) or self._tries_decide:
            return self._blame(group)
        engine = self._engines.of(group)
        return Verdict.ENGINE if engine.standing is Standing.ILL and self._engines.others_answer(engine) else None

    def hold(self, held: Held) -> None:
        """Nothing is known yet of why this one failed."""
        if not held.fault.lasting:
            self._engines.of(held.group).standing = Standing.DOUBTED
        self.held.append(held)
        self.note(held.fault)
        if len(self.failed_rows) <= max(self._budget.few, self._budget.enough):
            self.failed_rows.update((row.chunk, row.ordinal) for row in held.group.rows)

    def let_go(self, held: Held) -> None:
        """It waits no more, whether it was judged or called back."""
        if held in self.held:
            self.held.remove(held)

    def doubt(self, engine: Engine, fault: Fault) -> None:
        """Its canary failed."""
        if fault is EARLY:
            for row in (row for held in self.held_at(engine) for row in held.group.rows):
                row.hurried += 1
        if engine.standing is Standing.ANSWERS and len(self._engines) > 1:
            engine.standing = Standing.DOUBTED
        self.note(fault)

    def note(self, fault: Fault) -> None:
        self.last = fault
        self._ways[fault.why, fault.status] = fault

    def begin(self, now: float) -> None:
        """Since now it is not known of every engine that it answers."""
        self._began = now

    def note_answer(self, engine: Engine, sent: float, now: float) -> None:
        """The engine answered a request or a canary that was sent at `sent`."""
        last = self.last_answers[engine.number]
        last.answered, last.sent = now, max(last.sent, sent)
        self._tries_decide = False
        self._alike = None

    def clear(self, engine: Engine, sent: float, now: float) -> Judged:
        """The engine answers: who failed there while a request was under way that was sent at `sent` is to blame."""

        def judge(held: Held) -> Verdict | None:
            if held.fault.lasting and sent < held.group.sent - TOGETHER_S:
                return None
            until = held.failed + (TOGETHER_S if held.fault.lasting else 0.0)
            return self._blame(held.group) if sent < until else Verdict.ENGINE

        return self._reopen([engine], judge, now, answered=True)

    def forgive(self, engines: Iterable[Engine], now: float) -> Judged:
        """What these have failed so far says nothing of them, or of its rows."""
        return self._reopen(engines, lambda _: Verdict.ENGINE, now)

    def give_away(self, engine: Engine, now: float) -> Judged:
        """The engine answers nobody, as far as is known, and others do: they get what it has failed."""
        engine.standing = Standing.ILL
        self.ill_since.setdefault(engine.number, now)
        return self._take([(held, Verdict.ENGINE) for held in self.held_at(engine)])

    def patience(self, engine: Engine) -> float | None:
        """How long a canary of this engine may take, in seconds; None: as long as any request."""
        hurried = [row.hurried for held in self.held_at(engine) for row in held.group.rows]
        return ALONE_S if hurried and max(hurried) < len(self._engines) > 1 else None

    def ready_at(self, engine: Engine) -> float:
        """When the first of those that are held may be sent again, as the engine has said of them."""
        return min((held.fault.until for held in self.held_at(engine)), default=0.0)

    def release(self, engine: Engine, most: int, now: float) -> Judged:
        """Takes the next probes of this engine out of those that are held; without a canary they are halved."""
        released = [held for held in self.held_at(engine) if held.fault.until <= now][: max(most, 0)]
        return self._take(
            [(held, Verdict.HALVES if self.canary is None and len(held.group.rows) > 1 else Verdict.PROBE) for held in released]
        )

    def find_alike(self, now: float) -> Fault | WrongEngine | None:
        """How every request was turned away, if nothing was ever answered, for long enough.

        A fault: it is the rows' own mistake. An exception, for the caller to raise: it is not.
        """
        faults = list(self._ways.values())
        if self.ever_answered or len(faults) != 1 or not faults[0].lasting or now - self.silent_since < ALIKE_S:
            return None
        (fault,) = faults
        if self._budget.rows_ask and fault.status not in CREDENTIALS:
            return fault
        if len(self.failed_rows) < self._budget.enough and fault.status not in CREDENTIALS:
            return None
        said = fault.message if fault.status is None else f"{fault.status}: {fault.message}"
        return WrongEngine(f"the engine has answered no request, and turns every one away: {said}")

    def blame_all(self, fault: Fault, now: float) -> Judged:
        judged = self._reopen(self._engines, lambda _: Verdict.FINAL, now)
        self._alike = fault.why, fault.status
        return judged

    def let_tries_decide(self, now: float) -> Judged:
        self._tries_decide = True
        return self._reopen(self._engines, lambda _: Verdict.ROWS, now)

    def conclude(self, *, nothing_else: bool) -> Verdict | Fault:
        """The budget is used up. A fault: all rows are to blame for it; ROWS: the tries of those that are left decide; ENGINE:
        the worker makes way for other engines. nothing_else: no other row could be sent."""
        faults = list(self._ways.values())
        alike = len(faults) == 1 and faults[0].why in (Retry.FAILED, Retry.INVALID_OUTPUT)
        if self._budget.rows_ask and not self.ever_answered and alike:
            return faults[0]
        few = self.canary is None and nothing_else and len(self.failed_rows) <= self._budget.few
        return Verdict.ROWS if few else Verdict.ENGINE

    def _blame(self, group: Group) -> Verdict:
        return Verdict.CANARY if abs(self.last_answers[group.engine].canary - group.sent) <= TOGETHER_S else Verdict.ROWS

    def _reopen(
        self, engines: Iterable[Engine], judge: Callable[[Held], Verdict | None], now: float, *, answered: bool = False
    ) -> Judged:
        """These engines get new requests again; `judge` decides of what they have failed, None: it is held on.

        answered: because one has answered; otherwise the budget counts on while another one is doubted.
        """
        judged: Judged = []
        for engine in engines:
            engine.standing = Standing.ANSWERS
            self.ill_since.pop(engine.number, None)
            judged += [(held, verdict) for held in self.held_at(engine) if (verdict := judge(held)) is not None]
        self._take(judged)
        if answered or not (self.held or any(engine.shut for engine in self._engines)):
            # From now on those that are left are the only ones.
            self.failed_rows.clear()
            self._ways.clear()
            self._began = now
            for held in self.held:
                self.note(held.fault)
        return judged

    def _take(self, judged: Judged) -> Judged:
        taken = [held for held, _ in judged]
        self.held = [held for held in self.held if held not in taken]
        return judged
