"""The drain: what a worker does on SIGTERM and SIGINT, and how it spends its 15 s.

A Spot machine gives a pod 15 s after the signal, even if its grace period is longer. Counted from the signal:

- until 6 s, requests in flight may still be answered (`DRAIN_IN_FLIGHT_S`);
- until 12.5 s, finished chunks are committed and open ones saved as partials (`DRAIN_SAVED_S`);
- at 13.5 s, the process exits, whatever hangs (`DRAIN_LIMIT_S`); the last 1.5 s are for the container to end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from nightshift import exits

log = logging.getLogger(__name__)

SPOT_S: Final = 15.0
DRAIN_IN_FLIGHT_S: Final = 6.0
DRAIN_SAVED_S: Final = 12.5
DRAIN_LIMIT_S: Final = 13.5
SAY_S: Final = 0.5
"""How long the last resort tries to log: the log may be what hangs."""


class DrainOnSignal:
    """SIGTERM and SIGINT set a flag and call the worker's `drain` once there is one. A second signal changes nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._then: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_resort: threading.Timer | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not the loop's own handlers: they end with the loop, and the process lives a moment longer.
            signal.signal(number, self._signalled)

    def attach(self, then: Callable[[], None]) -> None:
        self._then = then
        if self.asked.is_set():
            then()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if self._last_resort is None:
            # The pod has 15 s, whatever hangs. Exiting says "resume me"; being killed does not.
            # Set here and not by the loop, which may be what hangs.
            self._last_resort = threading.Timer(DRAIN_LIMIT_S, _leave)
            self._last_resort.daemon = True
            self._last_resort.start()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        self.asked.set()
        if self._then:
            self._then()


def _leave() -> None:
    """Exits with "resume me", whatever the other threads do."""
    saying = threading.Thread(target=log.error, args=("drain took too long, exiting",), daemon=True)
    saying.start()
    saying.join(SAY_S)
    os._exit(exits.RESUME)
