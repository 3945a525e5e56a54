"""Bounds the bytes that requests hold at once: a semaphore whose permits are bytes."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

NUMBER_BYTES: Final = 32
"""A float in a list: 24 for the object, 8 for its place."""


class Hold:
    """Bytes that were taken. size: how many."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self._budget = budget
        self.size = size

    def shrink(self, size: int) -> None:
        """Gives back what is more than `size`. A hold never grows: who holds bytes and waits for more could wait for ever."""
        if size < self.size:
            self._budget.give(self.size - size)
            self.size = size


class ByteBudget:
    """`total` bytes, first come, first served. What is larger than all of them waits until it is alone, and goes then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._held = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def crowded(self) -> bool:
        """Whether somebody waits."""
        return bool(self._queue)

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[Hold]:
        """Waits for `size` bytes and holds them for as long as the context lasts."""
        await self._take(size)
        held = Hold(self, size)
        try:
            yield held
        finally:
            self.give(held.size)

    async def _take(self, size: int) -> None:
        if not self._queue and self._fits(size):
            self._held += size
            return
        waiting = (size, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            await waiting[1]
        except asyncio.CancelledError:
            if waiting in self._queue:
                self._queue.remove(waiting)
                self._grant()
            else:
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Gives bytes back."""
        self._held -= size
        self._grant()

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._total

    def _grant(self) -> None:
        while self._queue:
            size, granted = self._queue[0]
            if not self._fits(size):
                return
            self._queue.popleft()
            self._held += size
            granted.set_result(None)


def bytes_of(payload: Any) -> int:
    """About how many bytes a payload or a prediction takes in memory: of its text, binary data and numbers in lists."""
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
