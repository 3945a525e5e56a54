"""Bounds the bytes that requests hold at once: a semaphore whose permits are bytes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

NUMBER_BYTES: Final = 32
"""A float in a list: 24 for the object, 8 for its place."""


class Hold:
    """Bytes that were asked for. size: how many."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget = budget
        self.size = size
        self.granted = asyncio.get_running_loop().create_future()
        """Done when they are there."""
        self._over = False

    def shrink(self, size: int) -> None:
        """Gives back what is more than `size`. A hold never grows: who holds bytes and waits for more could wait for ever."""
        if size < self.size:
            spare, self.size = self.size - size, size
            self._budget.give(spare)

    def release(self) -> None:
        """Gives all of it back, or waits no more. Calling it again is harmless."""
        if not self._over:
            self._over = True
            self._budget.released(self)


class ByteBudget:
    """`total` bytes, first come, first served. What is larger than all of them waits until it is alone, and goes then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held = 0
        self._queue: dict[Hold, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether a request waits."""
        return bool(self._queue)

    def ask(self, size: int) -> Hold:
        """Takes a place in the queue; the bytes are there when `Hold.granted` is done."""
        hold = Hold(self, size)
        self._queue[hold] = None
        self._grant()
        return hold

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[Hold]:
        """Waits for `size` bytes and holds them for as long as the context lasts."""
        held = self.ask(size)
        try:
            await held.granted
            yield held
        finally:
            held.release()

    def give(self, size: int) -> None:
        """Takes bytes back."""
        self._held -= size
        self._grant()

    def released(self, hold: Hold) -> None:
        """The hold is over, or waits no more."""
        if hold in self._queue:
            del self._queue[hold]
            self._grant()
        else:
            self.give(hold.size)

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._total

    def _grant(self) -> None:
        while self._queue and self._fits((hold := next(iter(self._queue))).size):
            del self._queue[hold]
            self._held += hold.size
            # Cancelled with the task that waited: it gives back what it has.
            if not hold.granted.done():
                hold.granted.set_result(None)


def bytes_of(payload: Any) -> int:
    """About how many bytes a payload or an answer takes in memory: of its text, binary data and numbers in lists."""
    if isinstance(payload, array):
        return len(payload) * payload.itemsize
    if isinstance(payload, str | bytes):
        return len(payload)
    if isinstance(payload, list | tuple):
        return sum(NUMBER_BYTES if isinstance(each, float) else bytes_of(each) for each in payload)
    if isinstance(payload, dict):
        return sum(map(bytes_of, payload.values()))
    names = getattr(payload, "__dataclass_fields__", ())
    return sum(bytes_of(getattr(payload, name)) for name in names)
