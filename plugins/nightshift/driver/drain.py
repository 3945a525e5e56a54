"""The drain: what a worker does on SIGTERM and SIGINT, and how it spends its 15 s.

A Spot machine gives a pod 15 s after the signal, even if its grace period is longer. Counted from the signal:

- until 6 s, requests in flight may still be answered (`DRAIN_IN_FLIGHT_S`);
- until 12.5 s, finished chunks are committed and open ones saved as partials (`DRAIN_SAVED_S`);
- at 13.5 s, the process exits, whatever hangs (`DRAIN_LIMIT_S`), and says so in its log;
- at 14.2 s, the C library ends it (`DRAIN_GONE_S`), even if some C code holds Python's lock, so that no thread of Python can;
  the rest is for the container to end.

A template that computes does not delay this: the signal breaks it off (`nightshift.driver.time_limit`). An answer is read to
its end, for a second of processor time at most. C code that never looks for signals does delay it: Python learns of the signal
when that code returns.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final

from nightshift import exits
from nightshift.driver import time_limit

log = logging.getLogger(__name__)

SPOT_S: Final = 15.0
DRAIN_IN_FLIGHT_S: Final = 6.0
DRAIN_SAVED_S: Final = 12.5
DRAIN_LIMIT_S: Final = 13.5
DRAIN_GONE_S: Final = 14.2
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
            # Not the loop's own handlers: they end with the loop, and the process runs a moment longer.
            signal.signal(number, self._signalled)
        time_limit.watch()

    async def outrun(self, waiting: Coroutine[Any, Any, bool]) -> bool:
        """What it returns; False if the process must end first."""
        task, asked = asyncio.create_task(waiting), asyncio.create_task(self.asked.wait())
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not task.done():
            task.cancel()
            return False
        return task.result()

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
            _end_in(DRAIN_GONE_S, exits.RESUME)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ask)
        time_limit.stop()

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


class _SigEvent(ctypes.Structure):
    """``struct sigevent`` of Linux with 64 bits, glibc and musl (sigevent(7))."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


_SIGEV_THREAD: Final = 2


def _end_in(seconds: float, code: int) -> None:
    """Makes the C library call ``_exit(code)`` then, in a thread that needs nothing of Python: timer_create(2)."""
    if sys.platform != "linux":
        return  # `nightshift batch` on a desktop: only a container has a deadline.
    libc = ctypes.CDLL(None, use_errno=True)
    # The function gets `value`, of which it reads the int that it takes.
    event = _SigEvent(code, 0, _SIGEV_THREAD, ctypes.cast(libc._exit, ctypes.c_void_p).value)
    timer = ctypes.c_void_p()
    # Twice (seconds, nanoseconds): the repetition, none, and the first time.
    times = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    if libc.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) or libc.timer_settime(
        timer, 0, ctypes.byref(times), None
    ):
        log.error("no timer for the last resort", extra={"fields": {"error": os.strerror(ctypes.get_errno())}})
