"""What a failed request is, and what may become of it (`nightshift.driver.attribution`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from nightshift.driver.scheduler import Group
from nightshift.driver.stats import Retry


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
    """A request that brought no answer. until: when the engine may be asked again (the
    loop's time), if it said so. lasting: as of `nightshift.driver.engine.Failed`."""

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
class Heard:
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


@dataclass(frozen=True)
class Hooks:
    """What a trial needs of its worker.

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
