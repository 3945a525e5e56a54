"""The order of messages with one ordering key in one subscription. Pure.

Page: "Order messages". While messages of a key are outstanding, no other answer to a Pull gets more of that key than the
one that has them. A message that is delivered again takes all later messages of its key with it, the acknowledged ones
included.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from local.pubsub.leases import Consumer


@dataclass(slots=True)
class Line:
    """Message ids of one key.

    waiting: a heap. outstanding: in the order of delivery, which is ascending: whatever comes back takes all later ones with
    it. early: acknowledged, while an earlier one is not. holder: who has the outstanding ones. closed: nothing is delivered
    until the message that came back is offered again, after its retry delay.
    """

    waiting: list[int] = field(default_factory=list)
    outstanding: dict[int, None] = field(default_factory=dict)
    early: set[int] = field(default_factory=set)
    holder: Consumer | None = None
    closed: bool = False

    def empty(self) -> bool:
        return not self.waiting and not self.outstanding

    def add(self, number: int) -> None:
        heapq.heappush(self.waiting, number)

    def deliver(self) -> int:
        number = heapq.heappop(self.waiting)
        self.outstanding[number] = None
        return number

    def acknowledge(self, number: int) -> set[int]:
        """Returns the acknowledged messages that nothing can bring back any more."""
        self.outstanding.pop(number, None)
        self.early.add(number)
        return self._settled()

    def fail(self, number: int) -> tuple[list[int], list[int]]:
        """Brings a message and all later ones back; returns those that were outstanding, and those that were acknowledged."""
        out = [each for each in self.outstanding if each >= number]
        acked = sorted(each for each in self.early if each > number)
        for each in out:
            del self.outstanding[each]
        self.early.difference_update(acked)
        for each in (*out, *acked):
            heapq.heappush(self.waiting, each)
        return out, acked

    def drop(self, number: int) -> set[int]:
        """Forgets a message that is no longer to be delivered; returns what `acknowledge` returns."""
        self.outstanding.pop(number, None)
        self.early.discard(number)
        if number in self.waiting:
            self.waiting.remove(number)
            heapq.heapify(self.waiting)
        return self._settled()

    def _settled(self) -> set[int]:
        first = min([*self.waiting[:1], *list(self.outstanding)[:1]], default=None)
        settled = {each for each in self.early if first is None or each < first}
        self.early -= settled
        return settled
