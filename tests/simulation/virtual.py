"""Virtual time: an asyncio event loop whose clock jumps to the next timer, and processes that can be frozen and killed.

All processes of a simulation share one loop in one thread. What a process runs carries its `Process` in its context, so
the loop knows whose callback it is about to run: a frozen process's callbacks wait for the thaw, a dead one's are dropped.
Nothing here reads a real clock, an address or a hash, so the same program runs the same way every time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

STEPS_MAX: Final = 3_000_000
"""Callbacks in one simulation; more is taken for a loop that does not let time pass."""
CLOSINGS_MAX: Final = 20
"""How often a coroutine that goes on after GeneratorExit is closed again before it is left alone."""


class Deadlock(Exception):
    """Nothing is ready, no timer is set, and the simulation is not over: everybody waits for somebody."""


class TimeIsUp(Exception):
    """The simulation did not end before its virtual deadline."""


class Livelock(Exception):
    """Callbacks run and run, and time does not pass."""


class Process:
    """One simulated process: all that runs in `context`, and in what is started from there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.held: list[Any] = []
        self.context = contextvars.copy_context()
        self.context.run(_PROCESS.set, self)

    def __repr__(self) -> str:
        return f"Process({self.name})"


_PROCESS: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """The process whose code runs now; None: the world outside all processes."""
    return _PROCESS.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time, without sockets, signals and threads.

    deadline: seconds after which the simulation must be over (`TimeIsUp`). thread_delays: draws the seconds before and
    after a function that is handed to a thread; it runs in this thread, at the instant between the two.
    """

    _ready: deque[Any]
    _scheduled: list[Any]

    def __init__(self, *, deadline: float, thread_delays: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)) -> None:
        super().__init__()
        self.steps = 0
        self.errors: list[Exception] = []
        """What callbacks raised: asyncio would log it and go on."""
        self.deadline = deadline
        self.outside = contextvars.Context()
        self._now = 0.0
        self._timers = 0
        self._thread_delays = thread_delays
        # A task that nothing but itself refers to would be collected as garbage, and its `finally` would run: keep them all.
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._now

    def freeze(self, process: Process) -> None:
        """Stops a process, as SIGSTOP does."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Lets a frozen process go on: what came for it in the meantime comes now, its timers late."""
        process.frozen = False
        self._ready.extend(process.held)
        process.held.clear()

    def kill(self, process: Process) -> None:
        """Ends a process between two of its callbacks, as SIGKILL does; no `except` or `finally` of it runs any more."""
        process.dead = True
        process.held.clear()

    def spawn(self, process: Process, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a coroutine as part of a process."""
        return self.create_task(main, context=process.context)

    def within(self, process: Process, call: Callable[..., object], *args: Any) -> None:
        """Has a process call something, as a signal does."""
        self.call_soon(call, *args, context=process.context)

    def after(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """Calls outside all processes, whoever asks for it: what is under way goes on when the asker is frozen or dead."""
        self.call_at(self._now + seconds, call, *args, context=self.outside)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        before, after = self._thread_delays()

        def deliver(done: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                done(value)

        def run() -> None:
            # A thread cannot be cancelled: it runs also when nobody waits for it any more.
            try:
                value, done = func(*args), future.set_result
            except Exception as error:
                value, done = error, future.set_exception
            self.call_later(after, deliver, done, value)

        self.call_later(before, run)
        return future

    def close_all(self) -> None:
        """Ends what is still suspended, when the simulation is over and nobody looks any more, and closes the loop."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for task in self._tasks:
                    if not task.done():
                        _close(task.get_coro())
                self._tasks.clear()
                self._ready.clear()
                self._scheduled.clear()
                self.close()
        finally:
            sys.unraisablehook = hook

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's own, without what it does for debugging; the same for `call_at`."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers += 1
        # Of timers for the same instant the one that was set first comes first.
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        return timer

    def _run_once(self) -> None:
        """What asyncio's own does between two looks at the clock, except that the clock does as it is told."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if not ready:
            self._jump()
        while scheduled and scheduled[0][0] <= self._now:
            ready.append(heapq.heappop(scheduled)[2])
        self.steps += len(ready)
        if self.steps > STEPS_MAX:
            raise Livelock(f"{self.steps} steps, and it is {self._now:.3f} s")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_PROCESS)
            if process is not None:
                if process.dead:
                    continue
                if process.frozen:
                    process.held.append(handle)
                    continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as error:
                self.errors.append(error)

    def _jump(self) -> None:
        if not self._scheduled:
            raise Deadlock(f"nothing is left to happen at {self._now:.3f} s")
        self._now = max(self._now, self._scheduled[0][0])
        if self._now > self.deadline:
            raise TimeIsUp(f"not over after {self.deadline:.0f} s")

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        self._tasks.append(task)
        return task

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """A cancelled timer is dropped when its turn comes."""

    def _write_to_self(self) -> None:
        """Nothing to wake: the loop never sleeps."""

    def _process_events(self, event_list: Any) -> None:
        """There are no file descriptors."""


def _close(coro: Any) -> None:
    for _ in range(CLOSINGS_MAX):
        with contextlib.suppress(BaseException):
            coro.close()
            return
