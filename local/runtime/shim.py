"""Holds the processes of one container together: ``python shim.py LOG FOLDER COMMAND...``. Imports the standard library only.

Starts the command in its own session, with its output appended to LOG, and outlives it until every descendant is dead: as
the child subreaper it inherits whatever the command leaves behind, even what has left its session. So a server that is
killed with SIGKILL leaves no engine process.

The agent talks to it over two pipes. To stdin: ``T`` sends SIGTERM to the command (its main process only, as a kubelet
does), ``K`` kills all. **The end of stdin also kills all**: the agent is dead. On stdout: ``pid N``, then at the end ``exit
CODE`` (128 + the number of a signal). If the shim itself is killed, the command dies with it (PR_SET_PDEATHSIG), and the
agent sweeps its children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 128
"""Exit code of a command that could not be executed; containerd reports the same."""

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents() -> dict[int, int]:
    """Process id -> its parent's, for every current process."""
    result = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 -- runs for every end of a container
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # The name may contain spaces and parentheses: the rest follows the last one.
                result[int(entry)] = int(Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return result


def descendants(root: int) -> list[int]:
    """Process ids below ``root``, nearest first."""
    above = parents()
    found: list[int] = []
    level = [root]
    while level:
        level = [pid for pid, parent in above.items() if parent in level]
        found += level
    return found


def kill_descendants() -> None:
    """Kills and reaps all descendants of this process; returns when none is left."""
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def start(log: str, folder: str, command: list[str]) -> int:
    shim = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != shim:
            os._exit(CANNOT_START)
        # Python ignores some signals, and an ignored signal stays ignored across exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]!r}: {error}\n".encode())
    finally:
        os._exit(CANNOT_START)


def watch(child: int, wakeup: int) -> int:
    """Obeys the agent until the command has ended; returns its wait status. Meanwhile reaps what the command leaves behind."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            orders = os.read(descriptor, 64)
            if descriptor != 0:
                continue
            if not orders or b"K" in orders:
                os.kill(child, signal.SIGKILL)
                if not orders:
                    poll.unregister(0)
            elif b"T" in orders:
                os.kill(child, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return ended[1]


def main() -> None:
    log, folder, *command = sys.argv[1:]
    become_subreaper()
    wakeup, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    # Handlers that do nothing: the shim must outlive its command, and the wake-up needs a Python handler.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    child = start(log, folder, command)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"pid {child}\n".encode())
    status = watch(child, wakeup)
    kill_descendants()
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    with contextlib.suppress(BrokenPipeError):
        os.write(1, f"exit {code}\n".encode())


if __name__ == "__main__":
    main()
