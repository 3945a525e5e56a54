"""Workers of several hosts, as they are rendered, on real nodes: where they are placed, what ends them, what restarts them.

The programs in the pods are stand-ins, put there by the deployment's override file; everything around them is as rendered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cluster.cluster import Cluster
from nightshift import exits
from nightshift.jobset.labels import NODE_POOL_LABEL
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec
from tests.cluster.kube import IMAGE, Namespace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# Finds its head by name, as vLLM and Ray do, and says so.
SERVER = """
import os, signal, socket, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    try:
        print("head", os.environ["HEAD"], socket.gethostbyname(os.environ["HEAD"]), flush=True)
        break
    except OSError:
        time.sleep(0.2)
time.sleep(3600)
"""
# Host 0 works for a while; every host ends as it is told when a file of that name is there.
DRIVER = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({exits.RESUME}))
print("host", os.environ["JOB_COMPLETION_INDEX"], "of slice", os.environ["NIGHTSHIFT_SHARD"], flush=True)
for _ in range(int(sys.argv[1]) * 10 if os.environ["JOB_COMPLETION_INDEX"] == "0" else 36000):
    if pathlib.Path("/tmp/code").exists():
        sys.exit(int(pathlib.Path("/tmp/code").read_text()))
    time.sleep(0.1)
"""


@pytest.fixture
def pools(own_cluster: Cluster) -> None:
    """Each real node is a node pool of its own, from now on: another test may need the label when this one has ended."""
    for node in own_cluster.kubectl("get", "nodes", "-o", "name").split():
        if "/node-" in node:
            own_cluster.kubectl("label", "--overwrite", node, f"{NODE_POOL_LABEL}=pool-of-{node.removeprefix('node/')}")


@pytest.fixture
def night(namespace: Namespace, pools: None, tmp_path: Path) -> Night:
    namespace.cluster.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    namespace.kubectl("create", "serviceaccount", "nightshift-worker")
    return Night(namespace, tmp_path)


class Night:
    """A JobSet of slices of two hosts."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace = namespace
        self._patch = folder / "patch.yaml"

    def submit(self, *, slices: int, seconds: int) -> None:
        """seconds: how long host 0 of each slice works."""
        program = {"image": IMAGE, "imagePullPolicy": "IfNotPresent", "resources": None}
        server = {"name": "server", **program, "command": ["python3", "-uc", SERVER], "args": None}
        driver = {"name": "driver", **program, "command": ["python3", "-uc", DRIVER, str(seconds)]}
        anywhere = {"nodeSelector": None, "tolerations": None}
        self._patch.write_text(yaml.safe_dump({"spec": {**anywhere, "initContainers": [server], "containers": [driver]}}))
        settings = Settings("runs", "acme", namespace=self.namespace.name, pod_patch=str(self._patch))
        spec = a_spec(compute={"profile": "gpu-h100-spot", "hosts": 2})
        self.namespace.create(render(spec, RUN, a_plan(8, workers=1), settings, name="night", workers=slices))

    def hosts(self, attempt: int = 0) -> list[dict[str, Any]]:
        """Running pods of an attempt, in the order of slice and host."""
        selector = f"jobset.sigs.k8s.io/restart-attempt={attempt}"
        running = [pod for pod in self.namespace.get("pods", selector) if pod["status"]["phase"] == "Running"]
        return sorted(running, key=lambda pod: pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"] + host_of(pod))

    def wait_for_hosts(self, count: int, attempt: int = 0) -> list[dict[str, Any]]:
        def there() -> list[dict[str, Any]] | None:
            found = self.hosts(attempt)
            return found if len(found) == count else None

        # A slice is not put beside pods of any other JobSet, and other tests have some.
        what = f"{count} hosts of attempt {attempt}"
        found: list[dict[str, Any]] = self.namespace.wait_until(what, there, patience_s=420)
        return found

    def end(self, pod: dict[str, Any], code: int) -> None:
        """Makes the driver's program end with this exit code."""
        # Moved there: the program may look between the making of a file and the writing of it.
        write = f"echo {code} > /tmp/told && mv /tmp/told /tmp/code"
        self.namespace.kubectl("exec", pod["metadata"]["name"], "-c", "driver", "--", "sh", "-c", write)

    def said_by_server(self, pod: str) -> list[str]:
        said: str = self.namespace.wait_until("its words", lambda: self.namespace.kubectl("logs", pod, "-c", "server"))
        return said.split()

    def restarts(self) -> tuple[int, int]:
        """All, and those that count."""
        status = self.namespace.jobset("night").get("status", {})
        return status.get("restarts", 0), status.get("restartsCountTowardsMax", 0)

    def ended(self) -> str:
        ended: str = self.namespace.wait_until("the end of the JobSet", lambda: self.namespace.ended("night"))
        return ended


def host_of(pod: dict[str, Any]) -> str:
    index: str = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
    return index


def test_a_slice_is_in_one_pool_alone_and_done_when_its_host_0_is(night: Night) -> None:
    night.submit(slices=2, seconds=3600)
    hosts = night.wait_for_hosts(4)
    nodes = [pod["spec"]["nodeName"] for pod in hosts]

    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    for pod in hosts:
        name, slice_ = pod["metadata"]["name"], pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
        assert night.namespace.kubectl("logs", name, "-c", "driver").split() == ["host", host_of(pod), "of", "slice", slice_]
        address = hosts[2 * int(slice_)]["status"]["podIP"]
        assert night.said_by_server(name) == ["head", f"night-worker-{slice_}-0.night", address]
    for host in hosts[::2]:
        night.end(host, exits.DONE)
    assert night.ended() == "Completed"
    assert {job["status"]["completedIndexes"] for job in night.namespace.get("jobs")} == {"0"}


@pytest.mark.gate
def test_a_host_that_is_taken_away_restarts_its_slice_and_does_not_count(night: Night) -> None:
    night.submit(slices=1, seconds=3600)
    head, other = night.wait_for_hosts(2)

    name = other["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": night.namespace.name}}
    path = f"/api/v1/namespaces/{night.namespace.name}/pods/{name}/eviction"
    night.namespace.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(eviction))

    new = night.wait_for_hosts(2, attempt=1)
    assert not {head["metadata"]["uid"], other["metadata"]["uid"]} & {pod["metadata"]["uid"] for pod in new}
    assert night.restarts() == (1, 0)


def test_a_host_that_fails_restarts_its_slice_and_counts(night: Night) -> None:
    night.submit(slices=1, seconds=3600)
    night.end(night.wait_for_hosts(2)[1], exits.RESUME)

    night.wait_for_hosts(2, attempt=1)
    assert night.restarts() == (1, 1)


def test_a_driver_whom_trying_again_cannot_help_ends_all(night: Night) -> None:
    night.submit(slices=1, seconds=3600)
    night.end(night.wait_for_hosts(2)[0], exits.CONFIG)

    assert night.ended() == "Failed"
    assert night.restarts() == (0, 0)
    [failed] = [each for each in night.namespace.jobset("night")["status"]["conditions"] if each["type"] == "Failed"]
    assert failed["reason"] == "FailJobSetFailurePolicyAction"
