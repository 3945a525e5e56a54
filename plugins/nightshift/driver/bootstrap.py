"""What the programs beside an engine have in common: the wait for the engine, and how much they send it first."""

from __future__ import annotations

import logging
import math

from nightshift.driver import descriptors
from nightshift.driver.drain import DrainOnSignal
from nightshift.driver.engine import EngineClient
from nightshift.tasks.base import Fetching, TaskKind

log = logging.getLogger("nightshift.driver")


async def meet(engine: EngineClient, drain: DrainOnSignal, wait_s: float) -> bool:
    """Waits for the engine; False if it did not come up in time or the pod must end first."""
    healthy = await drain.outrun(engine.wait_healthy(wait_s))
    if not healthy and not drain.asked.is_set():
        log.error("engine did not become healthy", extra={"fields": {"waited_s": wait_s}})
    return healthy


def first_window(seats: int, kind: TaskKind) -> tuple[int, int]:
    """Rows in flight to begin with, and the most requests. seats: rows that the engine computes at once.

    Twice the seats, so that as many rows wait as fill its next batch. A first guess: the window then follows the engine's own
    numbers. Of requests no more than there are descriptors for.
    """
    rows = 2 * seats
    requests = math.ceil(rows / kind.rows_per_request)
    return rows, descriptors.requests_most(descriptors.raise_limit(), requests, fetching=isinstance(kind, Fetching))
