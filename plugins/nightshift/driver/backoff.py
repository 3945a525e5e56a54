"""How a worker waits and retries: with full jitter, within a budget, as the engine asks, and not beyond the worker's end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nightshift.store import StoreUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 20.0
STORE_BUDGET_S: Final = 600.0
"""How long the store may be unreachable before the worker makes way for a new one."""


class Backoff:
    """Waiting that ends when `stop` is set. rng: for the jitter."""

    def __init__(self, rng: random.Random, stop: asyncio.Event) -> None:
        self._rng = rng
        self.stop = stop

    async def pause(self, seconds: float) -> None:
        """Sleeps until the time is up or the worker must stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop.wait()

    def jitter(self, tries: int) -> float:
        """Seconds to wait before try number `tries` + 1: full jitter (Brooker, "Exponential Backoff And Jitter", 2015).

        Requests that failed together must not return together.
        """
        return self._rng.uniform(0, min(BACKOFF_S * 2 ** min(tries, 10), BACKOFF_MAX_S))

    async def outlast(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Repeats a call to the store until it is answered. Raises StoreUnavailable when the budget is used up.

        After `stop` it retries faster: what a drain saves is worth every try, and the drain cuts it off in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STORE_BUDGET_S
        tries = 0
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                log.warning("store did not answer", extra={"fields": {"what": what, "error": str(error)}})
                if loop.time() > deadline:
                    raise
            tries += 1
            if self.stop.is_set():
                await asyncio.sleep(BACKOFF_S)
            else:
                await self.pause(self.jitter(tries))


class Silence:
    """Until an engine's Retry-After is over, nothing is sent to it: no row, no probe and no canary."""

    def __init__(self, patience: Backoff) -> None:
        self._patience = patience
        self._until = float("-inf")

    @property
    def left_s(self) -> float:
        """Seconds until it is over; 0 if it is over."""
        return max(0.0, self._until - asyncio.get_running_loop().time())

    def ask(self, seconds: float) -> bool:
        """The engine asks for `seconds`. Whether that is longer than it has asked for already."""
        longer = seconds > self.left_s
        if longer:
            self._until = asyncio.get_running_loop().time() + seconds
        return longer

    async def over(self) -> None:
        """Waits until it is over, however often the engine asks for more, or until the worker must stop."""
        while self.left_s and not self._patience.stop.is_set():
            await self._patience.pause(self.left_s)
