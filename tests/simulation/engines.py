"""An engine for each worker: seats and a queue as vLLM has them, and the ways in which it fails.

Faults of its own (a 500, a reply that is none, a request that gets stuck) hit a row once at most in an engine's life, and it
dies of nothing with one row in it once at most: by design a row that suffers this again and again is a dead letter, so more
of it would condemn innocent rows, and rightly. Bad rows (`rows.Nature`) do what they do every time.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nightshift.driver.engine import Busy, Failed, Gone, Load, Refused, Replied, SendResult, Stranger, Unsent
from nightshift.tasks.base import Reason
from tests.simulation.rows import ABORTED, GARBAGE, Nature, Rows, ordinals_of
from tests.simulation.virtual import VirtualLoop

WIRE_S: Final = 0.002
REFUSED: Final = {Nature.TOO_LONG: Reason.TOO_LONG, Nature.REJECTED: Reason.REJECTED}


class Fails(StrEnum):
    """What an engine that calls itself healthy does to every request."""

    ERROR = "error"
    GARBAGE = "garbage"
    BUSY = "busy"
    ABORT = "abort"
    RESET = "reset"
    HANG = "hang"
    """It answers no request, nor the ones that it has."""
    LATE = "late"
    """It computes longer than anybody waits."""
    SLOW = "slow"
    """It computes long, but not as long as that, for a seat and in it."""
    WRONG = "wrong model"


OUTAGES: Final = (Fails.ERROR, Fails.GARBAGE, Fails.BUSY, Fails.ABORT, Fails.RESET)
"""Those that are drawn."""
LONG: Final = {Fails.LATE: 1.1, Fails.SLOW: 0.45}
"""Parts of the time that a request may take."""
FAILS: Final[dict[Fails, SendResult]] = {
    Fails.ERROR: Failed("internal error", status=500),
    Fails.GARBAGE: Replied(GARBAGE),
    Fails.BUSY: Busy("429", 1.0),
    Fails.ABORT: Replied(ABORTED),
    Fails.RESET: Gone("connection reset by peer"),
    Fails.WRONG: Failed("The model `m` does not exist.", Reason.REJECTED, 404, lasting=True),
}


@dataclass(frozen=True)
class Failing:
    """From `start` to `end` (seconds) every request fails; first: of each pod's engines only those to so many, 0: to all."""

    start: float
    end: float
    how: Fails
    first: int = 0


@dataclass(frozen=True)
class Climate:
    """How engines behave in one schedule. Probabilities are per request; times are means in seconds.

    row_s: of a request, however many rows it has; uneven: by how much of it engines differ. seats: rows computed at once.
    timeout_s: after which a request is given up (the driver's own limit).
    downtime_s: of a restart. metrics: whether it tells its load. connections: for how many at once the worker has descriptors.
    supervised: whether an engine is started again, and well then, if its worker asks for that.
    """

    row_s: float = 0.2
    uneven: float = 0.0
    seats: int = 8
    timeout_s: float = 120.0
    downtime_s: float = 10.0
    metrics: bool = True
    connections: int = 1 << 20
    busy: float = 0.0
    failed: float = 0.0
    invalid: float = 0.0
    aborted: float = 0.0
    stuck: float = 0.0
    reset: float = 0.0
    storms: tuple[tuple[float, float], ...] = ()
    failing: tuple[Failing, ...] = ()
    supervised: bool = False
    strange: tuple[tuple[float, float], ...] = ()
    """When the first of each pod's engines is replaced by one that serves something else, and by one as before."""

    def faults(self) -> str:
        """The faults that can happen, in words."""
        names = ("busy", "failed", "invalid", "aborted", "stuck", "reset")
        return " ".join(
            [f"{name}={getattr(self, name):.2f}" for name in names if getattr(self, name)]
            + [f"connections={self.connections}" for _ in range(self.connections < 1 << 20)]
            + [f"storm={start:.0f}-{end:.0f}s" for start, end in self.storms]
            + [f"another model={start:.0f}-{end:.0f}s of the first" for start, end in self.strange]
            + [f"{span.how}={span.start:.0f}-{span.end:.0f}s{' of the first' * span.first}" for span in self.failing]
        )

    def fails_everybody(self, now: float, engine: int) -> Fails | None:
        """How every request ends now at the engine with this number; None if they do not all end badly."""
        spans = (span for span in self.failing if not 0 < span.first <= engine)
        return next((span.how for span in spans if span.start <= now < span.end), None)

    def is_strange(self, now: float, engine: int) -> bool:
        """Whether the engine with this number serves something else now."""
        return engine == 0 and any(start <= now < end for start, end in self.strange)


