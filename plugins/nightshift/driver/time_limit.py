"""Breaks off a call that would hold the event loop: when it takes too long, or when a signal ends the process.

Templates run in the event loop's thread, and answers are read there; it is the main one. Python runs signal handlers in it,
between two bytecodes, and regular expressions and long arithmetic look for them too: a handler that raises breaks the call off.
A timer that counts the process's CPU time finds what takes long. It costs an idle process nothing and a call almost nothing,
and no row is blamed for a machine that is slow, frozen or crowded. Only a call that reads an answer may end after the signal
that ends the process: the engine has computed that answer, and the drain keeps it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S: Final = 5.0
"""CPU seconds of the thread that one call may take. It may take up to twice `TICK_S` more: as long as it takes to be seen."""
STOPPING_S: Final = 0.4
"""The same for a call that reads an answer once a signal ends the process."""
TICK_S: Final = 0.5


class TooLong(Exception):
    """The call took more than `LIMIT_S`."""


class Stopped(BaseException):
    """A signal ends the process. No error of the call: code that handles errors must not see it."""


class _State:
    """calls: how many have begun. busy: one runs. reads: it reads an answer. timed: the one that `since` (CPU seconds of the
    thread) is about."""

    __slots__ = ("busy", "calls", "reads", "since", "stopping", "timed")

    def __init__(self) -> None:
        self.calls, self.busy, self.reads, self.stopping = 0, False, False, False
        self.timed, self.since = 0, 0.0


_state: Final = _State()


def timely(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What the call returns. Raises TooLong, Stopped, and whatever the call raises.

    Only for calls in the main thread that change nothing: they may end after any of their steps. Calls do not nest.
    """
    _state.reads = False
    return _watched(call, *args, **kwargs)


def reading(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `timely`, for a call that reads an answer: `stop` leaves it `STOPPING_S`."""
    _state.reads = True
    return _watched(call, *args, **kwargs)


def _watched(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    _state.calls += 1
    # From here on a handler may raise, until busy is False again; then the call's result is lost.
    _state.busy = True
    try:
        return call(*args, **kwargs)
    finally:
        _state.busy = False


def stopping() -> bool:
    """Whether `stop` was called: then there is no time for new calls."""
    return _state.stopping


def stop() -> None:
    """For the handler of a signal that ends the process, as its last step: raises Stopped into a call that reads no answer."""
    _state.stopping = True
    if _state.busy and not _state.reads:
        raise Stopped


def watch() -> None:
    """Begins to look after calls. Takes SIGPROF and its timer for the rest of the process; main thread only."""
    _state.stopping = False
    signal.signal(signal.SIGPROF, _tick)
    # Other threads' system calls go on as if nothing had happened.
    signal.siginterrupt(signal.SIGPROF, False)
    signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)


def _tick(_number: int, _frame: FrameType | None) -> None:
    # It raises again at the next tick if the call goes on: what is raised inside a destructor is lost.
    if not _state.busy:
        return
    if _state.stopping and not _state.reads:
        raise Stopped
    now = time.thread_time()
    if _state.timed != _state.calls:
        _state.timed, _state.since = _state.calls, now
    elif _state.stopping and now - _state.since > STOPPING_S:
        raise Stopped
    elif now - _state.since > LIMIT_S:
        raise TooLong(f"it took more than {LIMIT_S:g} s of processor time")
