"""When a caller that is turned away should come again. Pure."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

RATE_WINDOW_S: Final = 10.0
RETRY_AFTER_MOST_S: Final = 60


class Rate:
    """How many callers were answered lately. now: seconds of any steady clock."""

    def __init__(self) -> None:
        self._answered: deque[float] = deque()

    def add(self, now: float) -> None:
        self._answered.append(now)
        self._forget(now)

    def retry_after_s(self, callers: int, now: float) -> int:
        """Whole seconds in which so many should be answered, at the rate of late; 1 while nothing is known of it."""
        self._forget(now)
        since = max(1.0, now - self._answered[0]) if self._answered else 0.0
        return min(max(1, math.ceil(callers * since / max(1, len(self._answered)))), RETRY_AFTER_MOST_S)

    def _forget(self, now: float) -> None:
        while self._answered and self._answered[0] <= now - RATE_WINDOW_S:
            self._answered.popleft()
