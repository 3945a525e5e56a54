"""One container from start to end: its runs, probes, restarts and end, as a kubelet manages them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local.runtime import probe
from local.runtime.expansion import expand
from local.runtime.model import ContainerSpec, Probe
from local.runtime.objects import container_status, terminated
from local.runtime.process import CONTAINER_MARK, Process
from local.runtime.shim import CANNOT_START
from nightshift.jobset.observation import moment

log = logging.getLogger(__name__)

MINIMUM_GRACE_S: Final = 2.0
"""A kubelet never gives a container less between SIGTERM and SIGKILL."""

MAX_RESTART_BACKOFF_S: Final = 300.0
STEADY_S: Final = 600.0
"""A sidecar that has run this long restarts without a delay."""


MESSAGE_BYTES: Final = 2048
MESSAGE_LINES: Final = 80
"""What a kubelet keeps of the log of a container that has failed (terminationMessagePolicy FallbackToLogsOnError)."""


@dataclass(frozen=True)
class Launch:
    """All that is needed to start a container. command is empty if it cannot start; then ``problem`` says why.

    log: the file for the output of a life; they are counted from 0. static: the variables that commands of its probes may name.
    ports: containerPort name -> port that the runtime chose. grace_s: when a probe ends the container.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    log: Callable[[int], Path]
    ports: Mapping[str, int]
    grace_s: float
    restart_backoff_s: float
    static: Mapping[str, str]
    problem: str = ""


