"""How outcomes get into the sink, each whatever becomes of the others.

A batch that is refused is halved until those are alone which are refused. Whose fault that is, the sink's own code cannot tell:
a trigger, an added column, or answers of another form refuse every row, and would turn a backlog into dead letters at full
speed. So an answer becomes a dead letter only if the sink still takes what it took before, and either took another answer since
or has refused only a few. Until then it waits here, and so does one whose row another transaction holds; what comes after it
goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nightshift.driver.backoff import Backoff
from nightshift.stream.in_flight import HeldMessage
from nightshift.stream.messages import Answered, Dead, Outcome
from nightshift.stream.ports import SAY_EVERY, Sink, Unwritable, insist

log = logging.getLogger(__name__)

UNWRITABLE: Final = "unwritable"
"""The reason of a dead letter whose answer the sink refuses."""
BLAMED_MOST: Final = 3
"""Answers in a row that may be refused before another must be taken: a bad message may be the only one that comes."""
HELD: Final = "its row is locked, or the database breaks off what writes it"
REFUSES: Final = "a sink that takes answers"
"""What is missing while every answer is refused."""

Pending = tuple[HeldMessage, Outcome]


@dataclass(slots=True)
class _Waiting:
    """An outcome that the sink does not take now. why: in words. taken: how many answers it had taken when it first refused."""

    held: HeldMessage
    outcome: Outcome
    why: str
    taken: int


@dataclass(eq=False)
class Writer:
    """absent: what is waited for, as `insist` fills it.

    answered(messages), kept(dead letters, ids of those that have other outcomes): called when the sink has them.
    rest(): called when what waited was tried.
    """

    sink: Sink
    patience: Backoff
    absent: set[str]
    answered: Callable[[Sequence[HeldMessage]], None]
    kept: Callable[[Sequence[tuple[HeldMessage, Dead]], frozenset[str]], None]
    rest: Callable[[], None]
    _waiting: dict[int, _Waiting] = field(init=False, default_factory=dict)
    _some: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _taken: int = field(init=False, default=0)
    _blamed: int = field(init=False, default=0)
    _tried: int = field(init=False, default=0)

    def __len__(self) -> int:
        """How many outcomes wait."""
        return len(self._waiting) + self._tried

    async def take(self, batch: Sequence[Pending]) -> None:
        """Has the sink keep these outcomes, but those that must wait. Returns when it has."""
        locked = {each.outcome.key for each in self._waiting.values() if each.why == HELD}
        now = []
        for held, outcome in batch:
            if isinstance(outcome, Answered) and outcome.key in locked:
                self._wait(held, outcome, HELD, self._taken)
            else:
                now.append((held, outcome))
        await self._take(now, {})

    async def run(self) -> None:
        """Tries what waits again and again, for ever."""
        tries = 0
        while True:
            if not self._waiting:
                tries = 0
                self._some.clear()
                await self._some.wait()
            if tries % SAY_EVERY == 0:
                self._say(tries)
            tries += 1
            await self.patience.rest(tries)
            again, self._waiting = self._waiting, {}
            self._tried = len(again)
            await self._take(
                [(each.held, each.outcome) for each in again.values()], {key: each.taken for key, each in again.items()}
            )
            self._tried = 0
            self.rest()

    def _say(self, tries: int) -> None:
        reasons = {each.why: each.outcome.message.id for each in self._waiting.values()}
        for why, message in list(reasons.items())[:3]:
            count = sum(each.why == why for each in self._waiting.values())
            log.error(
                "the sink does not take outcomes: they are held until it does",
                extra={"fields": {"messages": count, "one": message, "error": why, "tries": tries}},
            )

    async def _take(self, batch: Sequence[Pending], since: dict[int, int]) -> None:
        """since: of those that have waited, how many answers had been taken when they were first refused."""
        before = self._taken
        dead = [(held, outcome) for held, outcome in batch if isinstance(outcome, Dead)]
        answered = [(held, outcome) for held, outcome in batch if isinstance(outcome, Answered)]
        refused = await self._write(answered) if answered else []
        blamed = await self._blame([(*each, since.get(id(each[0]), before)) for each in refused]) if refused else []
        refusing = [each for each in self._waiting.values() if isinstance(each.outcome, Answered) and each.why != HELD]
        (self.absent.add if any(each.taken == self._taken for each in refusing) else self.absent.discard)(REFUSES)
        await self._keep_dead([*dead, *blamed])

    async def _write(self, answered: list[tuple[HeldMessage, Answered]]) -> list[tuple[HeldMessage, Answered, str]]:
        """Returns those that are refused, and why."""
        try:
            answers = [each for _, each in answered]
            locked = await insist(self.patience, lambda: self.sink.write(answers), "answers", self.absent)
        except Unwritable as error:
            if len(answered) == 1:
                return [(*answered[0], str(error))]
            middle = len(answered) // 2
            return [*await self._write(answered[:middle]), *await self._write(answered[middle:])]
        for held, answer in answered:
            if answer.message.id in locked:
                self._wait(held, answer, HELD, self._taken)
        if written := [held for held, answer in answered if answer.message.id not in locked]:
            self._taken += len(written)
            self._blamed = 0
            self.answered(written)
        return []

    async def _blame(self, refused: Sequence[tuple[HeldMessage, Answered, str, int]]) -> list[tuple[HeldMessage, Dead]]:
        """Returns those whose own fault it is; the others wait."""
        sound = await insist(self.patience, self.sink.sound, "the sink", self.absent)
        few = self._blamed + len(refused) <= BLAMED_MOST
        dead = []
        for held, answer, why, since in refused:
            if sound and (few or self._taken > since):
                self._blamed += 1
                dead.append((held, Dead(held.message, UNWRITABLE, why, None, answer.tries, answer.key)))
            else:
                self._wait(held, answer, why, since)
        return dead

    async def _keep_dead(self, dead: Sequence[tuple[HeldMessage, Dead]]) -> None:
        if not dead:
            return
        try:
            letters = [each for _, each in dead]
            others = await insist(self.patience, lambda: self.sink.write_dead_letters(letters), "dead letters", self.absent)
        except Unwritable as error:
            if len(dead) == 1:
                self._wait(*dead[0], f"as a dead letter: {error}", self._taken)
                return
            middle = len(dead) // 2
            await self._keep_dead(dead[:middle])
            await self._keep_dead(dead[middle:])
            return
        self.kept(dead, others)

    def _wait(self, held: HeldMessage, outcome: Outcome, why: str, taken: int) -> None:
        self._waiting[id(held)] = _Waiting(held, outcome, why, taken)
        self._some.set()
