"""A cluster of simulated nodes: any number of pods that "run" as long as they exist, with logs to follow."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks.report import ROOT
from local.cluster.build import Programs
from local.cluster.cluster import Cluster
from local.cluster.context import HOST
from local.ports import new_port

PODS_PER_NODE: Final = 500
NODE_LABEL: Final = "nightshift.dev/noop"
NAMESPACE: Final = "noop"
START_S: Final = 120.0
AT_ONCE: Final = 10


class NoopCluster:
    """kubectl acts as administrator; `user` makes other users, whose requests are counted."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder

    def apply(self, *documents: dict[str, Any]) -> None:
        """In small parts: kubectl has two minutes for each."""
        for start in range(0, len(documents), AT_ONCE):
            text = yaml.safe_dump_all(documents[start : start + AT_ONCE])
            self.cluster.kubectl("apply", "--server-side", "-f", "-", text=text)

    def running_pods(self) -> int:
        """Counts them by their Jobs: listing thousands of pods would take seconds from what must start them."""
        query = ("get", "jobs", "-n", NAMESPACE, "-o", "jsonpath={.items[*].status.ready}")
        return sum(map(int, self.cluster.kubectl(*query).split()))

    def uids(self) -> dict[str, str]:
        """Name -> uid of the JobSets."""
        form = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{'\\n'}{end}"
        lines = self.cluster.kubectl("get", "jobsets", "-n", NAMESPACE, "-o", form).splitlines()
        return dict(line.split() for line in lines)

    def user(self, name: str) -> Path:
        """A kubeconfig of a service account that may do everything and whose requests are counted separately."""
        account = {"name": name, "namespace": NAMESPACE}
        subject = {"kind": "ServiceAccount", **account}
        rule = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
        self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [subject],
            },
            {
                "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
                "kind": "FlowSchema",
                "metadata": {"name": name},
                "spec": {
                    "matchingPrecedence": 500,
                    "priorityLevelConfiguration": {"name": "workload-high"},
                    "rules": [{"subjects": [{"kind": "ServiceAccount", "serviceAccount": account}], "resourceRules": [rule]}],
                },
            },
        )
        token = self.cluster.kubectl("create", "token", name, "-n", NAMESPACE, "--duration=24h").strip()
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        config["users"] = [{"name": name, "user": {"token": token}}]
        config["contexts"][0]["context"]["user"] = name
        file = self._folder / f"{name}.kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return file

    def requests(self, user: str) -> int:
        """A `user`'s requests that the API server has dispatched; watches count when they begin, logs not at all."""
        return self._sum("apiserver_flowcontrol_dispatched_requests_total", f'flow_schema="{user}"')

    def logs_read(self) -> int:
        """Requests for logs, by any user, that have ended."""
        return self._sum("apiserver_request_total", 'subresource="log"')

    def logs_failed(self) -> int:
        """Those of them that this cluster did not answer: then it was too slow for the measure."""
        return self._sum("apiserver_request_total", 'subresource="log"', 'code="5')

    def _sum(self, metric: str, *labels: str) -> int:
        lines = self.cluster.kubectl("get", "--raw=/metrics").splitlines()
        found = [line for line in lines if line.startswith(metric + "{") and all(label in line for label in labels)]
        return sum(int(float(line.split()[-1])) for line in found)


@contextmanager
def noop_cluster(folder: Path, pods: int) -> Iterator[NoopCluster]:
    """A cluster with room for that number of pods."""
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(folder / "c", nodes=0, kwok=0, kueue=False))
        kubelet, server = new_port(), new_port()
        stack.enter_context(
            _running("logs", folder, kubelet, [sys.executable, "-m", "benchmarks.noop_logs", *_serving(cluster, kubelet)])
        )
        config = folder / "kwok.yaml"
        config.write_text(yaml.safe_dump_all(_stages()))
        kwok = [Programs()["kwok"], "--kubeconfig", cluster.kubeconfig, "--config", config, "--manage-all-nodes"]
        # The address where the API server asks for logs.
        kwok += [f"--node-ip={HOST}", f"--node-port={kubelet}", f"--server-address={HOST}:{server}", "--cidr=10.0.0.0/8"]
        stack.enter_context(_running("kwok", folder, server, kwok))
        cluster.kubectl("create", "namespace", NAMESPACE)
        made = NoopCluster(cluster, folder)
        names = [f"noop-{number}" for number in range(-(-pods // PODS_PER_NODE))]
        made.apply(*(_node(name) for name in names))
        cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *(f"node/{name}" for name in names))
        yield made


def _serving(cluster: Cluster, port: int) -> list[str]:
    pki = cluster.state / "pki"
    # The API server's own certificate covers this address too.
    return ["--port", str(port), "--certificate", str(pki / "apiserver.crt"), "--key", str(pki / "apiserver.key")]


@contextmanager
def _running(name: str, folder: Path, port: int, command: list[Any]) -> Iterator[None]:
    """Runs the command; enters the block once it listens. Raises RuntimeError if it does not."""
    log = folder / f"{name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT, stdout=sink, stderr=sink)
    try:
        end = time.monotonic() + START_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _node(name: str) -> dict[str, Any]:
    room = {"cpu": "10000", "memory": "100Ti", "pods": str(PODS_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {NODE_LABEL: ""}},
        "status": {"allocatable": room, "capacity": room},
    }


def _stages() -> list[dict[str, Any]]:
    """kwok's, without the one that ends Jobs' pods at once, and with container ids, by which logs are followed."""
    stages = [each for each in yaml.safe_load_all(Programs().manifest("kwok-stages.yaml").read_text()) if each]
    kept = [stage for stage in stages if stage["metadata"]["name"] != "pod-complete"]
    for stage in kept:
        if stage["metadata"]["name"] == "pod-ready":
            text = stage["spec"]["next"]["statusTemplate"]
            container = "- image: {{ .image | Quote }}\n"
            assert text.count(container) == 2, "kwok's stage for pods is not the one that this was written for"
            identity = '  containerID: {{ printf "noop://%s/%s" $.metadata.uid .name | Quote }}\n'
            stage["spec"]["next"]["statusTemplate"] = text.replace(container, container + identity)
    return kept
