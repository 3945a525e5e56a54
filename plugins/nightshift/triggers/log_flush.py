"""Waits until Airflow has read what a trigger logged.

A trigger's lines go through a socket to the triggerer's other process, which reads 4 KiB of them between two rounds of
database queries. As soon as that process hears that a trigger is done, it forgets which task the trigger belongs to, and lines
that are still in the socket do not reach the task's log (`TriggerRunnerSupervisor._handle_request`). So a trigger whose last
lines matter waits for them to be read before it fires.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
import struct
import time
from typing import Final

import structlog

CHECK_S: Final = 0.05
PATIENCE_S: Final = 120.0
"""A process that reads nothing for this long cannot pass on an event either."""


async def logged_lines_taken(patience_s: float = PATIENCE_S) -> bool:
    """Waits until every line that this process has logged so far was read by the process it was sent to; whether it was.

    True immediately if lines are not sent to another process, as outside a triggerer. False after `patience_s`.
    """
    channel = _channel()
    if channel is None:
        return True
    # Others write into the same socket meanwhile, but it is first in, first out: a decrease between two checks was read.
    end = time.monotonic() + patience_s
    before = ahead = _unread(channel)
    while ahead > 0:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(CHECK_S)
        now = _unread(channel)
        ahead = min(now, ahead - max(0, before - now))
        before = now
    return True


def _channel() -> int | None:
    """The file descriptor of the socket to which Airflow has this process log; None if it logs elsewhere."""
    stream = getattr(structlog.get_config()["logger_factory"], "io", None)
    try:
        descriptor = stream.fileno() if stream is not None else -1
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):
        return None


def _unread(channel: int) -> int:
    """Bytes in the socket, including the kernel's overhead per message."""
    import termios  # a module that loads this one brings none along

    (count,) = struct.unpack("i", fcntl.ioctl(channel, termios.TIOCOUTQ, struct.pack("i", 0)))
    return int(count)
