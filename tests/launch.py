"""What a child process is given before its program begins, instead of subprocess's ``preexec_fn``.

That one forks, and a fork of a process in which gRPC's threads are at work may abort in the child (SIGABRT, one of ten): gRPC's
own handlers run there. Without it, subprocess uses vfork. So a small Python prepares itself and then becomes the program.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def launched(
    command: list[str], *, descriptors: tuple[int, int] | None = None, ends_with_us: bool = False, interruptible: bool = False
) -> list[str]:
    """The command that runs `command` in its own process id, so prepared.

    descriptors: its soft and its hard limit of file descriptors. ends_with_us: it gets SIGTERM when the thread that started it
    ends, however that is. interruptible: SIGINT ends it, even if that was switched off here, as in a shell's background job.
    """
    how = {"descriptors": descriptors, "parent": os.getpid() if ends_with_us else None, "interruptible": interruptible}
    return [sys.executable, "-S", "-E", str(Path(__file__)), json.dumps(how), *command]


def _become(how: str, command: list[str]) -> None:
    import ctypes
    import resource
    import signal

    prepared = json.loads(how)
    if prepared["descriptors"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(prepared["descriptors"]))
    if prepared["interruptible"]:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if prepared["parent"]:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG, prctl(2)
        if os.getppid() != prepared["parent"]:
            sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become(sys.argv[1], sys.argv[2:])
