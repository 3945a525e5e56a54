"""The demo's subscribers: processes of `nightshift stream`, one of which is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from local.environments import ROOT

END_S: Final = 20.0


class Replicas:
    """N processes of one stream, which end with the context. logs: a folder."""

    def __init__(self, file: Path, environment: Mapping[str, str], logs: Path, count: int) -> None:
        self._file = file
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT / "plugins")}
        self._logs = logs
        self._count = count
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.keep()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @property
    def alive(self) -> int:
        return sum(process.poll() is None for process in self._processes)

    def keep(self) -> None:
        """Replaces those that have ended, as a Deployment does."""
        self._processes = [process for process in self._processes if process.poll() is None]
        while len(self._processes) < self._count:
            self._started += 1
            with (self._logs / f"subscriber-{self._started}.log").open("wb") as log:
                command = [sys.executable, "-m", "nightshift.cli", "stream", str(self._file)]
                self._processes.append(subprocess.Popen(command, env=self._environment, stdout=log, stderr=log))

    def kill_one(self) -> None:
        """As the kernel does when memory is short: nothing is saved, nothing is given back."""
        self._processes[0].send_signal(signal.SIGKILL)
        self._processes[0].wait()

    def drain(self) -> list[int]:
        """SIGTERM to all; returns their exit codes."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(END_S) for process in self._processes]
