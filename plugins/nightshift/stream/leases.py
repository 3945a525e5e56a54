"""The leases of the messages that a subscriber holds: when each must be extended, and by how much. Pure.

A message whose lease runs out is delivered again, perhaps to somebody else, and that counts as an attempt. So leases are
extended when half of them is left, by twice the time that the oldest message has been held. Not by the most that Pub/Sub
allows: when a subscriber dies, its messages come back only when their leases run out.
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
FIRST_S: Final = 4.0
"""A subscription's own deadline is 10 s or more, and what is answered sooner needs no extension."""
BEYOND: Final = 2
"""A lease is so many times the longest hold now."""


@dataclass(slots=True)
class _Lease:
    ack_ids: list[str]
    received: float
    due: float = field(default=0.0)


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
        """A message was delivered. False if it is held already: then this delivery is held, too."""
        lease = self._held.get(message)
        if lease is not None:
            lease.ack_ids.append(ack_id)
            # Not later than the leases of the other deliveries need it.
            self._schedule(message, lease, min(lease.due, now + FIRST_S))
            return False
        self._held[message] = lease = _Lease([ack_id], now)
        self._schedule(message, lease, now + FIRST_S)
        return True

    def due(self, now: float) -> list[str]:
        """The messages whose leases must be extended now, by `lease_s`; they count as extended."""
        messages: list[str] = []
        next_due = now + self.lease_s(now) / 2
        while self._queue and self._queue[0][0] <= now:
            due, _, message, lease = heapq.heappop(self._queue)
            if self._held.get(message) is not lease or lease.due != due:
                continue  # It is over, or was extended meanwhile.
            messages.append(message)
            self._schedule(message, lease, next_due)
        return messages

    def failed(self, messages: Iterable[str], now: float) -> None:
        """Their leases could not be extended: they are due again at once."""
        for message in messages:
            if (lease := self._held.get(message)) is not None:
                self._schedule(message, lease, now)

    def ack_ids(self, message: str) -> list[str]:
        """Of every delivery of a message that is held."""
        return list(self._held[message].ack_ids)

    def over(self, message: str) -> list[str]:
        """The message is not held any more; returns its ack ids."""
        return self._held.pop(message).ack_ids

    def _schedule(self, message: str, lease: _Lease, due: float) -> None:
        lease.due = due
        heapq.heappush(self._queue, (due, next(self._numbers), message, lease))
