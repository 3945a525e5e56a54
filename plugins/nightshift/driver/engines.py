"""The engines of one worker, and which of them gets a request.

Most workers have one. Several serve the same model (`nightshift.driver.bootstrap.meet` asks each), and each has a window, a
health and a silence of its own. A request goes to the one with the fewest rows in relation to its window, never to one that
is away, or answers no request, while another does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from nightshift.driver.backoff import Silence
from nightshift.driver.health import EngineHealth, EngineLike
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.window import Window


class Standing(Enum):
    """What is known of an engine that is there, by what became of its requests (`nightshift.driver.attribution`)."""

    ANSWERS = auto()
    DOUBTED = auto()
    """A request failed, and no other one was answered beside it."""
    ILL = auto()
    """The same, and its requests went to other engines."""


@dataclass(eq=False)
class Engine:
    """One engine, as its worker sees it. number: from 0, in the order of ENGINE_URL."""

    number: int
    client: EngineLike
    window: Window
    health: EngineHealth
    silence: Silence
    standing: Standing = Standing.ANSWERS

    @property
    def shut(self) -> bool:
        """Whether it answers no request, as far as is known, so that it gets no new one."""
        return self.standing is not Standing.ANSWERS

    @property
    def answers(self) -> bool:
        """Whether it is there, and answers requests as far as is known."""
        return self.health.good and not self.shut

    @property
    def ready(self) -> bool:
        """Whether it may get a new request, if its window allows it."""
        return self.answers and self.silence.left_s <= 0


class Engines:
    """One at least. probed: gets requests if none is ready: failures must meet the same engine to be compared."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._all: list[Engine] = []
        self.probed: Engine | None = None

    def add(self, engine: Engine) -> None:
        self._all.append(engine)

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, group: Group) -> Engine:
        """The one that the group was sent to last, or is to be sent to."""
        return self._all[group.engine]

    @property
    def there(self) -> bool:
        """Whether one is there at least."""
        return any(engine.health.good for engine in self._all)

    @property
    def answer(self) -> bool:
        """Whether one is there, and answers requests as far as is known."""
        return any(engine.answers for engine in self._all)

    @property
    def ready(self) -> bool:
        return any(engine.ready for engine in self._all)

    @property
    def limit(self) -> int:
        """Rows that may be with all of them."""
        return sum(engine.window.limit for engine in self._all)

    @property
    def room(self) -> bool:
        """Whether one may get another row."""
        return any(engine.ready and self._rows(engine) < engine.window.limit for engine in self._all)

    def others_answer(self, engine: Engine) -> bool:
        return any(other.answers for other in self._all if other is not engine)

    def choose(self, group: Group) -> None:
        """Says where the group, which is in flight, is to be sent."""
        if len(self._all) == 1:
            return
        ready = [engine for engine in self._all if engine.ready]
        if not ready and self.probed is not None:
            ready = [self.probed]
        elif not ready:
            ready = [engine for engine in self._all if engine.health.good] or self._all

        def load(engine: Engine) -> tuple[bool, bool, float]:
            rows = self._rows(engine) - (len(group.rows) if engine.number == group.engine else 0)
            # A row that failed, or was there as an engine died, meets another one the next time: was it the row, or the engine?
            return rows >= engine.window.limit, engine.number == group.rows[0].failed_at, rows / max(1, engine.window.limit)

        chosen = min(ready, key=load).number
        self._scheduler.rows_at[group.engine] -= len(group.rows)
        self._scheduler.rows_at[chosen] += len(group.rows)
        group.engine = chosen

    def _rows(self, engine: Engine) -> int:
        return self._scheduler.rows_at[engine.number]
