"""The programs of one cluster as children of its supervisor."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from local.cluster.layout import Layout
from local.stack import environment, marks

log = logging.getLogger("cluster")

SBIN: Final = "/usr/local/sbin:/usr/sbin:/sbin"
POLL_S: Final = 0.1
RESTART_AFTER_S: Final = 1.0
LOG_TAIL: Final = 1500


class StartError(Exception):
    """A part of the cluster does not start; the message says which, and shows the end of its log."""


@dataclass
class _Child:
    command: tuple[str, ...]
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    starts: int = 1


class ProgramGroup:
    """Starts programs, restarts those that die, and knows their pids. All die with the process that holds this object."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._children: dict[str, _Child] = {}

    def start(self, name: str, *command: object, environment: Mapping[str, str] | None = None) -> None:
        words = tuple(str(word) for word in command)
        settings = dict(environment or {})
        self._children[name] = _Child(words, settings, self._spawn(name, words, settings))

    def pids(self) -> dict[str, int]:
        return {name: child.process.pid for name, child in self._children.items()}

    def starts(self) -> dict[str, int]:
        return {name: child.starts for name, child in self._children.items()}

    def revive(self) -> None:
        """Restarts what has died, each at most once a second, unless it is held down."""
        for name, child in self._children.items():
            if child.process.poll() is None or time.monotonic() - child.started < RESTART_AFTER_S:
                continue
            if self._layout.held_down(name).exists():
                continue
            log.warning("%s ended with %d; starting it again", name, child.process.returncode)
            child.process = self._spawn(name, child.command, child.environment)
            child.started = time.monotonic()
            child.starts += 1

    def wait_for(self, what: str, ready: Callable[[], bool], seconds: float = 60) -> None:
        """Raises StartError at once if a program has ended meanwhile, otherwise after `seconds`."""
        end = time.monotonic() + seconds
        while not ready():
            for name, child in self._children.items():
                if child.process.poll() is not None:
                    raise StartError(f"{name} ended with {child.process.returncode} at its start:\n{self._tail(name)}")
            if time.monotonic() > end:
                raise StartError(f"{what}: not ready after {seconds:.0f} s; the logs are in {self._layout.log(what).parent}")
            time.sleep(POLL_S)

    def _spawn(self, name: str, command: tuple[str, ...], settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        file = self._layout.log(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        inherited = environment.base()
        mark = {marks.STACK: str(self._layout.path), marks.PART: name}
        variables = {**inherited, "PATH": f"{inherited['PATH']}{os.pathsep}{SBIN}", **mark, **settings}
        # If the supervisor is killed, its programs must not survive as orphans that hold its ports.
        tied = ["setpriv", "--pdeathsig", "KILL", "--", *command]
        with file.open("ab") as target:
            return subprocess.Popen(
                tied,
                cwd=self._layout.path,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=target,
                start_new_session=True,
            )

    def _tail(self, name: str) -> str:
        return self._layout.log(name).read_text(errors="replace")[-LOG_TAIL:]


def run(*command: object, text: str | None = None, seconds: float = 120) -> str:
    """Output of a command that must succeed. text: its input. Raises StartError."""
    words = [str(word) for word in command]
    variables = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{SBIN}"}
    try:
        done = subprocess.run(words, text=True, capture_output=True, input=text, env=variables, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise StartError(f"'{' '.join(words)}' did not end in {seconds:.0f} s") from None
    if done.returncode != 0:
        raise StartError(f"'{' '.join(words)}' failed with exit code {done.returncode}:\n{done.stderr[-LOG_TAIL:]}")
    return done.stdout


def succeeds(*command: object) -> bool:
    try:
        run(*command)
    except StartError:
        return False
    return True
