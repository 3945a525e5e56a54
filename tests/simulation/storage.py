"""Object storage in memory, as strongly consistent as Cloud Storage is, behind clients that suffer what networks do.

The fault model, per request: any delay; a create that takes effect though its reply is lost; one that never arrives; one that
arrives long after its caller gave up, was cancelled or died; one that the client library sends again after a 5xx reply,
so that the caller hears "exists" of its own object; reads and pages of a listing that fail; times when nothing answers.
What an object holds never changes by itself, and a create has its effect whole or not at all: Cloud Storage promises both.
"""

from __future__ import annotations

import asyncio
import bisect
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

from nightshift.store import StoreUnavailable
from tests.simulation.virtual import VirtualLoop, current_process

ANSWER_BUDGET_S: Final = 60.0
"""How long the client library tries before it reports an outage."""


@dataclass(frozen=True)
class Weather:
    """How storage behaves in one schedule. Probabilities are per request (list_error: per page); latency_s is a mean.

    outages: (start, end) in seconds, when no request is answered. page: names in a page of a listing.
    """

    latency_s: float = 0.02
    lost_reply: float = 0.0
    never: float = 0.0
    late: float = 0.0
    late_s: float = 60.0
    resent: float = 0.0
    slow: float = 0.0
    slow_s: float = 10.0
    read_error: float = 0.0
    list_error: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()
    page: int = 1000

    def faults(self) -> str:
        """The faults that can happen, in words."""
        names = ("lost_reply", "never", "late", "resent", "slow", "read_error", "list_error")
        return " ".join(
            [f"{name}={getattr(self, name):.2f}" for name in names if getattr(self, name)]
            + [f"outage={start:.0f}-{end:.0f}s" for start, end in self.outages]
        )


@dataclass(frozen=True, slots=True)
class Effect:
    """A create that arrived: whose it was, and whether it made the object."""

    time: float
    path: str
    who: str
    won: bool


