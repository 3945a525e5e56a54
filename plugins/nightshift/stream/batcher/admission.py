"""How many callers and how many of their bytes the batcher has in hand at once, and when to come again. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

RATE_WINDOW_S: Final = 10.0
RETRY_AFTER_MOST_S: Final = 60
COPIES: Final = 3
"""Of a request's bytes: its body, its items until they are sent, and the merged request in the connection's buffer."""


class Rate:
    """How many callers were answered lately."""

    def __init__(self) -> None:
        self._answered: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, callers: int, now: float) -> None:
        """now: seconds of any steady clock."""
        self._forget(now)
        self._answered.append((now, callers))
        self._sum += callers

    def per_s(self, now: float) -> float:
        """Over the last seconds, `RATE_WINDOW_S` at most."""
        self._forget(now)
        return self._sum / max(1.0, now - self._answered[0][0]) if self._answered else 0.0

    def _forget(self, now: float) -> None:
        while self._answered and self._answered[0][0] <= now - RATE_WINDOW_S:
            self._sum -= self._answered.popleft()[1]


class Admission:
    """Bounds what is in hand: `callers_most` from when their request begins until their answer is written, and `bytes_most`.

    What is larger than all bytes together is refused, so `bytes_most` has to be `COPIES` times the largest body at least.
    """

    def __init__(self, *, callers_most: int, bytes_most: int) -> None:
        self._callers_most = callers_most
        self._bytes_most = bytes_most
        self.callers = 0
        self.bytes = 0
        self.rate = Rate()

    def __repr__(self) -> str:
        return f"<Admission callers={self.callers}/{self._callers_most} bytes={self.bytes}/{self._bytes_most}>"

    def enter(self, size: int) -> str | None:
        """Takes in a caller whose body has that many bytes, at most; otherwise says what is full: "queue" or "memory"."""
        if self.callers >= self._callers_most:
            return "queue"
        if self.bytes + COPIES * size > self._bytes_most:
            return "memory"
        self.callers += 1
        self.bytes += COPIES * size
        return None

    def shrink(self, asked: int, size: int) -> None:
        """The body that was taken to have `asked` bytes has only `size`."""
        self.bytes -= COPIES * (asked - size)

    def leave(self, size: int, now: float) -> None:
        """Its answer is written, or it has gone. size: as it was last said."""
        self.callers -= 1
        self.bytes -= COPIES * size
        self.rate.add(1, now)

    def retry_after_s(self, now: float) -> int:
        """Whole seconds in which what is in hand should be answered, at the rate of late; 1 while nothing is known of it."""
        rate = self.rate.per_s(now)
        return min(max(1, math.ceil(self.callers / rate)), RETRY_AFTER_MOST_S) if rate else 1
