"""Breaks a cluster on purpose: its nodes, its parts, its containers' processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import yaml

from local.cluster import nodes
from local.cluster.build import Programs
from local.cluster.cluster import Cluster, ClusterError
from local.cluster.layout import Layout
from local.cluster.processes import StartError, run

API_SERVER: Final = "kube-apiserver"
PATIENCE_S: Final = 600.0
POLL_S: Final = 0.1


class Faults:
    """Disturbs `cluster`, which must be up. `undo` reverts everything that this object has done and not yet reverted.

    Every method raises ClusterError for a part or node that the cluster does not have.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._layout = Layout.at(cluster.state)
        self._open: dict[tuple[str, str], Callable[[], None]] = {}

    def preempt(self, node: str, *, grace_s: int = nodes.GRACE_S) -> None:
        """Announces the end of the node's machine, as Spot does: its kubelet shuts down, users' pods have `grace_s` seconds.

        If the grace differs from the node's own, its kubelet is restarted first, which its pods do not notice.
        """
        self._must_be_real(node)
        if grace_s != nodes.GRACE_S:
            self._restart_kubelet(node, nodes.grace(grace_s))
        self._open["preempted", node] = lambda: self.restore(node)
        self._signal(f"{node}-logind", signal.SIGUSR1)

    def restore(self, node: str) -> None:
        """Cancels the announcement; returns when the node is ready, with its own grace."""
        self._must_be_real(node)
        self._signal(f"{node}-logind", signal.SIGUSR2)
        settings = yaml.safe_load(self._layout.kubelet(node).read_text())
        if nodes.grace().items() <= settings.items():
            self._await_ready(node)
        else:
            self._restart_kubelet(node, nodes.grace())
        self._open.pop(("preempted", node), None)

    def delete_node(self, node: str) -> None:
        """Deletes the node's object while its machine keeps working: a while later its pods are deleted by force, and outlive
        their objects for a moment, beside the pods that replace them."""
        self._must_be_real(node)
        self._open["deleted", node] = lambda: self.rejoin(node)
        self._cluster.kubectl("delete", "node", node, "--wait=false")

    def rejoin(self, node: str) -> None:
        """Makes a deleted node part of the cluster again, by a restart: a kubelet registers only when it starts."""
        self._must_be_real(node)
        self._restart_kubelet(node, {})
        self._open.pop(("deleted", node), None)

    def kill(self, part: str) -> None:
        """SIGKILL; the supervisor starts the part again after a second. Returns when it has, and the API server answers."""
        starts = self._starts(part)
        self._signal(part, signal.SIGKILL)
        _await(f"another start of {part}", lambda: self._starts(part) > starts)
        self._await_api()

    def stop(self, part: str) -> None:
        """SIGKILL, and the supervisor leaves the part down: connections are refused."""
        file = self._layout.held_down(part)
        pid = self._pid(part)
        file.parent.mkdir(exist_ok=True)
        file.touch()
        self._open["stopped", part] = lambda: self.start(part)
        os.kill(pid, signal.SIGKILL)
        _await(f"the end of {part}", lambda: not _alive(pid))

    def start(self, part: str) -> None:
        """Ends `stop`; returns when the supervisor has started the part, and the API server answers."""
        starts = self._starts(part)
        self._layout.held_down(part).unlink(missing_ok=True)
        _await(f"another start of {part}", lambda: self._starts(part) > starts)
        self._open.pop(("stopped", part), None)
        self._await_api()

    def freeze(self, part: str) -> None:
        """SIGSTOP: connections are accepted, but nothing ever arrives on them. Returns when every thread has stopped; on a
        busy machine that takes a while, and until then the others answer."""
        pid = self._pid(part)
        self._open["frozen", part] = lambda: self.thaw(part)
        os.kill(pid, signal.SIGSTOP)
        _await(f"a frozen {part}", lambda: _frozen(pid))

    def thaw(self, part: str) -> None:
        """Ends `freeze`; returns when the API server answers."""
        self._signal(part, signal.SIGCONT)
        self._open.pop(("frozen", part), None)
        self._await_api()

    def container_pid(self, namespace: str, pod: str, container: str) -> int:
        """The process id, on this machine, of a running container's first process, sidecars included. Raises ClusterError."""
        found = json.loads(self._cluster.kubectl("--namespace", namespace, "get", "pod", pod, "-o", "json"))
        states = [*found["status"].get("initContainerStatuses", []), *found["status"].get("containerStatuses", [])]
        for status in states:
            if status["name"] == container and "running" in status["state"]:
                return self._task_pid(found["spec"]["nodeName"], status["containerID"].removeprefix("containerd://"))
        raise ClusterError(f"pod {pod} has no running container {container!r}")

    def kill_container(self, namespace: str, pod: str, container: str) -> None:
        """SIGKILL to a container's first process, which ends the whole container."""
        os.kill(self.container_pid(namespace, pod, container), signal.SIGKILL)

    def undo(self) -> None:
        """Reverts the last fault first; returns when every real node is ready."""
        while self._open:
            _, take_back = self._open.popitem()
            take_back()
        for node in self._cluster.real_nodes():
            self._await_ready(node)

    def _restart_kubelet(self, node: str, settings: dict[str, Any]) -> None:
        config = self._layout.kubelet(node)
        config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), **settings}))
        # The node's status, as the killed kubelet reported it, stays for a while.
        said = self._readiness(node).get("lastHeartbeatTime")
        self.kill(node)
        self._await_ready(node, unless_said=said)
        # A kubelet is ready before it has taken over its pods. If it gets the signal to shut down in between, it refuses them.
        _await(f"{node}, with its pods", lambda: self._has_its_pods(node))

    def _await_ready(self, node: str, unless_said: str | None = None) -> None:
        def ready() -> bool:
            condition = self._readiness(node)
            return condition.get("status") == "True" and condition["lastHeartbeatTime"] != unless_said

        _await(f"{node}, ready", ready)

    def _await_api(self) -> None:
        """Returns at once if this object is what keeps the API server down."""
        if self._open.keys().isdisjoint({("stopped", API_SERVER), ("frozen", API_SERVER)}):
            _await("the API server", lambda: self._cluster.ready())

    def _readiness(self, node: str) -> dict[str, str]:
        """The node's condition Ready; empty if there is no such node."""
        text = self._cluster.kubectl("get", "node", node, "--ignore-not-found", "-o", "json")
        conditions = json.loads(text)["status"].get("conditions", []) if text else []
        return next((condition for condition in conditions if condition["type"] == "Ready"), {})

    def _has_its_pods(self, node: str) -> bool:
        bound = self._pods("get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={node}", "-o", "json")
        try:
            return bound <= self._pods("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods")
        except StartError:
            # The kubelet's own server starts last.
            return False

    def _pods(self, *arguments: str) -> set[str]:
        """The uids of the objects in a list from kubectl."""
        return {pod["metadata"]["uid"] for pod in json.loads(self._cluster.kubectl(*arguments))["items"] or ()}

    def _task_pid(self, node: str, container: str) -> int:
        tasks = run(Programs()["ctr"], "-a", self._layout.containerd(node), "-n", "k8s.io", "tasks", "ls")
        pids = [line.split()[1] for line in tasks.splitlines() if line.startswith(container)]
        if not pids:
            raise ClusterError(f"{node} has no process of container {container}")
        return int(pids[0])

    def _must_be_real(self, node: str) -> None:
        real = self._cluster.real_nodes()
        if node not in real:
            raise ClusterError(f"{node!r} is not a real node of this cluster; there are {', '.join(real) or 'none'}")

    def _pid(self, part: str) -> int:
        pids = self._cluster.document()["pids"]
        if part not in pids:
            raise ClusterError(f"{part!r} is not a part of this cluster; there are {', '.join(pids)}")
        return int(pids[part])

    def _starts(self, part: str) -> int:
        self._pid(part)
        return int(self._cluster.document()["starts"][part])

    def _signal(self, part: str, number: signal.Signals) -> None:
        os.kill(self._pid(part), number)


def _await(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


def _alive(pid: int) -> bool:
    """Counts a process whose first thread alone is dead as alive: it keeps its sockets until its last thread is gone."""
    states = _states(pid)
    return len(states) > 1 or any(state != "Z" for state in states)


def _frozen(pid: int) -> bool:
    """Whether all threads of a process have stopped. Raises ClusterError if it has ended."""
    states = _states(pid)
    if not states:
        raise ClusterError(f"process {pid} has ended")
    return all(state == "T" for state in states)


def _states(pid: int) -> list[str]:
    """The states of the threads of a process: letters, see proc(5). Empty if it has ended."""
    found = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # It has ended since; opening and reading fail in different ways.
                found.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found
