"""Finds and kills processes by marks in their environment: a process passes its mark on to all that it starts.

The mark outlives a change of process group, session and parent. Programs that rewrite their title (Airflow, vLLM) would erase
it from /proc; `TITLES_KEEP_ENVIRONMENT` in their environment prevents that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

STACK = "NIGHTSHIFT_STACK"
LIFE = "NIGHTSHIFT_STACK_LIFE"
PART = "NIGHTSHIFT_STACK_PART"
"""The stack's state folder; one life of its supervisor; the part of the stack that a process belongs to."""

TITLES_KEEP_ENVIRONMENT = {"SPT_NOENV": "1"}
"""Makes the package setproctitle leave the memory alone from which /proc/PID/environ is read."""

SWEEP_S = 10.0


def carries(pid: int, marks: Mapping[str, str]) -> bool:
    """Whether process `pid` runs and has all of the marks. Another user's process has none."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return {f"{name}={value}".encode() for name, value in marks.items()} <= set(environment.split(b"\0"))


def marked(marks: Mapping[str, str]) -> list[int]:
    """Living processes with all of the marks, lowest id first."""
    return sorted(pid for pid in _pids() if carries(pid, marks))


def sweep(marks: Mapping[str, str]) -> int:
    """Kills (SIGKILL) every process with all of the marks except this one and its ancestors; returns how many there were.

    Searches again until it finds none, since a process may fork during a search. Raises TimeoutError after `SWEEP_S`.
    """
    spared = set(ancestors())
    killed: set[int] = set()
    deadline = time.monotonic() + SWEEP_S
    while found := [pid for pid in marked(marks) if pid not in spared]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} of {dict(marks)} do not die")
        for pid in found:
            kill(pid, marks)
        killed.update(found)
        time.sleep(0.01)
    return len(killed)


def kill(pid: int, marks: Mapping[str, str], number: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to `pid` if it carries the marks; never to a stranger that got the same id meanwhile."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            if carries(pid, marks):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def children(parent: int) -> dict[int, str]:
    """Process id -> state letter (``Z`` for one that is dead but not yet waited for) of the children of `parent`."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            state, above = _stat(pid)
            if above == parent:
                found[pid] = state
    return found


def ancestors() -> Iterator[int]:
    """This process, its parent, and so on."""
    pid = os.getpid()
    while pid > 0:
        yield pid
        try:
            pid = _stat(pid)[1]
        except OSError:
            return


def _stat(pid: int) -> tuple[str, int]:
    # The command's name may contain spaces and parentheses: what counts comes after the last one.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
