"""The leases of the messages that a subscriber holds: when each must be extended, and by how much. Pure.

A message whose lease runs out is delivered again, perhaps to another subscriber, and that counts as an attempt. So a lease is
extended as soon as its message comes, for part of a subscription's own ten seconds may have passed on the way; and again when
half of it is left, by twice the time that the oldest message has been held. Not by the most that Pub/Sub allows: when a
subscriber dies, its messages come back only when their leases run out.

Of a message that was delivered several times, the newest delivery counts: usually it means that the lease of the one before is
over, which a subscription with exactly-once delivery says of each of its ack ids, every time that one is sent.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

LEAST_S: Final = 20
MOST_S: Final = 600
"""Pub/Sub extends a lease by at most ten minutes at a time."""
BEYOND: Final = 2
"""A lease lasts this multiple of the longest hold now."""
STALE_MOST: Final = 100
"""Entries of leases that are over, or due at another time by now, before they are looked for: see `Leases._sweep`."""
KEPT: Final = 4
"""Ack ids of a message, the newest ones: Pub/Sub may have delivered it again though its lease is not over."""


@dataclass(slots=True)
class _Lease:
    """ack_ids: of its deliveries, the newest one last. over: the lease of the newest is."""

    ack_ids: list[str]
    received: float
    due: float = field(default=0.0)
    over: bool = False


class Leases:
    """Of messages by id. All times are seconds of one steady clock."""

    def __init__(self) -> None:
        self._held: dict[str, _Lease] = {}
        self._queue: list[tuple[float, int, str, _Lease]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._held)

    def lease_s(self, now: float) -> int:
        """How long an extension is to last, in whole seconds."""
        oldest = next(iter(self._held.values()), None)
        held_s = now - oldest.received if oldest else 0.0
        return int(min(max(BEYOND * held_s, LEAST_S), MOST_S))

    def received(self, message: str, ack_id: str, now: float) -> bool:
        """A message was delivered. False if it is held already: then this delivery takes the place of the one before."""
        lease = self._held.get(message)
        fresh = lease is None
        if lease is None:
            self._held[message] = lease = _Lease([], now)
        lease.ack_ids = [*lease.ack_ids[1 - KEPT :], ack_id]
        lease.over = False
        self._schedule(message, lease, now)
        return fresh

    def due(self, now: float) -> dict[str, str]:
        """The leases that must be extended now, by `lease_s`: messages by ack id. They count as extended."""
        messages: dict[str, str] = {}
        next_due = now + self.lease_s(now) / 2
        while self._queue and self._queue[0][0] <= now:
            due, _, message, lease = heapq.heappop(self._queue)
            if self._held.get(message) is not lease or lease.due != due or lease.over:
                continue  # It is over, or was extended meanwhile.
            messages[lease.ack_ids[-1]] = message
            self._schedule(message, lease, next_due)
        return messages

    def failed(self, messages: Iterable[str], now: float) -> None:
        """Their leases could not be extended: they are due again at once."""
        for message in messages:
            if (lease := self._held.get(message)) is not None:
                self._schedule(message, lease, now)

    def lost(self, message: str, ack_id: str) -> bool:
        """Pub/Sub says that this lease is over. True if the message has no other: it will be delivered again."""
        lease = self._held.get(message)
        if lease is not None and lease.ack_ids[-1] == ack_id:
            lease.over = True
            return True
        return False

    def ack_id(self, message: str) -> str | None:
        """Of the newest delivery of a message that is held; None if its lease is over."""
        lease = self._held[message]
        return None if lease.over else lease.ack_ids[-1]

    def end(self, message: str) -> list[str]:
        """The message is not held any more; returns the ack ids of its deliveries, but for one whose lease is over."""
        lease = self._held.pop(message)
        if lease.over:
            lease.ack_ids.pop()
        self._sweep()
        return lease.ack_ids

    def _schedule(self, message: str, lease: _Lease, due: float) -> None:
        lease.due = due
        heapq.heappush(self._queue, (due, next(self._numbers), message, lease))
        self._sweep()

    def _sweep(self) -> None:
        """Takes out the entries that say nothing any more, once they are the larger half: each would stay until it is due, up
        to five minutes, with its message's id and ack ids."""
        if len(self._queue) > 2 * len(self._held) + STALE_MOST:
            self._queue = [entry for entry in self._queue if self._held.get(entry[2]) is entry[3] and entry[3].due == entry[0]]
            heapq.heapify(self._queue)
