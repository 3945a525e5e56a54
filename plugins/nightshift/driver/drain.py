"""The drain: what SIGTERM and SIGINT do to a worker, and how its 15 s are spent.

A Spot machine leaves a pod 15 s after the signal, whatever longer grace period the pod has. Counted from the signal:

- until 6 s requests in flight may still come back (`DRAIN_IN_FLIGHT_S`);
- until 12.5 s finished chunks are committed and open ones saved as partials (`DRAIN_SAVED_S`);
- at 13.5 s the process ends itself, whatever hangs (`DRAIN_LIMIT_S`), and the last 1.5 s are for the container to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from nightshift import exits

SPOT_S: Final = 15.0
DRAIN_IN_FLIGHT_S: Final = 6.0
DRAIN_SAVED_S: Final = 12.5
DRAIN_LIMIT_S: Final = 13.5


class DrainOnSignal:
    """SIGTERM and SIGINT set a flag and call the worker's `drain` once there is one. A second signal changes nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._then: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Not the loop's own handlers: those end with the loop, and the process, its exit code decided, lives on a moment.
            signal.signal(number, self._signalled)

    def attach(self, then: Callable[[], None]) -> None:
        self._then = then
        if self.asked.is_set():
            then()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask)

    def _ask(self) -> None:
        if not self.asked.is_set():
            # Whatever hangs, the store or a thread in it: to leave in time says "resume me", to be killed does not.
            last_resort = threading.Timer(DRAIN_LIMIT_S, os._exit, (exits.RESUME,))
            last_resort.daemon = True
            last_resort.start()
        self.asked.set()
        if self._then:
            self._then()
