"""One part under supervision: started, watched, restarted when it dies, stopped."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from local.stack import marks
from local.stack.folder import ROOT, Folder
from local.stack.parts import Part

log = logging.getLogger("stack")

PROBE_STARTING_S: Final = 0.2
PROBE_HEALTHY_S: Final = 3.0
BROKEN_S: Final = 1.0
SILENCE_S: Final = 120.0
"""How long a part that was healthy may be unhealthy before it is restarted."""
DEAD_S: Final = 3.0
"""How long one and the same component has to be dead: one that is waited for is a zombie, too, until its parent gets a turn."""
STEADY_S: Final = 60.0
BACKOFF_S: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
HOPELESS: Final = 3
"""After this many starts without becoming healthy, a part counts as failed. It is still retried."""

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def patience() -> float:
    """How many times longer everything may take now: by how many processes want each core. A restart would make that worse."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Service:
    """Use from one thread only: the kernel ends a child with the thread that started it."""

    def __init__(self, part: Part, folder: Folder, environment: Mapping[str, str], life: str) -> None:
        """environment: for every part; the part's own wins."""
        self.part = part
        self.pid: int | None = None
        self.state = "starting"
        self.error: str | None = None
        self.starts = 0
        self._folder = folder
        self._marks = {marks.STACK: str(folder.path), marks.LIFE: life, marks.PART: part.name}
        self._environment = {**environment, **part.environment, **marks.TITLES_KEEP_ENVIRONMENT, **self._marks}
        self._short_lives = 0
        self._ever_healthy = False
        self._broken: tuple[str, float] | None = None
        self._start_at = 0.0
        self._started = 0.0
        self._started_wall = 0.0
        self._first_health: float | None = None
        self._last_health = 0.0
        self._probe_at = 0.0
        self._broken_at = 0.0

    def report(self) -> dict[str, Any]:
        """For stack.json. healthy_after_s: from its latest start until it was healthy."""
        return {
            "state": self.state,
            "pid": self.pid,
            "address": self.part.address,
            "starts": self.starts,
            "healthy_after_s": None if self._first_health is None else round(self._first_health - self._started, 1),
            "error": self.error,
        }

    def step(self) -> None:
        """Call this several times a second."""
        now = time.monotonic()
        if self.pid is None:
            if now >= self._start_at:
                self._start()
            return
        if now >= self._broken_at:
            self._broken_at = now + BROKEN_S
            broken = self.part.broken(self.pid)
            if broken is None or self._broken is None or self._broken[0] != broken:
                self._broken = (broken, now) if broken else None
            elif now - self._broken[1] > DEAD_S * patience():
                self._give_up(broken)
                return
        if now >= self._probe_at:
            self._probe(self.pid)

    def exited(self, status: int) -> None:
        """The supervisor has waited for the part's process; `status` is from ``waitpid``."""
        self.pid = None
        if self.state == "stopping":
            return
        code = os.waitstatus_to_exitcode(status)
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        strays = marks.sweep(self._marks)
        steady = self._first_health is not None and time.monotonic() - self._first_health > STEADY_S
        self._short_lives = 0 if steady else self._short_lives + 1
        wait = BACKOFF_S[min(self._short_lives, len(BACKOFF_S) - 1)]
        self.error = f"ended by {cause}"
        self.state = "starting"
        if not self._ever_healthy and self._short_lives >= HOPELESS:
            self.state = "failed"
        self._start_at = time.monotonic() + wait
        log.error("%s DIED: %s; %d more processes of it killed; restarting in %.1f s", self.part.name, cause, strays, wait)

    def stop(self, reap: Callable[[], None], hurry: Callable[[], bool]) -> None:
        """Asks for an orderly end, waits for it, and kills what is left. `reap` waits for children and calls `exited`."""
        began = time.monotonic()
        self.state = "stopping"
        if self.pid is not None:
            marks.kill(self.pid, self._marks, self.part.stop_signal)
        while marks.marked(self._marks) and time.monotonic() < began + self.part.stop_s and not hurry():
            reap()
            time.sleep(0.05)
        killed = marks.sweep(self._marks)
        reap()
        self.pid = None
        self.state = "stopped"
        note = f"; {killed} processes killed" if killed else ""
        log.info("%s stopped in %.1f s%s", self.part.name, time.monotonic() - began, note)

    def _start(self) -> None:
        with open(self._folder.log(self.part.name), "ab") as output:
            process = subprocess.Popen(
                self.part.command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),
            )
        # The supervisor itself waits for all its children; this only keeps Popen from doing so.
        process.returncode = 0
        self.pid = process.pid
        self.starts += 1
        self._started = self._broken_at = time.monotonic()
        self._started_wall = time.time()
        self._first_health = None
        self._broken = None
        self._probe_at = 0.0
        log.info("%s started, pid %d", self.part.name, self.pid)

    def _probe(self, pid: int) -> None:
        problem = self.part.probe(pid, self._started_wall)
        now = time.monotonic()
        if problem is None:
            if self._first_health is None:
                self._first_health = now
                log.info("%s healthy after %.1f s", self.part.name, now - self._started)
            self._ever_healthy = True
            self._last_health = now
            self.state, self.error = "healthy", None
            self._probe_at = now + PROBE_HEALTHY_S
            return
        self.error = problem
        self._probe_at = now + PROBE_STARTING_S
        if self._first_health is None:
            if now - self._started > self.part.start_s * patience():
                self._give_up(f"not healthy {now - self._started:.0f} s after its start: {problem}")
        else:
            self.state = "unhealthy"
            if now - self._last_health > SILENCE_S * patience():
                self._give_up(f"not healthy for {now - self._last_health:.0f} s: {problem}")

    def _give_up(self, reason: str) -> None:
        """Kills the part at once, so that it is restarted. Nothing in it gets a chance to undo what it was doing."""
        log.error("%s BROKEN: %s", self.part.name, reason)
        self.state = "unhealthy"
        marks.sweep(self._marks)


def _dies_with(supervisor: int) -> Callable[[], None]:
    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(1)
        # An ignored signal stays ignored in a new program, and a shell ignores SIGINT for background processes.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)

    return prepare
