"""Polling until an answer is final, through outages, up to a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from nightshift.jobset.kubernetes.follow import Log

Answer = TypeVar("Answer")

BACKOFF_FACTOR: Final = 2.0
BACKOFF_MAX_S: Final = 60.0
SETTLE_S: Final = 10.0
"""No trigger fires sooner. If a task resumes before the scheduler has seen its deferring process end, Airflow takes that
process for the resumed task's, declares the task dead and uses up a retry (`SchedulerJobRunner.process_executor_events`)."""
CHATTER_S: Final = 60.0
"""An outage is logged when it begins, when it ends, and this often in between."""


class DeadlinePassed(Exception):
    """The deadline came before a final answer."""


async def poll(
    ask: Callable[[], Answer],
    *,
    final: Callable[[Answer], bool],
    interval_s: float,
    deadline: float,
    unavailable: type[Exception],
    log: Log,
    settle_s: float = SETTLE_S,
) -> Answer:
    """Calls the blocking `ask` in a thread until `final` accepts its answer; returns that answer.

    The exception `unavailable` is never final: the pause doubles, up to a minute, until the next answer resets it.
    deadline: Unix time; DeadlinePassed after it. Any other exception passes through. The first call comes after
    `settle_s`.
    """
    await asyncio.sleep(settle_s)
    pause, outage_logged = interval_s, 0.0
    while True:
        try:
            answer = await asyncio.to_thread(ask)
        except unavailable as error:
            if time.monotonic() - outage_logged >= CHATTER_S:
                log.warning("No answer (%s); trying again until %s", error, time.strftime("%F %T", time.gmtime(deadline)))
                outage_logged = time.monotonic()
            pause = min(pause * BACKOFF_FACTOR, BACKOFF_MAX_S)
        else:
            if outage_logged:
                log.info("Answers again")
            pause, outage_logged = interval_s, 0.0
            if final(answer):
                return answer
        left = deadline - time.time()
        if left <= 0:
            raise DeadlinePassed
        await asyncio.sleep(min(pause, left))
