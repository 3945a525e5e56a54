"""The order of messages with an ordering key: one of each key is under way, the others wait as they were delivered. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """Items by lane. An item without a lane ("") never waits."""

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
