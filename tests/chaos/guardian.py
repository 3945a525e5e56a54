"""``python -m tests.chaos.guardian``: reads process ids from its standard input and, when that ends, kills their sessions.

The one end of a test that no test can clean up after is its own SIGKILL; its end of the pipe is closed for it even then. A
session is what holds a process together with all that it starts: a title of its own (vLLM's parts) hides even the environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path


def members(sessions: Collection[int]) -> dict[int, str]:
    """Processes of these sessions that live: pid and command."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The name, in parentheses, may hold anything; state, parent, group and session follow it.
                state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(session) in sessions and state not in "ZX":
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command
    return found


def kill_all(sessions: Collection[int]) -> None:
    """SIGKILL until there is none; those that are killed may have started others meanwhile."""
    while left := members(sessions):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    kill_all({int(line) for line in sys.stdin})
