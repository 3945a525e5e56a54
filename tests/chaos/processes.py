"""The real processes of a soak: drivers, an engine that is restarted as a sidecar is, and the storage emulator.

Each is the leader of a session of its own, by which a guardian ends what the test could not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import aiohttp

from local import vllm as local_vllm
from local.environments import ROOT, python_of
from local.ports import new_port
from local.runtime.expansion import expand
from nightshift.jobset.manifest.server import server_args
from nightshift.spec import JobSpec
from tests.chaos.guardian import members

HOST: Final = "127.0.0.1"
START_S: Final = 300.0


class Guard:
    """Starts processes, each the leader of a session, and ends all of them when its context or this very process ends."""

    def __init__(self) -> None:
        self._sessions: set[int] = set()

    async def __aenter__(self) -> Guard:
        command = [sys.executable, "-m", "tests.chaos.guardian"]
        self._guardian = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, start_new_session=True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        await self._guardian.wait()

    async def start(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
        """The process, its output at the end of `log`."""
        with open(log, "ab") as output:  # noqa: ASYNC230 - a local file, for an instant
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self._sessions.add(process.pid)
        assert self._guardian.stdin is not None
        self._guardian.stdin.write(f"{process.pid}\n".encode())
        return Child(process, log)

    def left(self) -> list[str]:
        """The commands of all that lives of what was started here. What has no command any more is on its way out."""
        return [f"{pid} {command}" for pid, command in members(self._sessions).items() if command]


class Child:
    """One process with its group. began: time.monotonic() of its start, which is also the event loop's clock."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self.log = log
        self.began = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> int:
        """The exit code; minus the signal's number for a process that a signal ended."""
        return await self._process.wait()

    def send(self, number: signal.Signals) -> None:
        """A signal to the process; none to one that has ended."""
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_group(self, number: signal.Signals) -> None:
        """A signal to the process and all its children, also when it has ended itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end(self) -> None:
        """SIGKILL to the whole group, and waits."""
        self.send_group(signal.SIGKILL)
        await self.wait()

    def takes(self, number: signal.Signals) -> bool:
        """Whether it has a handler of its own for a signal: an interpreter that still starts has none."""
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("SigCgt:"):
                    return bool(int(line.split()[1], 16) & (1 << (number - 1)))
        return False

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


class Kept:
    """A process that is started again whenever it ends, on the same port. starts: how often it was started."""

    def __init__(
        self, guard: Guard, command: Sequence[str], environment: Mapping[str, str], log: Path, port: int, health: str
    ) -> None:
        self._guard = guard
        self._command = command
        self._environment = environment
        self._log = log
        self.url = f"http://{HOST}:{port}"
        self._health = f"{self.url}{health}"
        self.starts = 0
        self.child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Kept:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        await asyncio.wait({self._keeper})
        if self.child is not None:
            await self.child.end()

    def send(self, number: signal.Signals) -> None:
        """To the process itself, as kubelet's SIGTERM goes to a container's first process."""
        assert self.child is not None
        self.child.send(number)

    def send_group(self, number: signal.Signals) -> None:
        """To all of it, as the kernel's OOM killer or a freezer does."""
        assert self.child is not None
        self.child.send_group(number)

    async def healthy(self) -> None:
        """Returns when the process answers. Raises AssertionError, with the end of its log, after `START_S`."""
        deadline = time.monotonic() + START_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while time.monotonic() < deadline:
                with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(self._health) as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(0.1)
        raise AssertionError(f"{self._health} was not healthy in {START_S:.0f} s:\n{self._log.read_text()[-3000:]}")

    async def _keep(self) -> None:
        while True:
            self.child = await self._guard.start(self._command, self._environment, self._log)
            self.starts += 1
            await self.child.wait()
            # What is left of a container ends with its first process.
            self.child.send_group(signal.SIGKILL)


def vllm(spec: JobSpec, folder: Path, guard: Guard) -> Kept:
    """The server that the manifest would start for the job."""
    port = new_port()
    arguments = [expand(argument, {"ENGINE_PORT": str(port)}) for argument in server_args(spec)]
    environment = {**os.environ, **local_vllm.environment()}
    command = local_vllm.command(*arguments)
    return Kept(guard, command, environment, folder / "vllm.log", port, "/health")


def storage(folder: Path, guard: Guard) -> Kept:
    """The Cloud Storage emulator; it keeps its data through all its lives."""
    port = new_port()
    options = ("--host", HOST, "--port", str(port), "--data-dir", str(folder / "storage"))
    command = [str(python_of("emulators")), "-m", "local.storage", *options]
    return Kept(guard, command, os.environ, folder / "storage.log", port, "/_health")
