"""Pub/Sub and a database in memory, behind clients that suffer what networks do.

The fault model, per call: any delay; a call that takes effect though its reply is lost; one that never arrives; one that takes
effect long after its caller gave up or died; times when nothing answers. Of Pub/Sub besides: a message is delivered again
though its lease lives; an acknowledgement is answered and forgotten; one for a lease that is over may count or not; messages
come in any order, unless they have an ordering key.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from nightshift.stream.messages import Answered, Dead, Delivery, Message
from nightshift.stream.ports import Collect, Standing, Unavailable, Unsettled, Unwritable
from tests.simulation.virtual import VirtualLoop

T = TypeVar("T")

DEADLINE_S: Final = 10.0
"""Of a lease, from its delivery: the least that a subscription may have."""
GIVES_UP_S: Final = 30.0
"""How long a client library tries before it reports that nothing answers."""
COLLECT: Final = Collect(rows=1000, size=float("inf"), age_s=0.02)
"""As `nightshift.stream.postgres` has it."""
FEW: Final = 0.5
"""How often a reply has fewer messages than were asked for, though they are there."""
POLL_S: Final = 2.0
"""How long a pull waits for a message."""


@dataclass(frozen=True)
class Weather:
    """How a service behaves. Probabilities are per call, those of twice, forgotten and shuffled per message.

    latency_s: a mean. outages: (start, end) in seconds.
    """

    latency_s: float = 0.01
    lost_reply: float = 0.0
    never: float = 0.0
    late: float = 0.0
    late_s: float = 30.0
    twice: float = 0.0
    forgotten: float = 0.0
    outages: tuple[tuple[float, float], ...] = ()


class Network:
    """The way of one process to a service."""

    def __init__(self, loop: VirtualLoop, weather: Callable[[], Weather], rng: random.Random) -> None:
        self._loop = loop
        self._weather = weather
        self._rng = rng

    async def call(self, effect: Callable[[], T]) -> T:
        """Has the service do something. Raises Unavailable, and what `effect` raises."""
        weather, loop = self._weather(), self._loop
        reply: asyncio.Future[T] = loop.create_future()
        seconds = weather.latency_s * self._rng.uniform(0.2, 2.0)
        if any(start <= loop.time() < end for start, end in weather.outages):
            await asyncio.sleep(self._rng.uniform(0.1, GIVES_UP_S))
            raise Unavailable("no answer")
        point = self._rng.random()
        if point < weather.never:
            await asyncio.sleep(self._rng.uniform(0.1, GIVES_UP_S))
            raise Unavailable("the call never arrived")
        lost = weather.never <= point < weather.never + weather.lost_reply
        if weather.never + weather.lost_reply <= point < weather.never + weather.lost_reply + weather.late:
            seconds += self._rng.uniform(0, weather.late_s)
            lost = True

        def arrive() -> None:
            try:
                value = effect()
            except Unwritable as error:
                if not lost and not reply.done():
                    reply.set_exception(error)
                return
            if not lost and not reply.done():
                loop.after(weather.latency_s, lambda: None if reply.done() else reply.set_result(value))

        # What is under way arrives, whatever becomes of its caller.
        loop.after(seconds, arrive)
        if lost:
            await asyncio.sleep(self._rng.uniform(0.1, GIVES_UP_S))
            raise Unavailable("the reply was lost")
        return await reply


@dataclass(slots=True)
class _State:
    message: Message
    at: float
    leases: dict[str, float] = field(default_factory=dict)
    acknowledged: bool = False
    deliveries: int = 0


class Subscription:
    """The service. acknowledging(id): called when an acknowledgement takes effect. delivered(id, who): with each delivery."""

    def __init__(
        self,
        loop: VirtualLoop,
        weather: Callable[[], Weather],
        rng: random.Random,
        acknowledging: Callable[[str], None],
        delivered: Callable[[str, str], None],
        *,
        ordered: bool,
    ) -> None:
        self._loop = loop
        self._weather = weather
        self._rng = rng
        self._acknowledging = acknowledging
        self._delivered = delivered
        self._ordered = ordered
        self._numbers = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.states: dict[str, _State] = {}

    def publish(self, message: Message) -> None:
        self.states[message.id] = _State(message, self._loop.time())
        self._tell()

    async def news(self, until: float) -> None:
        """Waits until there may be something to deliver that was not there before, at most until a time."""
        now = self._loop.time()
        ends = (end for state in self.states.values() if not state.acknowledged for end in state.leases.values() if end > now)
        told: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(told)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told, min([until, *ends]) - now)

    def _tell(self) -> None:
        for told in self._waiting:
            if not told.done():
                told.set_result(None)
        self._waiting.clear()

    @property
    def done(self) -> bool:
        return all(state.acknowledged for state in self.states.values())

    def leased(self, ack_ids: Set[str]) -> list[str]:
        """The messages that one of these leases still holds."""
        now = self._loop.time()
        return [
            state.message.id
            for state in self.states.values()
            if not state.acknowledged and any(end > now and ack_id in ack_ids for ack_id, end in state.leases.items())
        ]

    def deliver(self, most: int, who: str) -> list[Delivery]:
        weather = self._weather()
        if self._rng.random() < FEW:
            most = self._rng.randint(1, most)
        chosen = [state for state in self._available() if self._rng.random() < 0.9 or not weather.twice][:most]
        if weather.twice:
            others = [
                state for state in self.states.values() if not state.acknowledged and state not in chosen and state.deliveries
            ]
            if not self._ordered:
                chosen += [state for state in others if self._rng.random() < weather.twice]
        return [self._deliver(state, who) for state in chosen[:most]]

    def _available(self) -> list[_State]:
        now = self._loop.time()
        waiting = [state for state in self.states.values() if not state.acknowledged]
        free = [state for state in waiting if not any(end > now for end in state.leases.values())]
        if not self._ordered:
            self._rng.shuffle(free)
            return free
        # A message is held back while an earlier one of its key waits undelivered.
        blocked: set[str] = set()
        going = []
        for state in free:
            key = state.message.ordering_key
            if key not in blocked and not any(
                other.message.ordering_key == key and other.at > state.at and any(end > now for end in other.leases.values())
                for other in waiting
            ):
                going.append(state)
            else:
                blocked.add(key)
        return going

    def _deliver(self, state: _State, who: str) -> Delivery:
        self._numbers += 1
        state.deliveries += 1
        ack_id = f"{who}-{self._numbers}"
        state.leases[ack_id] = self._loop.time() + DEADLINE_S
        self._delivered(state.message.id, who)
        return Delivery(ack_id, state.message)

    def acknowledge(self, ack_ids: Sequence[str]) -> None:
        forgotten = self._weather().forgotten
        for state in list(self.states.values()):
            for ack_id in set(ack_ids) & state.leases.keys():
                alive = state.leases[ack_id] > self._loop.time()
                if self._rng.random() < forgotten or not (alive or self._rng.random() < 0.5):
                    continue
                if not state.acknowledged:
                    state.acknowledged = True
                    self._acknowledging(state.message.id)
        self._tell()

    def extend(self, ack_ids: Sequence[str], seconds: int) -> None:
        if len(set(ack_ids)) != len(ack_ids) or not ack_ids:
            raise AssertionError(f"a call names no leases, or some twice: {ack_ids}")
        now = self._loop.time()
        for state in self.states.values():
            for ack_id in set(ack_ids) & state.leases.keys():
                if state.leases[ack_id] > now:
                    state.leases[ack_id] = now + seconds
        self._tell()


class Source:
    """`nightshift.stream.ports.Source` of one process. pulling(most): called before each pull; pulled(deliveries, most): after
    it, whatever it came to.

    A reply often has fewer messages than are there, as Pub/Sub's.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        subscription: Subscription,
        network: Network,
        who: str,
        pulling: Callable[[int], None],
        pulled: Callable[[Sequence[Delivery], int], None],
    ) -> None:
        self._loop = loop
        self._subscription = subscription
        self._network = network
        self._who = who
        self._pulling = pulling
        self._pulled = pulled

    async def pull(self, most: int) -> list[Delivery]:
        self._pulling(most)
        found: list[Delivery] = []
        end = self._loop.time() + POLL_S
        try:
            while not found:
                found = await self._network.call(lambda: self._subscription.deliver(most, self._who))
                if self._loop.time() >= end:
                    break
                if not found:
                    await self._subscription.news(end)
            return found
        finally:
            self._pulled(found, most)

    async def acknowledge(self, ack_ids: Sequence[str]) -> Unsettled:
        await self._network.call(lambda: self._subscription.acknowledge(list(ack_ids)))
        return Unsettled()

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> Unsettled:
        await self._network.call(lambda: self._subscription.extend(list(ack_ids), seconds))
        return Unsettled()


