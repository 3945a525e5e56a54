"""One pod from start to end: init containers and sidecars in order, then the main containers, then the sidecars' end."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from functools import partial

from local.ports import new_port
from local.runtime.config import AgentConfig, ImageConfig
from local.runtime.container import Container, Launch
from local.runtime.expansion import declared_environment, expand, static_variables
from local.runtime.folder import AgentJobSetFolder
from local.runtime.model import ContainerSpec, JobSetSpec
from local.runtime.process import CONTAINER_MARK, POD_MARK, STATE_MARK
from local.runtime.records import Containers
from local.runtime.spec import CPU_REQUEST
from nightshift.jobset.labels import INDEX_ANNOTATION

_FROM_THE_AGENT = ("HOME", "LANG", "NIGHTSHIFT_STACK")
"""Variables that processes get from the agent: what any program on this machine needs, and the stack's mark."""


class Ports:
    """Free ports for pods of one node; two pods that live at the same time never get the same."""

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        port = new_port(self._taken)
        self._taken.add(port)
        return port

    def give_back(self, port: int) -> None:
        self._taken.discard(port)


class Pod:
    """Calls ``changed`` after each change of what `statuses`, `pids` or `running` return."""

    def __init__(
        self,
        name: str,
        index: int,
        spec: JobSetSpec,
        folder: AgentJobSetFolder,
        config: AgentConfig,
        ports: Ports,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.index = index
        self.running = False
        """Whether main containers have been started."""
        self.ports = {port: ports.take() for port, _ in spec.pod.port_env}
        self._all_ports = ports
        self._spec = spec
        self._folder = folder
        self._config = config
        self._changed = changed
        self._stopping = asyncio.Event()
        self._kill_at = 0.0
        self._init = [Container(container, self._launch(container), changed) for container in spec.pod.init]
        self._main = [Container(container, self._launch(container), changed) for container in spec.pod.main]

    @property
    def succeeded(self) -> bool:
        """After `run` has returned: whether all main containers ended with exit code 0."""
        return all(container.exit_code == 0 for container in self._main)

    def statuses(self) -> Containers:
        return {
            "initContainerStatuses": [container.status() for container in self._init],
            "containerStatuses": [container.status() for container in self._main],
        }

    def pids(self) -> dict[str, int]:
        """Container -> process id of its main process, for running containers."""
        return {container.spec.name: container.pid for container in (*self._init, *self._main) if container.pid}

    def exit_codes(self) -> list[tuple[str, int]]:
        """Exit codes, in the order in which a podFailurePolicy compares them."""
        both = (*self._main, *self._init)
        return [(container.spec.name, container.exit_code) for container in both if container.exit_code is not None]

    def stop(self, grace_s: float) -> None:
        """Ends the pod: main containers first, then sidecars, all within one grace period. Only the first call counts."""
        if self._stopping.is_set():
            return
        self._kill_at = time.monotonic() + grace_s
        self._stopping.set()
        for container in self._main:
            container.stop(grace_s)
        for container in self._init:
            if not container.spec.sidecar:
                container.stop(grace_s)

    async def run(self) -> None:
        """From the first container's start to the last one's end."""
        self._folder.scratch(self.name).mkdir(parents=True, exist_ok=True)
        self._folder.make_temporary(self.name)
        self._folder.log(self.name, "x").parent.mkdir(parents=True, exist_ok=True)
        sidecars: list[tuple[Container, asyncio.Task[None]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                if await self._initialise(group, sidecars) and not self._stopping.is_set():
                    self.running = True
                    self._changed()
                    await asyncio.gather(*(container.run() for container in self._main))
                if not self._stopping.is_set():
                    self._kill_at = time.monotonic() + self._spec.pod.grace_s
                for container, task in reversed(sidecars):
                    container.stop(self._kill_at - time.monotonic())
                    await task
        finally:
            for port in self.ports.values():
                self._all_ports.give_back(port)
            shutil.rmtree(self._folder.scratch(self.name), ignore_errors=True)
            self._folder.remove_temporary(self.name)

    async def _initialise(self, group: asyncio.TaskGroup, sidecars: list[tuple[Container, asyncio.Task[None]]]) -> bool:
        """Starts the init containers one after the other. False when one failed."""
        for container in self._init:
            if self._stopping.is_set():
                return False
            if not container.spec.sidecar:
                await container.run()
                if container.exit_code != 0:
                    return False
                continue
            sidecars.append((container, group.create_task(container.keep())))
            waits = [asyncio.ensure_future(container.up.wait()), asyncio.ensure_future(self._stopping.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return True

    def _launch(self, container: ContainerSpec) -> Launch:
        config, spec = self._config, self._spec
        image = config.images.get(container.image)
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": spec.namespace,
            f"metadata.annotations['{INDEX_ANNOTATION}']": str(self.index),
            "spec.nodeName": config.node_name,
            # No scheduler keeps requests apart: every pod gets an equal share of the node.
            CPU_REQUEST: str(config.share(min(spec.job.completions, spec.job.parallelism))),
        }
        chosen = {variable: str(self.ports[port]) for port, variable in spec.pod.port_env}
        declared = declared_environment(container.env, fields, chosen, self.index)
        head = container.command or (image.entrypoint if image else ())
        command = [expand(word, declared) for word in (*head, *container.args)]
        problem = ""
        if image is None:
            problem = (
                f"image {container.image!r} is not in the configuration of the local runtime's agent: add it to its images"
            )
        elif not command:
            problem = f"the container has no command, and the agent's configuration has no entrypoint for {container.image!r}"
        return Launch(
            command=command,
            env=self._environment(container, image or ImageConfig(), declared),
            folder=self._folder.scratch(self.name),
            log=partial(self._folder.log, self.name, container.name),
            ports=self.ports,
            grace_s=spec.pod.grace_s,
            restart_backoff_s=config.restart_backoff_s,
            static=static_variables(container.env, chosen),
            problem=problem,
        )

    def _environment(self, container: ContainerSpec, image: ImageConfig, declared: dict[str, str]) -> dict[str, str]:
        """Of the agent's environment, processes get only what is named here."""
        path = os.pathsep.join([*image.path, os.environ.get("PATH", os.defpath)])
        inherited = {name: os.environ[name] for name in _FROM_THE_AGENT if name in os.environ}
        marks = {
            STATE_MARK: str(self._folder.state),
            POD_MARK: f"{self._folder.name}/{self.name}",
            CONTAINER_MARK: container.name,
        }
        own = {"PATH": path, "HOSTNAME": self.name, "TMPDIR": str(self._folder.temporary(self.name))}
        return {**own, **inherited, **self._config.env, **image.env, **declared, **marks}
