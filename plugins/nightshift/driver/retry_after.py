"""How long an engine wants to be left alone, as it says with Retry-After."""

from __future__ import annotations

import asyncio

from nightshift.driver.backoff import Backoff


class Silence:
    """Until it is over nothing is sent to the engine: no row, no probe and no canary."""

    def __init__(self, patience: Backoff) -> None:
        self._patience = patience
        self._until = float("-inf")

    @property
    def left_s(self) -> float:
        """Seconds until it is over; 0 if there is none."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def ask(self, seconds: float) -> bool:
        """The engine asks for so many seconds. Whether that is longer than it has asked for already."""
        longer = seconds > self.left_s
        if longer:
            self._until = asyncio.get_running_loop().time() + seconds
        return longer

    async def over(self) -> None:
        """Waits until it is over, however often the engine asks for more, or until the worker is told to stop."""
        while self.left_s and not self._patience.stop.is_set():
            await self._patience.pause(self.left_s)
