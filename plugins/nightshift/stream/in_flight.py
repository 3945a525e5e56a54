"""The messages that a subscriber holds, from their delivery until they are acknowledged or given back, and their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from nightshift.stream.decoding import Row
from nightshift.stream.leases import Leases
from nightshift.stream.messages import Delivery, Message
from nightshift.stream.stats import StreamStats

T = TypeVar("T")

PULL_MOST: Final = 1000
"""Messages in one pull: no reply of Pub/Sub has more."""
SIZE_GUESS: Final = 4096
"""Bytes of a message before any was seen."""


@dataclass(slots=True, eq=False)
class HeldMessage:
    """A message on its way. key, row: once it is decoded. problem: why it cannot be. size: bytes that it counts for.
    revision: of its schema, if that is why it cannot be read yet.

    lane: where it is in order, or waits to be; "" for no order. judged: it has an outcome; settled: the outcome is in the sink.
    """

    message: Message
    size: int
    key: tuple[str, ...] = ()
    row: Row | None = None
    problem: str | None = None
    revision: str | None = None
    lane: str = ""
    judged: bool = False
    settled: bool = False


class InFlight:
    """What is held, with its leases and its size. bytes_most: about how much it may take."""

    def __init__(self, bytes_most: int, stats: StreamStats) -> None:
        self._bytes_most = bytes_most
        self._stats = stats
        self._held: dict[str, HeldMessage] = {}
        self._bytes = self._seen = self._seen_bytes = 0
        self.leases = Leases()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldMessage]:
        return iter(list(self._held.values()))

    def room(self, rows: int) -> int:
        """How many messages may be pulled now, if up to `rows` may be held in all; what is pulled must fit the bytes, too."""
        each = self._seen_bytes // self._seen + 1 if self._seen else SIZE_GUESS
        by_size = (self._bytes_most - self._bytes) // each
        # With nothing held, one goes whatever its size.
        return max(0, min(rows - len(self._held), max(by_size, 0 if self._held else 1), PULL_MOST))

    def take(self, deliveries: Iterable[Delivery], now: float) -> list[HeldMessage]:
        """Holds what was delivered; returns what was not held before."""
        fresh = []
        for delivery in deliveries:
            message = delivery.message
            self._stats.delivered += 1
            if not self.leases.received(message.id, delivery.ack_id, now):
                self._stats.repeated += 1
                continue
            fresh.append(held := HeldMessage(message, message.size))
            self._held[message.id] = held
            self._seen += 1
            self._weigh(message.size)
        self._count()
        return fresh

    def decoded(self, held: HeldMessage, size: int) -> None:
        """The message's row takes `size` bytes, beside the message itself."""
        held.size += size
        self._weigh(size)
        self._count()

    def let_go(self, held: HeldMessage) -> list[str]:
        """Returns the ack ids of the message's deliveries; it is not held any more."""
        del self._held[held.message.id]
        self._bytes -= held.size
        self._count()
        return self.leases.end(held.message.id)

    def has(self, held: HeldMessage) -> bool:
        return self._held.get(held.message.id) is held

    def _weigh(self, size: int) -> None:
        self._bytes += size
        self._seen_bytes += size

    def _count(self) -> None:
        self._stats.held, self._stats.held_bytes = len(self._held), self._bytes


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
