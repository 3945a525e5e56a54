"""What an earlier run of the server has left: processes, and the file that says one is running."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 60.0


def clear(cluster: Path) -> int:
    """Kills processes that work in the folder and removes ``postmaster.pid``; returns how many there were.

    Call it with the lock on the folder. PostgreSQL would refuse to start while the file names a process that runs, even a
    stranger that got the number meanwhile, or while its shared memory is in use. Raises TimeoutError after `PATIENCE_S`.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + PATIENCE_S
    while found := _working_in(cluster):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {found} of an earlier life do not die")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(0.02)
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    return len(killed)


def _working_in(cluster: Path) -> list[int]:
    """PostgreSQL's processes change into its data folder, and stay there."""
    target = cluster.resolve()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if (entry / "cwd").readlink() == target and (entry / "exe").readlink().name == "postgres":
                    found.append(int(entry.name))
    return found
