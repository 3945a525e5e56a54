"""A real vLLM on the CPU, as a nightly job of the same model has it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from local import vllm
from local.environments import ROOT
from local.ports import new_port
from local.runtime.expansion import expand
from nightshift.jobset.manifest.server import server_args
from nightshift.spec import JobSpec

START_S: Final = 900.0


class EngineFailed(Exception):
    """vLLM does not start; the message has the end of its log."""


class Engine:
    """A server that ends with the context. job: whose arguments it gets. log: where its output goes."""

    def __init__(self, job: JobSpec, log: Path) -> None:
        self._log = log
        self._arguments = server_args(job)
        self.url = ""

    def __enter__(self) -> Self:
        port = new_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = [expand(argument, {"ENGINE_PORT": str(port)}) for argument in self._arguments]
        command = vllm.command(*arguments)
        # It leaves sockets behind, since it is killed.
        self._temporary = tempfile.TemporaryDirectory(prefix="nightshift-")
        with self._log.open("wb") as log:
            environment = {**os.environ, **vllm.environment(), "TMPDIR": self._temporary.name}
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._temporary.cleanup()

    def await_health(self) -> None:
        """Raises EngineFailed."""
        deadline = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.3)
        raise EngineFailed(f"vLLM does not start:\n{self._log.read_text(errors='replace')[-2000:]}")
