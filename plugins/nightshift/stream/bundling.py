"""Collects what arrives one by one into bundles: full ones at once, others when their first item has waited long enough. Pure.

The bound on waiting is counted from the oldest item and not from the last one, so a slow trickle cannot hold a bundle open.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[T]):
    item: T
    size: int
    since: float


class Bundler(Generic[T]):
    """A bundle is due when it is full (items or size), or when its oldest item has waited `wait_s` seconds.

    items_most: items in a bundle, 1 or more. size_most: sum of their sizes, in any unit; infinite for no such bound. wait_s: 0
    or more. Raises ValueError for other values. Items are told apart by identity, so equal ones may wait side by side. Each
    operation takes a time that does not depend on how much waits, except that a bundle takes as long as it has items.
    """

    def __init__(self, *, items_most: int, size_most: float, wait_s: float) -> None:
        # Written so that NaN, which compares as false, is refused too.
        if not (items_most >= 1 and size_most > 0 and wait_s >= 0):
            raise ValueError(
                f"a bundle needs items_most >= 1, size_most > 0 and wait_s >= 0, not {items_most}, {size_most} and {wait_s}"
            )
        self.items_most = items_most
        self.size_most = size_most
        self.wait_s = wait_s
        # Not a dict, which takes longer and longer to find its first key while keys are taken from its front.
        self._waiting: OrderedDict[int, _Waiting[T]] = OrderedDict()
        self._latest = -math.inf
        self._size = 0

    def __repr__(self) -> str:
        return f"<Bundler items={len(self)}/{self.items_most} size={self._size}/{self.size_most:g} wait_s={self.wait_s:g}>"

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    @property
    def size(self) -> int:
        """The sum of the sizes that wait."""
        return self._size

    @property
    def full(self) -> bool:
        """Whether a bundle is due whatever the time: one more item would not belong to it."""
        return len(self._waiting) >= self.items_most or self._size >= self.size_most

    @property
    def next_due(self) -> float | None:
        """When `due` will have a bundle, on the clock of `add`: in the past if one is full. None if nothing waits."""
        if not self._waiting:
            return None
        since = self._oldest().since
        return since if self.full else since + self.wait_s

    def add(self, item: T, size: int, now: float) -> None:
        """Puts an item behind all that wait. now: seconds of any steady clock, when it began to wait.

        Raises ValueError if it waits already, if its size is negative, or if `now` is before that of an earlier item: the first
        would then not be the oldest.
        """
        if id(item) in self._waiting:
            raise ValueError(f"the item waits already: {item!r}")
        if size < 0:
            raise ValueError(f"the size is negative: {size}")
        if not now >= self._latest:
            raise ValueError(f"the time {now} is before {self._latest}, when an earlier item began to wait")
        self._latest = now
        self._waiting[id(item)] = _Waiting(item, size, now)
        self._size += size

    def remove(self, item: T) -> bool:
        """Takes out an item that is no longer needed. False: it does not wait here."""
        found = self._waiting.pop(id(item), None)
        if found is None:
            return False
        self._size -= found.size
        return True

    def due(self, now: float) -> list[T] | None:
        """Takes the next bundle that is due, in order of arrival; None if none is. Ask again: another may be due as well.

        It never has more than `items_most` items, nor more than `size_most` unless it is one item that is larger alone.
        """
        at = self.next_due
        return self._take() if at is not None and now >= at else None

    def flush(self) -> list[T] | None:
        """Takes the next bundle whether or not it is due, for a drain; None if nothing waits."""
        return self._take() if self._waiting else None

    def _oldest(self) -> _Waiting[T]:
        return next(iter(self._waiting.values()))

    def _take(self) -> list[T]:
        bundle: list[T] = []
        taken = 0
        while self._waiting and len(bundle) < self.items_most:
            first = self._oldest()
            if bundle and taken + first.size > self.size_most:
                break
            self._waiting.popitem(last=False)
            bundle.append(first.item)
            taken += first.size
        self._size -= taken
        return bundle