class EngineEvents:
    """What an engine tells the checker; the methods do nothing here."""

    def sent(self, ordinals: list[int], *, canary: bool) -> None:
        """The worker is about to send these rows. canary: a request that was answered before."""

    def computing(self, ordinals: list[int]) -> None:
        """The engine begins to compute these rows."""

    def answered(self, ordinals: list[int], outcome: SendResult) -> None:
        """The worker has the outcome."""

    def hung_up(self, ordinals: list[int]) -> None:
        """The worker waits for these rows no more."""

    def died(self, why: str) -> None:
        """The engine is gone for a while."""

    def asked_restart(self) -> None:
        """The worker says that it is ill."""


@dataclass(eq=False, slots=True)
class _Request:
    ordinals: list[int]
    reply: asyncio.Future[SendResult]
    fault: str = ""
    computing: bool = False
    over: bool = False


class SimulatedEngine:
    """`send`, `healthy` and `load` as the driver's engine has them."""

    def __init__(
        self,
        loop: VirtualLoop,
        rows: Rows,
        climate: Callable[[], Climate],
        rng: random.Random,
        events: EngineEvents,
        number: int = 0,
    ) -> None:
        self._loop = loop
        self._rows = rows
        self._climate = climate
        self._rng = rng
        self._events = events
        self._number = number
        self._pace = 1.0 + rng.uniform(-1, 1) * climate().uneven
        self._down_until = 0.0
        self._stalled_until = 0.0
        self._requests: dict[_Request, None] = {}
        self._queue: deque[_Request] = deque()
        self._computing = 0
        self._connections = 0
        self._preemptions = 0
        self._hurt: Counter[int] = Counter()
        self._alone_deaths: Counter[int] = Counter()
        self._cured = False
        self.deaths = 0

    async def send(self, path: str, body: bytes, *, canary: bool = False, headers: object = None) -> SendResult:
        ordinals = ordinals_of(body)
        self._events.sent(ordinals, canary=canary)
        if self._connections >= self._climate().connections:
            outcome: SendResult = Unsent("too many open files")
            self._events.answered(ordinals, outcome)
            return outcome
        self._connections += 1
        try:
            return await self._send(ordinals)
        finally:
            self._connections -= 1

    async def _send(self, ordinals: list[int]) -> SendResult:
        request = _Request(ordinals, self._loop.create_future())
        self._loop.after(self._wire(), self._arrive, request)
        self._loop.after(self._climate().timeout_s, self._end, request, Failed("no reply in time", Reason.TIMEOUT))
        try:
            outcome = await request.reply
        except asyncio.CancelledError:
            self._end(request, Gone("the caller hung up"))
            self._events.hung_up(ordinals)
            raise
        self._events.answered(ordinals, outcome)
        return outcome

    async def healthy(self) -> bool:
        await asyncio.sleep(self._wire())
        # One that resets every connection and fails its health check as well is dead, by all that can be told from outside, and
        # a row that is alone with it would be condemned.
        resets = self._fails is Fails.RESET
        if self._stalled_until > self._loop.time() and self._rng.random() < 0.5 and not resets:
            await asyncio.sleep(5.0)
            return False
        return self.up and not self._strange

    def ask_restart(self) -> None:
        self._events.asked_restart()
        if self._climate().supervised:
            self.die("restarted", self._climate().downtime_s)
            self._cured = True

    async def load(self) -> Load | None:
        # At once: it is asked twice a second, and a delay of it would only make the simulation slower.
        climate = self._climate()
        if not climate.metrics or not self.up or self._rng.random() < 0.05:
            return None
        waiting = sum(len(request.ordinals) for request in self._queue)
        return Load(self._computing, waiting, min(1.0, self._computing / climate.seats) * 0.9, self._preemptions)

    @property
    def _fails(self) -> Fails | None:
        """How it ends every request now."""
        return None if self._cured else self._climate().fails_everybody(self._loop.time(), self._number)

    @property
    def _strange(self) -> bool:
        """The driver's client asks before it sends, and says so (`nightshift.driver.engine.EngineClient`)."""
        return self._climate().is_strange(self._loop.time(), self._number)

    @property
    def up(self) -> bool:
        return self._loop.time() >= self._down_until

    def stall(self, seconds: float) -> None:
        """Computes nothing for a while; nobody is told."""
        self._stalled_until = max(self._stalled_until, self._loop.time() + seconds)

    def die(self, why: str, downtime_s: float) -> bool:
        """Ends at once with all that it has, and is back after a while. False where that would condemn an innocent row."""
        alone = [request.ordinals[0] for request in self._requests] if self._rows_inside() == 1 else []
        if why != "poison":
            if not self.up or any(self._alone_deaths[ordinal] for ordinal in alone):
                return False
            self._alone_deaths.update(alone)
        self.deaths += 1
        self._events.died(why)
        self._down_until = self._loop.time() + downtime_s
        self._stalled_until = 0.0
        for request in list(self._requests):
            self._end(request, Gone("connection reset by peer"))
        return True

    def _wire(self) -> float:
        return self._rng.uniform(0.5, 1.5) * WIRE_S

    def _rows_inside(self) -> int:
        return sum(len(request.ordinals) for request in self._requests)

    def _arrive(self, request: _Request) -> None:
        climate, now = self._climate(), self._loop.time()
        if request.over:
            return
        if not self.up:
            self._reply(request, Gone("connection refused", reached=False))
            return
        if self._strange:
            self._reply(request, Stranger("it serves something else"))
            return
        self._requests[request] = None
        if (how := self._fails) is Fails.HANG:
            return
        if how in FAILS:
            self._reply(request, FAILS[how])
            return
        refused = [REFUSED[nature] for ordinal in request.ordinals if (nature := self._rows.natures.get(ordinal)) in REFUSED]
        request.fault = self._draw_fault(request, climate)
        if request.fault == "busy" or any(start <= now < end for start, end in climate.storms):
            self._reply(request, Busy("429", self._rng.choice((None, None, 0.0, 1.0, 5.0))))
        elif refused:
            self._reply(request, Refused(refused[0], "the engine says no"))
        else:
            self._queue.append(request)
            self._fill()

    def _draw_fault(self, request: _Request, climate: Climate) -> str:
        point = self._rng.random()
        for name in ("busy", "aborted", "reset", "failed", "invalid", "stuck"):
            point -= getattr(climate, name)
            if point < 0:
                if name in ("busy", "aborted"):
                    return name
                if name == "reset":
                    alone = request.ordinals if self._rows_inside() == 1 else []
                    return "" if any(self._alone_deaths[ordinal] for ordinal in alone) else name
                # One that fails by itself may end with the reason of its last failure: the expected one must be the only one.
                if any(self._hurt[ordinal] or ordinal in self._rows.natures for ordinal in request.ordinals):
                    return ""
                self._hurt.update(request.ordinals)
                return name
        return ""

    def _fill(self) -> None:
        """Takes requests out of the queue while there are seats."""
        seats = self._climate().seats
        while self._queue and (self._computing == 0 or self._computing + len(self._queue[0].ordinals) <= seats):
            request = self._queue.popleft()
            request.computing = True
            self._computing += len(request.ordinals)
            self._events.computing(request.ordinals)
            seconds = self._pace * self._climate().row_s * self._rng.choice((0.5, 1.0, 1.0, 2.0)) * self._rng.uniform(0.8, 1.2)
            if (how := self._fails) in LONG:
                seconds = LONG[how] * self._climate().timeout_s
            self._loop.after(seconds, self._finish, request)

    def _finish(self, request: _Request) -> None:
        """The request's time in its seats is over."""
        if request.over:
            return
        if self._stalled_until > self._loop.time():
            self._loop.after(self._stalled_until - self._loop.time() + self._wire(), self._finish, request)
            return
        if self._strange:
            self._reply(request, Gone("connection reset by peer"))
            return
        natures = [nature for ordinal in request.ordinals if (nature := self._rows.natures.get(ordinal))]
        # A bad row that was computed alone fails for its own reason, as in `_draw_fault`.
        alone = len(request.ordinals) == len(natures) == 1
        if (how := self._fails) is Fails.HANG:
            return
        if not alone and how in FAILS:
            self._reply(request, FAILS[how])
        elif Nature.POISON in natures:
            self.die("poison", self._rng.uniform(0.5, 1.5) * self._climate().downtime_s)
        elif request.fault == "reset":
            self._reply(request, Gone("connection reset by peer"))
        elif Nature.ERROR in natures or request.fault == "failed":
            self._reply(request, Failed("internal error", status=500))
        elif Nature.SLOW in natures or request.fault == "stuck":
            # Its caller hears nothing until its own patience ends. Its seats are free: one row alone does not stop an engine.
            self._leave_seats(request)
            self._fill()
        elif Nature.INVALID in natures or request.fault == "invalid":
            self._reply(request, Replied(GARBAGE))
        elif request.fault == "aborted":
            self._reply(request, Replied(ABORTED))
        else:
            self._reply(request, Replied([self._rows.prediction(ordinal) for ordinal in request.ordinals]))

    def _leave_seats(self, request: _Request) -> None:
        if request.computing:
            request.computing = False
            self._computing -= len(request.ordinals)

    def _reply(self, request: _Request, outcome: SendResult) -> None:
        self._loop.after(self._wire(), self._end, request, outcome)

    def _end(self, request: _Request, outcome: SendResult) -> None:
        """The request leaves the engine; its caller, if there is one still, has the outcome."""
        if not request.over:
            request.over = True
            self._requests.pop(request, None)
            if request in self._queue:
                self._queue.remove(request)
            self._leave_seats(request)
            if not request.reply.done():
                request.reply.set_result(outcome)
            self._fill()
