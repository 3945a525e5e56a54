"""What may be delivered next: messages without order by age, and one line for each ordering key. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from local.pubsub.leases import Consumer, Entry
from local.pubsub.lines import Line


class Queues:
    """entries: those of the subscription, which its owner keeps up to date. ordered: whether keys have lines."""

    def __init__(self, entries: Mapping[int, Entry], ordered: bool) -> None:
        self._entries = entries
        self._has_lines = ordered
        self._ready: list[int] = []
        self._lines: dict[str, Line] = {}
        # Keys of which any consumer may get the next message. A key that one has is in `Consumer.more`.
        self._free: dict[str, None] = {}

    def clear(self) -> None:
        self._ready = []
        self._lines.clear()
        self._free.clear()

    def put(self, entry: Entry) -> None:
        """Adds a message that was not there before; `offer` is for one that comes back."""
        if self._ordered(entry):
            line = self._lines.setdefault(entry.message.key, Line())
            line.add(entry.message.id)
            self._announce(entry.message.key, line)
        else:
            self._push(entry)

    def offer(self, entry: Entry) -> None:
        """Makes a message available that has come back: in its line, which opens, if it has one."""
        if not self._ordered(entry):
            self._push(entry)
            return
        line = self._lines.get(entry.message.key)
        if line is not None:
            line.closed = False
            self._announce(entry.message.key, line)

    def take(self, consumer: Consumer) -> Entry | None:
        """Takes the next message for this consumer out of its queue."""
        key = next(iter(consumer.more), None) or next(iter(self._free), None)
        if key is not None:
            line = self._lines[key]
            number = line.deliver()
            line.holder = consumer
            self._free.pop(key, None)
            self._announce(key, line)
            return self._entries[number]
        while self._ready:
            entry = self._entries.get(heapq.heappop(self._ready))
            if entry is None or not entry.queued:
                continue
            entry.queued = False
            if not entry.acked and not entry.leases:
                return entry
        return None

    def untake(self, entry: Entry) -> None:
        """Undoes what `take` did just now."""
        if not self._ordered(entry):
            self._push(entry)
            return
        line = self._lines[entry.message.key]
        line.fail(entry.message.id)
        self._after(entry.message.key, line)

    def acknowledge(self, entry: Entry, *, final: bool) -> set[int]:
        """Returns the acknowledged messages that nothing can bring back. final: this one cannot, whatever comes before it."""
        number = entry.message.id
        if not self._ordered(entry):
            return {number}
        line = self._lines[entry.message.key]
        settled = line.acknowledge(number)
        if final:
            line.early.discard(number)
            settled.add(number)
        self._after(entry.message.key, line)
        return settled

    def fail(self, entry: Entry) -> tuple[list[int], list[int]]:
        """Closes the line of a message that comes back, until it is offered. Returns the messages that come back with it: those
        that are outstanding, and those that are acknowledged."""
        if not self._ordered(entry):
            return [], []
        line = self._lines[entry.message.key]
        out, acked = line.fail(entry.message.id)
        line.closed = True
        self._after(entry.message.key, line)
        return out, acked

    def drop(self, entry: Entry) -> set[int]:
        """Forgets a message; returns what `acknowledge` returns."""
        line = self._lines.get(entry.message.key)
        if line is None or not self._ordered(entry):
            return set()
        if line.waiting[:1] == [entry.message.id]:
            # If the line is closed, then for the sake of this message.
            line.closed = False
        settled = line.drop(entry.message.id)
        self._after(entry.message.key, line)
        return settled

    def _ordered(self, entry: Entry) -> bool:
        return self._has_lines and bool(entry.message.key)

    def _push(self, entry: Entry) -> None:
        if not entry.queued:
            entry.queued = True
            heapq.heappush(self._ready, entry.message.id)

    def _announce(self, key: str, line: Line) -> None:
        """Lists a key where those find it who may get its next message."""
        place = self._free if line.holder is None else line.holder.more
        if line.waiting and not line.closed:
            place[key] = None
        else:
            place.pop(key, None)

    def _after(self, key: str, line: Line) -> None:
        """Frees the key if nothing of it is outstanding, and forgets it if nothing is left."""
        if line.holder is not None and not line.outstanding:
            line.holder.more.pop(key, None)
            line.holder = None
        self._announce(key, line)
        if line.empty():
            del self._lines[key]
