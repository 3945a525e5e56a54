"""The emulator's time: the machine's clock, which a test may move forward."""

from __future__ import annotations

import time


class Clock:
    """Deadlines, delays, retention and publish times follow `now`."""

    def __init__(self) -> None:
        # A correction of the machine's clock must not end leases.
        self._began_s = time.time() - time.monotonic()
        self._ahead_s = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return self._began_s + time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Moves the clock forward, and never back. Raises ValueError."""
        if seconds < 0:
            raise ValueError("the clock moves forward only")
        self._ahead_s += seconds
