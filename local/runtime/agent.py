"""The daemon that runs the pods of one state folder: the local runtime's control plane and node in one, behind Kubernetes' API.

It may be killed at any time. Its pods die with it (`local.runtime.shim`). The next agent kills whatever is left of
them, counts them as lost with their node, and continues every JobSet that has not finished.

What differs from Kubernetes, on purpose (`local/runtime/tests/test_contract.py`, which also tests a real cluster, checks
the rest):

- Pods share this machine's network and files. The pod annotation ``nightshift.dev/port-env: "engine=ENGINE_PORT"`` makes
  the runtime choose a free port for the containerPort named ``engine``: it sets ENGINE_PORT in every container of the pod,
  whatever the manifest says, and probes of that port follow. Probes only ever connect to 127.0.0.1.
- **Mount paths are not real.** ``emptyDir`` volumes and their volumeMounts are accepted, and nothing is mounted: a
  container that writes to its mountPath writes to that path of this machine. Other volumes are refused, since their content
  would be missing.
- TMPDIR is a folder of the pod's, which goes with it; on a cluster, temporary files are in the emptyDir at /tmp.
- An image is a list of folders and an environment in the agent's configuration (`local.runtime.config`). If it is
  missing there, the container ends with exit code 128 (Kubernetes would wait for it forever).
- A process is not PID 1 here, so a program without a SIGTERM handler dies of the signal (143); in a container it would
  ignore it and delay the end of its pod by the whole grace period. Also, its children can kill it, which they cannot there.
- Both output streams of a container are one file, in the order of writing; a cluster reads them side by side.
- A replacement pod always waits for the end of the pod that it replaces (podReplacementPolicy: Failed).
- A JobSet that an agent of another release has begun fails with the reason ManifestRefused, and so does the task that waits
  for it.
- A pod that was lost with its agent stays, as Failed, until its JobSet goes.
- Queues and placement (Kueue labels, nodeSelector, tolerations, resources) have no effect: there is one node, which holds
  as many pods as its configuration says.
- The CPU request that a container reads (a variable with ``resourceFieldRef: requests.cpu``) is its pod's share of
  the node, not what the manifest asks for: the node's cores, divided by the pods of the JobSet that run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any

from local.runtime.api import Api, objects_by_name
from local.runtime.config import AgentConfig
from local.runtime.controller import Controller, Node, OtherRelease
from local.runtime.fields import ManifestError
from local.runtime.folder import REFUSED, STATUS_VERSION, AgentFolder, AgentJobSetFolder
from local.runtime.objects import Objects, refused
from local.runtime.process import STATE_MARK, kill_marked
from local.runtime.server import Server
from local.runtime.shim import become_subreaper
from local.runtime.spec import read_manifest

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0


class Agent:
    """Runs until SIGTERM or SIGINT, then ends its pods like a node that shuts down; a second signal ends them at once."""

    def __init__(self, state: AgentFolder, config: AgentConfig) -> None:
        self._state = state
        self._config = config
        self._wake = asyncio.Event()
        self._node = Node(config, self._wake.set)
        self._controllers: dict[str, Controller] = {}
        self._rejected: dict[str, Objects] = {}
        self._signals = 0
        self._api = Api(self)

    async def run(self) -> None:
        """The caller must hold the state folder's lock."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        # Processes whose shim was killed become the agent's children; it reaps them when it sweeps.
        become_subreaper()
        strays = kill_marked({STATE_MARK: str(self._state.path)})
        if strays:
            log.warning("killed %d processes that an earlier agent left", strays)
        self._state.clean()
        self._adopt()
        self.publish()
        server = Server(self._api, self._config.host, self._config.port)
        server.start()
        self._state.write_kubeconfig(server.url)
        self._state.announce(time.time())
        log.info("ready: %s, %d JobSets", self._state.path, len(self._controllers))
        try:
            await self._loop()
        finally:
            await server.stop()
            kill_marked({STATE_MARK: str(self._state.path)})
            self._state.withdraw()

    def controller(self, name: str) -> Controller | None:
        return self._controllers.get(name)

    def create(self, manifest: Mapping[str, Any]) -> Controller:
        """Raises ManifestError for one that cannot be carried out, and FileExistsError if there is a JobSet of its name."""
        spec = read_manifest(manifest)
        self._state.create(spec.name, manifest)
        found = self._controllers[spec.name] = Controller(self._state.jobset(spec.name), self._node, time.time())
        self._wake.set()
        return found

    def publish(self) -> None:
        """Serves what the controllers wrote last. Pods whose deletion is over are gone; how they ended is seen before that."""
        found: dict[str, Objects] = {name: {} for name in self._api.resources}
        gone: dict[str, Objects] = {}
        for seen in (*(each.seen for each in self._controllers.values()), *self._rejected.values()):
            for resource, objects in objects_by_name(seen):
                found[resource] |= objects
        for name, pod in list(found["pods"].items()):
            if "deletionTimestamp" in pod["metadata"] and pod["status"]["phase"] in ("Succeeded", "Failed"):
                gone[name] = found["pods"].pop(name)
        for resource in ("pods", "events", "jobs", "jobsets"):
            self._api.resources[resource].publish(found[resource], gone if resource == "pods" else None)

    def _signalled(self) -> None:
        self._signals += 1
        self._wake.set()

    async def _loop(self) -> None:
        beat_at = 0.0
        while not (self._node.draining and all(controller.idle for controller in self._controllers.values())):
            self._wake.clear()
            if self._signals and not self._node.draining:
                self._drain()
            if self._signals > 1:
                log.warning("second signal: ending at once")
                return
            if time.monotonic() >= beat_at:
                self._state.beat()
                beat_at = time.monotonic() + HEARTBEAT_S
            self._adopt()
            self._step()
            self.publish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.poll_s):
                    await self._wake.wait()

    def _drain(self) -> None:
        log.info("shutting down")
        self._node.draining = True
        for controller in self._controllers.values():
            controller.shut_down(time.time())

    def _adopt(self) -> None:
        """Takes up new JobSets in the folder, and those that an earlier agent left."""
        for name in self._state.names():
            if name not in self._controllers and name not in self._rejected:
                folder = self._state.jobset(name)
                try:
                    self._controllers[name] = Controller(folder, self._node, time.time())
                except FileNotFoundError:
                    continue  # It is half removed.
                except (ManifestError, OtherRelease) as error:
                    self._reject(folder, error)
        for name in sorted(self._rejected):
            folder = self._state.jobset(name)
            if folder.stop_asked_at():
                folder.remove()
            if not folder.path.exists():
                del self._rejected[name]

    def _reject(self, folder: AgentJobSetFolder, error: Exception) -> None:
        """Makes the JobSet fail with the reason REFUSED, which ends the task that waits for it."""
        log.error("%s: %s", folder.name, error)
        seen = refused(folder.object(), REFUSED, str(error), time.time())
        folder.write_status({"version": STATUS_VERSION, **seen, "state": None})
        self._rejected[folder.name] = seen

    def _step(self) -> None:
        """The first JobSet submitted gets free places first."""
        ordered = sorted(self._controllers.values(), key=lambda controller: (controller.created_at, controller.folder.name))
        for controller in ordered:
            if not controller.reconcile(time.time()):
                self.publish()
                del self._controllers[controller.folder.name]
