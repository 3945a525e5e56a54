"""The messages that a subscriber holds, from their delivery until they are acknowledged or given back, and their order.

All that is held is in one account in bytes, wherever it waits. An engine's places are taken only by what it could work on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from nightshift.stream.decoding import Row
from nightshift.stream.leases import Leases
from nightshift.stream.messages import Delivery, Message
from nightshift.stream.stats import StreamStats

T = TypeVar("T")

PULL_MOST: Final = 1000
"""Messages in one pull: no reply of Pub/Sub has more."""
SIZE_GUESS: Final = 4096
"""Bytes of a message before any had its outcome."""
RECENT: Final = 16
"""Messages, about, whose sizes say what the next ones will take."""

MESSAGE_BYTES: Final = 2048
"""What a message takes beside its data and attributes while it is held: its objects, its lease, its ack ids, its request."""
ASIDE_PART: Final = 4
"""Of the bytes, what waits aside may take a part of this size before those are given back that nothing but a new file lets go
on."""


class Place(Enum):
    """Where a held message is."""

    OPEN = auto()
    """With the engine, or on its way there: it takes one of the places that an engine has."""
    ASIDE = auto()
    """It waits behind another of its ordering key, or for a process that knows the revision of its schema."""
    JUDGED = auto()
    """It has its outcome, which waits for the sink."""
    SETTLED = auto()
    """Its outcome is in the sink; its announcement or acknowledgement is left."""


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message on its way. key, row: once it is decoded. problem: why it cannot be. size: bytes that it counts for.
    revision: of its schema, if that is why it cannot be read yet. lane: where it is in order, or waits to be; "" for no order.
    """

    message: Message
    size: int = 0
    key: tuple[str, ...] = ()
    row: Row | None = None
    problem: str | None = None
    revision: str | None = None
    lane: str = ""
    place: Place = Place.OPEN


class InFlight:
    """What is held, with its leases and its size. bytes_most: about how much it may take.

    asked: messages that the pulls under way may bring.
    """

    def __init__(self, bytes_most: int, stats: StreamStats) -> None:
        self._bytes_most = bytes_most
        self._stats = stats
        self._held: dict[str, HeldMessage] = {}
        self._typical = 0.0
        self._count = dict.fromkeys(Place, 0)
        self._bytes = dict.fromkeys(Place, 0)
        self.asked = 0
        self.leases = Leases()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(list(self._held.values()))

    @property
    def open(self) -> int:
        """Messages that take places, those included that were asked for."""
        return self._count[Place.OPEN] + self.asked

    def full(self, flying: int) -> bool:
        """Whether outcomes that wait for the sink take all the room, with those of `flying` messages that are under way, as far
        as sizes are known: no more should be computed, but for one message whatever its size."""
        waiting = self._bytes[Place.JUDGED]
        return waiting + flying > 0 and waiting + flying * self._typical >= self._bytes_most

    @property
    def heavy(self) -> bool:
        """Whether they take half of it: they should wait for no others."""
        return 2 * self._bytes[Place.JUDGED] >= self._bytes_most

    @property
    def crowded_aside(self) -> bool:
        """Whether what waits aside takes more than its part."""
        return ASIDE_PART * self._bytes[Place.ASIDE] > self._bytes_most

    def room(self, rows: int) -> int:
        """How many messages may be asked for now, if up to `rows` may be open; what comes must fit the bytes, too, with its
        answer, as far as sizes are known."""
        each = self._typical or SIZE_GUESS
        if self._held:
            each = max(each, self._stats.held_bytes / len(self._held))
        by_size = int((self._bytes_most - self._stats.held_bytes) / each) - self.asked
        # With nothing held, one goes whatever its size.
        least = 0 if self._held or self.asked else 1
        return max(0, min(rows - self.open, max(by_size, least), PULL_MOST))

    def take(self, deliveries: Iterable[Delivery], now: float) -> list[HeldMessage]:
        """Holds what was delivered; returns what was not held before."""
        fresh = []
        for delivery in deliveries:
            message = delivery.message
            self._stats.delivered += 1
            if not self.leases.received(message.id, delivery.ack_id, now):
                self._stats.repeated += 1
                continue
            fresh.append(held := HeldMessage(message))
            self._held[message.id] = held
            self._count[Place.OPEN] += 1
            self.move(held, Place.OPEN, 0)
        return fresh

    def move(self, held: HeldMessage, place: Place, size: int | None = None) -> None:
        """The message is there now. size: bytes that it takes beside itself, of its row or its answer; None: as before."""
        if not self.has(held):
            return  # It was given back meanwhile.
        size = held.size if size is None else held.message.size + MESSAGE_BYTES + size
        if place is Place.JUDGED:
            self._typical += (size - self._typical) / (RECENT if self._typical else 1)
        self._take(held, -1)
        held.place, held.size = place, size
        self._take(held, 1)

    def let_go(self, held: HeldMessage) -> list[str]:
        """Returns the ack ids of the message's deliveries; it is not held any more."""
        del self._held[held.message.id]
        self._take(held, -1)
        return self.leases.end(held.message.id)

    def has(self, held: HeldMessage) -> bool:
        return self._held.get(held.message.id) is held

    def _take(self, held: HeldMessage, sign: int) -> None:
        self._count[held.place] += sign
        self._bytes[held.place] += sign * held.size
        self._stats.held = len(self._held)
        self._stats.held_bytes += sign * held.size


class Lanes(Generic[T]):
    """Items in order: of each lane (an ordering key) one is under way, others wait. An item without a lane ("") never waits."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[T]] = {}

    def enter(self, lane: str, item: T) -> bool:
        """Whether the item may go now; else it waits for those before it."""
        if not lane:
            return True
        if lane in self._lanes:
            self._lanes[lane].append(item)
            return False
        self._lanes[lane] = deque()
        return True

    def leave(self, lane: str) -> T | None:
        """The item under way in this lane is done; returns the next one, which may go now."""
        if not lane:
            return None
        waiting = self._lanes[lane]
        if waiting:
            return waiting.popleft()
        del self._lanes[lane]
        return None

    def close(self, lane: str) -> list[T]:
        """The item under way is given back: returns those that wait behind it, which must be, too."""
        return list(self._lanes.pop(lane, ()))