class Database:
    """Rows by key, and dead letters by message. The first outcome of a message counts, and the newest message of a key."""

    def __init__(self, unwritable: frozenset[str], now: Callable[[], float]) -> None:
        self._unwritable = unwritable
        self._now = now
        self.rows: dict[tuple[str, ...], Answered] = {}
        self.dead: dict[str, Dead] = {}
        self.given_up: dict[str, Dead] = {}
        """Dead letters that were to be kept, also those whose messages had other outcomes."""
        self.outcomes: dict[str, str] = {}
        """Of each message: "dead", or its prediction."""
        self.since: dict[str, float] = {}
        """When each message got its outcome."""

    def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        return [self._known(message, key) for message, key in messages]

    def _known(self, message: Message, key: tuple[str, ...] | None) -> Standing | Dead:
        if message.id in self.dead:
            return self.dead[message.id]
        row = self.rows.get(key) if key is not None else None
        return Standing.OVER if row is not None and age(row.message) >= age(message) else Standing.NEW

    def write(self, answered: Sequence[Answered]) -> None:
        if bad := [each.message.id for each in answered if each.message.id in self._unwritable]:
            raise Unwritable(f"the database refuses {bad}")
        for each in answered:
            if each.message.id in self.dead:
                continue
            self.outcomes.setdefault(each.message.id, str(each.prediction))
            self.since.setdefault(each.message.id, self._now())
            row = self.rows.get(each.key)
            if row is None or age(each.message) > age(row.message):
                self.rows[each.key] = each

    def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        for each in dead:
            self.given_up.setdefault(each.message.id, each)
            over = each.key is not None and self._known(each.message, each.key) is Standing.OVER
            if each.message.id not in self.outcomes and not over:
                self.outcomes[each.message.id] = "dead"
                self.since.setdefault(each.message.id, self._now())
                self.dead[each.message.id] = each
        return frozenset(each.message.id for each in dead) - self.dead.keys()


def age(message: Message) -> tuple[Any, int, str]:
    """What orders messages of one key."""
    return message.published, len(message.id), message.id


class Sink:
    """`nightshift.stream.ports.Sink` of one process."""

    collect = COLLECT

    def __init__(self, database: Database, network: Network) -> None:
        self._database = database
        self._network = network

    async def open(self) -> None:
        """It is open from the start."""

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        return await self._network.call(lambda: self._database.known(list(messages)))

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        await self._network.call(lambda: self._database.write(list(answered)))
        return frozenset()

    async def sound(self) -> bool:
        return await self._network.call(lambda: bool(self._database.rows))

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        return await self._network.call(lambda: self._database.write_dead_letters(list(dead)))


class Topic:
    """`nightshift.stream.ports.DeadLetterTopic` of one process. published: how often each message is there."""

    def __init__(self, published: Counter[str], network: Network) -> None:
        self._published = published
        self._network = network

    async def publish(self, dead: Sequence[Dead]) -> dict[str, str]:
        await self._network.call(lambda: self._published.update(each.message.id for each in dead))
        return {}