class Bucket:
    """The objects. `observe` is called after each create that arrived."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.created: dict[str, float] = {}
        self.effects: list[Effect] = []
        self.observe: Callable[[Effect, bytes], None] = lambda _effect, _body: None
        self._names: list[str] = []
        self._under_way = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    def create(self, time: float, path: str, body: bytes, who: str) -> bool:
        """Makes the object unless it is there, as ifGenerationMatch=0 does."""
        won = path not in self.objects
        if won:
            self.put(time, path, body)
        self.effects.append(Effect(time, path, who, won))
        self.observe(self.effects[-1], body)
        return won

    def put(self, time: float, path: str, body: bytes) -> None:
        """Makes or replaces the object: only for what the world itself plants, and for mutants."""
        if path not in self.objects:
            bisect.insort(self._names, path)
        self.objects[path] = body
        self.created.setdefault(path, time)

    def departs(self) -> None:
        """A create is on its way."""
        self._under_way += 1
        self._quiet.clear()

    def arrives(self) -> None:
        """A create is on its way no more."""
        self._under_way -= 1
        if not self._under_way:
            self._quiet.set()

    async def quiet(self) -> None:
        """Waits until no create is on its way."""
        await self._quiet.wait()

    def page(self, folder: str, after: str, size: int) -> list[str]:
        """Up to `size` names below a folder, in lexicographic order, those greater than `after`."""
        start = bisect.bisect_left(self._names, folder + "/")
        if after:
            start = max(start, bisect.bisect_right(self._names, after))
        names = self._names[start : start + size]
        return [name for name in names if name.startswith(folder + "/")]


class ClientEvents:
    """What a client tells the checker; the methods do nothing here."""

    def touched(self, path: str) -> None:
        """A request for a path, or for the folder of a listing, is about to be sent."""

    def listed(self, folder: str, paths: list[str]) -> None:
        """A listing came to its end, or its caller left it early."""

    def settled(self, path: str) -> None:
        """A create was answered, True or False: the caller knows that the object is there."""

    def troubled(self, call: str, seconds: float) -> None:
        """A request that has just been sent will fail, or take unusually long: `seconds` from now."""


class Client:
    """`nightshift.store.Objects` for one worker."""

    def __init__(
        self,
        loop: VirtualLoop,
        bucket: Bucket,
        weather: Callable[[], Weather],
        rng: random.Random,
        who: str,
        events: ClientEvents,
    ) -> None:
        self._loop = loop
        self._bucket = bucket
        self._weather = weather
        self._rng = rng
        self._who = who
        self._events = events

    async def create(self, path: str, body: bytes) -> bool:
        self._events.touched(path)
        weather = self._weather()
        request = _Create(self, path, body, self._outage(weather))
        request.send(weather)
        try:
            won: bool = await request.reply
        except asyncio.CancelledError:
            request.abandoned = True
            raise
        self._events.settled(path)
        return won

    async def read(self, path: str) -> bytes | None:
        self._events.touched(path)
        await self._answer("read", path, self._weather().read_error)
        return self._bucket.objects.get(path)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        folder = prefix.rstrip("/")
        self._events.touched(folder)
        found: list[str] = []
        last = after
        try:
            while True:
                weather = self._weather()
                broken = self._rng.random() < weather.list_error
                await self._answer("list", folder, 0.0)
                page = self._bucket.page(folder, last, weather.page)
                for path in page[: self._rng.randrange(len(page) + 1)] if broken else page:
                    found.append(path)
                    yield path
                if broken:
                    self._events.troubled("list", 0.0)
                    raise StoreUnavailable(f"list {folder}: connection reset in the middle of a page")
                if len(page) < weather.page:
                    break
                last = page[-1]
        except GeneratorExit:
            # The caller has seen enough: the last name told it so, and it was looking for those before.
            self._events.listed(folder, found[:-1])
            raise
        self._events.listed(folder, found)

    async def _answer(self, call: str, path: str, error: float) -> None:
        """Waits as long as the request takes. Raises StoreUnavailable for an outage, or with the probability `error`."""
        weather = self._weather()
        outage = self._outage(weather)
        slow = self._rng.random() < weather.slow
        fails = self._rng.random() < error
        delay = self.latency(weather.slow_s if slow else weather.latency_s)
        if outage:
            # The client library tries until the outage is over or its own budget is spent.
            fails = outage > ANSWER_BUDGET_S or self._rng.random() < 0.5
            delay += self._rng.uniform(0, ANSWER_BUDGET_S) if fails else outage
        reply: asyncio.Future[None] = self._loop.create_future()
        self._loop.after(delay, _resolve, reply, None)
        if fails or slow or outage:
            self._events.troubled(call, delay)
        await reply
        if fails:
            raise StoreUnavailable(f"{call} {path}: no answer")

    def latency(self, mean: float) -> float:
        """Seconds of one way through the network."""
        return self._rng.uniform(0.5, 1.5) * mean

    def _outage(self, weather: Weather) -> float:
        """Seconds until the present outage ends; 0: there is none."""
        now = self._loop.time()
        return max((end - now for start, end in weather.outages if start <= now < end), default=0.0)


class _Create:
    """One create on its way: it arrives, or not, whatever becomes of its caller."""

    def __init__(self, client: Client, path: str, body: bytes, outage: float) -> None:
        self.reply: asyncio.Future[bool] = client._loop.create_future()
        self.abandoned = False
        self._client = client
        self._caller = current_process()
        self._path = path
        self._body = body
        self._outage = outage

    def send(self, weather: Weather) -> None:
        """Draws the request's fate and sets its timers."""
        client, rng = self._client, self._client._rng
        way, back = client.latency(weather.latency_s), client.latency(weather.latency_s)
        fate = _draw(rng, {name: getattr(weather, name) for name in ("lost_reply", "never", "late", "resent", "slow")})
        if self._outage:
            # The client library tries until the outage is over or its own budget is spent.
            way += self._outage
            over = self._outage < ANSWER_BUDGET_S and rng.random() < 0.5
            fate, back = (fate, back) if over else (rng.choice(("never", "late")), rng.uniform(0, ANSWER_BUDGET_S) - way)
        extra = {"slow": client.latency(weather.slow_s), "lost_reply": rng.choice((0.0, rng.uniform(0, weather.slow_s)))}
        answer = max(0.0, way + extra.get(fate, 0.0) + back)
        if fate or self._outage:
            client._events.troubled(f"create: {fate or 'outage'}", answer)
        match fate:
            case "never":
                self._fail_after(answer)
            case "late":
                self._fail_after(answer)
                self._arrive_after(way + rng.uniform(0, weather.late_s), reply_after=None)
            case "lost_reply":
                self._fail_after(answer)
                self._arrive_after(way, reply_after=None)
            case "slow":
                self._arrive_after(answer - back, reply_after=back)
            case _:
                self._arrive_after(way, reply_after=back, twice=fate == "resent")

    def _fail_after(self, seconds: float) -> None:
        self._client._loop.after(seconds, _reject, self.reply, StoreUnavailable(f"create {self._path}: no answer"))

    def _arrive_after(self, seconds: float, *, reply_after: float | None, twice: bool = False) -> None:
        """reply_after: seconds from the arrival, None: nobody hears of it."""
        self._client._bucket.departs()
        # Of a caller that is cancelled or dies on the way, the request may be in the network's hands already.
        survives = reply_after is None or self._client._rng.random() < 0.5
        self._client._loop.after(seconds, self._arrive, survives, reply_after, twice)

    def _arrive(self, survives: bool, reply_after: float | None, twice: bool) -> None:
        bucket, loop = self._client._bucket, self._client._loop
        bucket.arrives()
        lost_caller = self.abandoned or (self._caller is not None and self._caller.dead)
        if lost_caller and not survives:
            return
        won = bucket.create(loop.time(), self._path, self._body, self._client._who)
        if twice:
            won = bucket.create(loop.time(), self._path, self._body, self._client._who)
        if reply_after is not None:
            loop.after(reply_after, _resolve, self.reply, won)


def _draw(rng: random.Random, chances: dict[str, float]) -> str:
    """One of the names by its probability, or nothing."""
    point = rng.random()
    for name, chance in chances.items():
        point -= chance
        if point < 0:
            return name
    return ""


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Read once, so that an answer to a dead caller is no "exception was never retrieved".
        future.exception()