class Container:
    """Calls ``changed`` after each change of ``status()`` or ``pid``."""

    def __init__(self, spec: ContainerSpec, launch: Launch, changed: Callable[[], None]) -> None:
        self.spec = spec
        self.pid = 0
        self.up = asyncio.Event()
        """Set, and never cleared, once it has started for the first time (including its startupProbe)."""
        self._launch = launch
        self._changed = changed
        self._started = False
        self._ready = False
        self._restarts = 0
        self._id = ""
        self._state: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
        self._last_state: dict[str, Any] = {}
        self._stop = asyncio.Event()
        self._kill_at = 0.0

    def status(self) -> dict[str, Any]:
        """Its entry in the pod's containerStatuses."""
        return container_status(
            self.spec.name,
            self.spec.image,
            state=self._state,
            last_state=self._last_state,
            started=self._started,
            ready=self._ready,
            restarts=self._restarts,
            container_id=self._id,
        )

    @property
    def exit_code(self) -> int | None:
        """Exit code of its last run; None before and during a run."""
        ended = self._state.get("terminated")
        return ended["exitCode"] if ended else None

    def stop(self, grace_s: float) -> None:
        """SIGTERM now, SIGKILL after ``grace_s``; a container that has not started will not. Only the first call counts."""
        if not self._stop.is_set():
            self._kill_at = time.monotonic() + max(grace_s, MINIMUM_GRACE_S)
            self._stop.set()

    async def run(self) -> None:
        """One run, to its end."""
        if self._stop.is_set():
            return
        launch = self._launch
        if launch.problem:
            self._refuse()
            return
        output = launch.log(self._restarts)
        process = await Process.start(launch.command, launch.env, launch.folder, output)
        self._id = _id(output)
        began = time.time()
        self.pid, self._last_state = process.pid, self._state if self.exit_code is not None else {}
        self._state = {"running": {"startedAt": moment(began)}}
        self._changed()
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._stop_on_demand(process)), group.create_task(self._probe(process))]
            exit_code = await process.wait()
            for helper in helpers:
                helper.cancel()
        message = _last_lines(output) if exit_code and self.spec.last_lines else ""
        self._state = terminated(exit_code, message=message, at=(began, time.time()), container_id=self._id)
        self.pid, self._started, self._ready = 0, False, False
        self._changed()

    async def keep(self) -> None:
        """Runs a sidecar again and again until `stop`: the first restart is immediate, then the delay doubles."""
        delay = 0.0
        while not self._stop.is_set():
            begun = time.monotonic()
            await self.run()
            if time.monotonic() - begun > STEADY_S:
                delay = 0.0
            if await self._stopped_within(delay):
                return
            delay = min(max(delay * 2, self._launch.restart_backoff_s), MAX_RESTART_BACKOFF_S)
            self._restarts += 1

    def _refuse(self) -> None:
        log.warning("container %s cannot start: %s", self.spec.name, self._launch.problem)
        output = self._launch.log(self._restarts)
        output.write_text(f"{self._launch.problem}\n", encoding="utf-8")
        now, self._id = time.time(), _id(output)
        self._state = terminated(
            CANNOT_START, reason="StartError", message=self._launch.problem, at=(now, now), container_id=self._id
        )
        self._changed()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True

    async def _stop_on_demand(self, process: Process) -> None:
        await self._stop.wait()
        process.terminate()
        await asyncio.sleep(self._kill_at - time.monotonic())
        process.kill()

    async def _probe(self, process: Process) -> None:
        """Follows the probes; if a startup or liveness probe fails for good, ends the process."""
        spec = self.spec
        if spec.startup is not None and not await self._passes(spec.startup):
            await self._end(process)
            return
        self._started, self._ready = True, spec.readiness is None
        self.up.set()
        self._changed()
        async with asyncio.TaskGroup() as group:
            if spec.readiness is not None:
                group.create_task(self._follow_readiness(spec.readiness))
            if spec.liveness is not None:
                await self._fails(spec.liveness)
                await self._end(process)

    async def _end(self, process: Process) -> None:
        process.terminate()
        await asyncio.sleep(max(self._launch.grace_s, MINIMUM_GRACE_S))
        process.kill()

    async def _passes(self, startup: Probe) -> bool:
        """Whether a startup probe succeeds before it has failed as often as it may."""
        await asyncio.sleep(startup.initial_delay_s)
        for attempt in range(startup.failure_threshold):
            if attempt:
                await asyncio.sleep(startup.period_s)
            if await self._try(startup):
                return True
        return False

    async def _fails(self, liveness: Probe) -> None:
        """Returns when a liveness probe has failed as often in a row as it may."""
        await asyncio.sleep(liveness.initial_delay_s)
        failures = 0
        while failures < liveness.failure_threshold:
            failures = 0 if await self._try(liveness) else failures + 1
            await asyncio.sleep(liveness.period_s)

    async def _follow_readiness(self, readiness: Probe) -> None:
        await asyncio.sleep(readiness.initial_delay_s)
        in_a_row = 0
        while True:
            success = await self._try(readiness)
            # Counts results that differ from the current state; enough of them change it.
            in_a_row = in_a_row + 1 if success != self._ready else 0
            if in_a_row >= (readiness.success_threshold if success else readiness.failure_threshold):
                self._ready = success
                in_a_row = 0
                self._changed()
            await asyncio.sleep(readiness.period_s)

    async def _try(self, check: Probe) -> bool:
        if check.command:
            return await self._try_command(check)
        port = check.port if isinstance(check.port, int) else self._port(check.port)
        if check.path is None:
            return await probe.tcp_ok(port, check.timeout_s)
        return await probe.http_ok(port, check.path, check.headers, check.timeout_s)

    def _port(self, name: str) -> int:
        return self._launch.ports.get(name) or dict(self.spec.ports)[name]

    async def _try_command(self, check: Probe) -> bool:
        """Whether the command exits with 0 in time. It has the container's environment; its output is discarded."""
        env = {**self._launch.env, CONTAINER_MARK: f"{self.spec.name}/probe"}
        command = [expand(word, self._launch.static) for word in check.command]
        process = await Process.start(command, env, self._launch.folder, Path(os.devnull))
        try:
            async with asyncio.timeout(check.timeout_s):
                return await process.wait() == 0
        except TimeoutError:
            return False
        finally:
            process.kill()
            await process.wait()


def _id(output: Path) -> str:
    """Of the life that writes to that file."""
    return f"local://{output.parent.name}/{output.stem}"


def _last_lines(log: Path) -> str:
    """Of one run, as a kubelet keeps them."""
    with open(log, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MESSAGE_BYTES))
        text = file.read().decode(errors="replace")
    return "".join(text.splitlines(keepends=True)[-MESSAGE_LINES:])
