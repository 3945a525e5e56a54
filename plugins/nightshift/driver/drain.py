"""The drain: what SIGTERM and SIGINT do to a worker, and how its 15 s are spent.

A Spot machine leaves a pod 15 s after the signal, whatever longer grace period the pod has. Counted from the signal:

- until 6 s requests in flight may still come back (`DRAIN_IN_FLIGHT_S`);
- until 12.5 s finished chunks are committed and open ones saved as partials (`DRAIN_SAVED_S`);
- at 13.5 s the process ends itself, whatever hangs (`DRAIN_LIMIT_S`), and the last 1.5 s are for the container to end.
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
"""How long the last resort tries to say that it was needed: the log may be what hangs."""


class DrainOnSignal:
    """SIGTERM and SIGINT set a flag and call the worker's `drain` once there is one. A second signal changes nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._then: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._last_resort: threading.Timer | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not the loop's own handlers: those end with the loop, and the process, its exit code decided, lives on a moment.
            signal.signal(number, self._signalled)

    def attach(self, then: Callable[[], None]) -> None:
        self._then = then
        if self.asked.is_set():
            then()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if self._last_resort is None:
            # Whatever hangs, the store, a thread or the loop itself, the pod has 15 s: to leave says "resume me", to be killed
            # does not. Set here and not by the loop, which may be what hangs.
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
    """Ends the process as one that asks to be resumed, whatever its other threads do."""
    saying = threading.Thread(target=log.error, args=("last resort",), daemon=True)
    saying.start()
    saying.join(SAY_S)
    os._exit(exits.RESUME)
