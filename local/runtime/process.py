"""One run of a container's command as processes on this machine, and the sweep that finds processes by their marks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from local.runtime import shim

STATE_MARK = "NIGHTSHIFT_LOCAL_STATE"
POD_MARK = "NIGHTSHIFT_POD"
CONTAINER_MARK = "NIGHTSHIFT_CONTAINER"
"""Variables in the environment of every process of a container: the agent's folder, JOBSET/POD, the container's name."""


class Process:
    """A started command. `start` makes one, `wait` returns its end; by then every process that it left behind is dead."""

    def __init__(self, popen: subprocess.Popen[bytes], reports: asyncio.StreamReader, marks: dict[str, str]) -> None:
        self._popen = popen
        self._reports = reports
        self._marks = marks
        self._exit_code: int | None = None
        self.pid = 0

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Process:
        """env: the whole environment; its marks serve to find leftovers if the shim is killed."""
        arguments = [sys.executable, "-I", "-S", shim.__file__, str(log), str(folder), *command]
        # One short fork per container; an asynchronous one would add a waiting thread to the agent.
        popen = subprocess.Popen(  # noqa: ASYNC220
            arguments, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        reports = asyncio.StreamReader()
        process = cls(popen, reports, {name: env[name] for name in (STATE_MARK, POD_MARK, CONTAINER_MARK)})
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reports), popen.stdout)
            words = (await reports.readline()).split()
        except BaseException:
            process._close()
            raise
        process.pid = int(words[1]) if words else 0
        return process

    async def wait(self) -> int:
        """The exit code, or 128 + the signal's number. May be cancelled and called again."""
        if self._exit_code is None:
            words = (await self._reports.readline()).split()
            if words:
                self._exit_code = int(words[1])
            else:
                # The shim was killed, and its command with it. What the command had started is now the agent's child.
                kill_marked(self._marks)
                self._exit_code = 128 + signal.SIGKILL
        await self._reports.read()
        self._close()
        return self._exit_code

    def terminate(self) -> None:
        """SIGTERM to the main process."""
        self._order(b"T")

    def kill(self) -> None:
        """SIGKILL to all of them."""
        self._order(b"K")

    def _order(self, order: bytes) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            os.write(self._popen.stdin.fileno(), order)

    def _close(self) -> None:
        """Reaps the shim. If it still runs, the end of its stdin makes it kill everything and exit."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()


def marked(marks: Mapping[str, str]) -> list[int]:
    """Processes whose environment has all of the marks. This one is never among them."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def kill_marked(marks: Mapping[str, str]) -> int:
    """Kills every process with all of the marks, reaps those that are children of this one, and returns how many there were."""
    killed: set[int] = set()
    while pids := marked(marks):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.005)
    for pid in killed:
        # Those whose parent is dead are now the agent's children, and nothing else would reap them.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return len(killed)
