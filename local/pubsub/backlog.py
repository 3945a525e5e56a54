"""One subscription's messages: which are delivered, to whom, for how long, and what follows. Pure; time is passed in.

Nothing here knows gRPC or the database. A caller runs `settle` of the broker after each change: it stores the entries named in
`dirty` and forwards those in `dead`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from local.pubsub.leases import Consumer, Entry, Lease, Message, Repeats, Settings, new_ack_id, once
from local.pubsub.queues import Queues

INVALID_ACK_ID: Final = "PERMANENT_FAILURE_INVALID_ACK_ID"


class Backlog:
    """entries: by message id, in the order of publishing. dirty: ids whose entry has changed or is gone.
    dead: entries that have used up their attempts. deliveries: message id -> how often it was sent."""

    def __init__(self, owner: int, settings: Settings) -> None:
        self.settings = settings
        self.entries: dict[int, Entry] = {}
        self.unacked = 0
        self.dirty: set[int] = set()
        self.dead: list[Entry] = []
        self.deliveries: Counter[int] = Counter()
        self._owner = owner
        self._delivery = 0
        self._leases: dict[str, Lease] = {}
        self._queues = Queues(self.entries, settings.ordered)
        self._delayed: list[tuple[float, int]] = []
        self._deadlines: list[tuple[float, str]] = []

    @property
    def outstanding(self) -> int:
        """Messages that are delivered and neither acknowledged nor given back."""
        return len({lease.entry for lease in self._leases.values()})

    def oldest_unacked(self) -> float | None:
        """The publish time of the oldest message that is not acknowledged, in seconds since 1970."""
        return next((entry.message.published for entry in self.entries.values() if not entry.acked), None)

    def add(self, message: Message) -> None:
        self._put(Entry(message))

    def fill(self, rows: Iterable[tuple[Message, bool, int]]) -> None:
        """Replaces everything. rows: message, whether it is acknowledged, its attempts; sorted by message id."""
        for lease in list(self._leases.values()):
            lease.consumer.more.clear()
            self._end(lease)
        self.entries.clear()
        self.unacked = 0
        self._delayed, self._deadlines = [], []
        self._queues.clear()
        for message, acked, attempts in rows:
            self._put(Entry(message, acked, attempts))

    def take(self, consumer: Consumer, most: int, most_bytes: int, now: float, repeats: Repeats = once) -> list[Lease]:
        """Leases messages to a consumer, up to `most`; at least one if there is one, whatever its size."""
        self.advance(now)
        taken: list[Lease] = []
        while len(taken) < most:
            entry = self._queues.take(consumer)
            if entry is None:
                break
            most_bytes -= len(entry.message.body)
            if taken and most_bytes < 0:
                self._queues.untake(entry)
                break
            taken.append(self._lease(entry, consumer, now))
            if len(taken) < most and repeats(entry):
                taken.append(self._lease(entry, consumer, now))
        return taken

    def acknowledge(self, ack_ids: Sequence[str], now: float) -> dict[str, str]:
        """Returns what failed, by ack id: those whose lease is over. Only exactly-once delivery returns it."""
        self.advance(now)
        failed = {}
        for ack_id in ack_ids:
            lease = self._leases.get(ack_id)
            if lease is None:
                failed[ack_id] = INVALID_ACK_ID
            else:
                self._acknowledge(lease.entry)
        return failed

    def modify(self, ack_ids: Sequence[str], seconds: int, now: float) -> dict[str, str]:
        """Moves deadlines to `seconds` from now; 0 is a nack. Returns what `acknowledge` returns."""
        self.advance(now)
        failed = {}
        for ack_id in ack_ids:
            lease = self._leases.get(ack_id)
            if lease is None:
                failed[ack_id] = INVALID_ACK_ID
            elif seconds == 0:
                self._fail(lease, now)
            else:
                lease.deadline = now + seconds
                heapq.heappush(self._deadlines, (lease.deadline, ack_id))
        return failed

    def advance(self, now: float) -> None:
        """Ends leases whose deadline is over, and delays."""
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, ack_id = heapq.heappop(self._deadlines)
            lease = self._leases.get(ack_id)
            # An extended lease has a later deadline in the heap.
            if lease is not None and lease.deadline == deadline:
                self._fail(lease, now)
        while self._delayed and self._delayed[0][0] <= now:
            _, number = heapq.heappop(self._delayed)
            entry = self.entries.get(number)
            if entry is not None and not entry.acked and not entry.leases:
                self._queues.offer(entry)

    def due(self, now: float) -> bool:
        """Whether `advance` would do anything."""
        return any(heap and heap[0][0] <= now for heap in (self._deadlines, self._delayed))

    def expire(self, before: float) -> None:
        """Drops what was published before that time."""
        for number, entry in list(self.entries.items()):
            if entry.message.published >= before:
                return
            self._drop(entry)
            self.dirty.add(number)

    def discard(self, entry: Entry) -> None:
        """Acknowledges a dead letter that was forwarded."""
        entry.acked = True
        self.unacked -= 1
        self.dirty.add(entry.message.id)
        self._settle({entry.message.id} | self._queues.drop(entry))

    def put_back(self, entry: Entry) -> None:
        """Queues a dead letter that could not be forwarded, so that it is delivered again."""
        self._queues.offer(entry)

    def _put(self, entry: Entry) -> None:
        self.entries[entry.message.id] = entry
        if not entry.acked:
            self.unacked += 1
            self._queues.put(entry)

    def _lease(self, entry: Entry, consumer: Consumer, now: float) -> Lease:
        self._delivery += 1
        ack_id = new_ack_id(self._owner, self._delivery)
        lease = Lease(ack_id, entry, consumer, now + consumer.deadline_s, entry.attempts + 1)
        entry.leases.append(lease)
        self._leases[ack_id] = lease
        heapq.heappush(self._deadlines, (lease.deadline, ack_id))
        self.deliveries[entry.message.id] += 1
        return lease

    def _end(self, lease: Lease) -> None:
        del self._leases[lease.ack_id]
        lease.entry.leases.remove(lease)

    def _acknowledge(self, entry: Entry) -> None:
        for lease in list(entry.leases):
            self._end(lease)
        if not entry.acked:
            entry.acked = True
            self.unacked -= 1
            self.dirty.add(entry.message.id)
        # With exactly-once delivery an acknowledged message is not sent again, not even for the order.
        self._settle(self._queues.acknowledge(entry, final=self.settings.exactly_once))

    def _settle(self, numbers: Iterable[int]) -> None:
        """Lets go of acknowledged messages, unless the subscription retains them."""
        if not self.settings.retain_acked:
            for number in numbers:
                self.entries.pop(number, None)
                self.dirty.add(number)

    def _fail(self, lease: Lease, now: float) -> None:
        """After a nack, or at a deadline."""
        entry = lease.entry
        self._end(lease)
        # Another delivery of the same message may still be out.
        if entry.leases:
            return
        entry.failures += 1
        if self.settings.attempts_most is not None:
            entry.attempts += 1
            self.dirty.add(entry.message.id)
        if self.settings.backoff is not None:
            least, most = self.settings.backoff
            entry.ready_at = now + min(most, least * 2.0 ** min(entry.failures - 1, 32))
        self._bring_back(entry)
        if self.settings.attempts_most is not None and entry.attempts >= self.settings.attempts_most:
            self.dead.append(entry)
        elif entry.ready_at > now:
            heapq.heappush(self._delayed, (entry.ready_at, entry.message.id))
        else:
            self._queues.offer(entry)

    def _bring_back(self, entry: Entry) -> None:
        """Takes back the later messages of its ordering key."""
        out, acked = self._queues.fail(entry)
        for number in out:
            for lease in list(self.entries[number].leases):
                self._end(lease)
        for number in acked:
            self.entries[number].acked = False
            self.unacked += 1
            self.dirty.add(number)

    def _drop(self, entry: Entry) -> None:
        for lease in list(entry.leases):
            self._end(lease)
        if not entry.acked:
            self.unacked -= 1
        del self.entries[entry.message.id]
        self._settle(self._queues.drop(entry))
