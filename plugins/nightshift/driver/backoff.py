"""How a worker waits and retries: with full jitter, within a budget, as the engine asks, and not beyond the worker's end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from nightshift.store import StoreRefused, StoreUnavailable, refusal_of

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 20.0
STORE_BUDGET_S: Final = 600.0
"""How long the store may be unreachable before the worker makes way for a new one."""

REFUSED_S: Final = 120.0
"""How long a refusal may last. IAM makes a grant known everywhere "typically within 2 minutes" (its page "Access change
propagation"); after that no repeat helps, while the machine is paid."""


class Refusals:
    """How long the store has refused. An outage in between says nothing about rights; only an answer ends it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def over(self) -> None:
        self._since = None

    def judge(self, error: BaseException) -> bool:
        """Whether the error is a refusal. Raises StoreRefused if they have lasted for `REFUSED_S`."""
        if (refusal := refusal_of(error)) is None:
            return False
        now = asyncio.get_running_loop().time()
        self._since = now if self._since is None else self._since
        if now - self._since >= REFUSED_S:
            raise StoreRefused(
                f"{refusal}, for {now - self._since:.0f} s now. {refusal.remedy} (k8s/README.md, step 10; `nightshift doctor` "
                "compares the bucket's policy with it)"
            ) from error
        return True


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

    async def rest(self, tries: int) -> None:
        """Before try number `tries` + 1 of what a drain still needs: after `stop` it retries faster."""
        await (asyncio.sleep(BACKOFF_S) if self.stop.is_set() else self.pause(self.jitter(tries)))

    async def outlast(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        """Repeats a call to the store until it is answered. Raises StoreUnavailable when the budget is used up; StoreRefused.

        After `stop`, too: what a drain saves is worth every try, and the drain cuts it off in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STORE_BUDGET_S
        tries, refusals = 0, Refusals()
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                log.warning("store did not answer", extra={"fields": {"what": what, "error": str(error)}})
                refusals.judge(error)
                if loop.time() > deadline:
                    raise
            tries += 1
            await self.rest(tries)

    async def until_granted(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call as long as the store refuses it: a right may have been granted a moment ago. Raises StoreRefused, and
        at once whatever else the call raises."""
        refusals = Refusals()
        while True:
            try:
                return await call()
            except Exception as error:
                if not refusals.judge(error) or self.stop.is_set():
                    raise
            await self.pause(BACKOFF_MAX_S)


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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Retry-After in seconds. A date in it is compared with the reply's own Date: the two clocks need not agree."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
