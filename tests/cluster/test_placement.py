"""Where rendered JobSets are placed, and when: machines of one slice, and a queue whose quota is one run's.

The machines are nodes without a kubelet whose pods run until the test says how they end; what GKE says of such a machine, its
labels, taints and resources, stands on them. Indexes that outlive a suspension are real pods'.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cluster.build import Programs
from local.cluster.cluster import Cluster
from local.cluster.context import HOST
from local.ports import new_port
from nightshift import exits
from nightshift.jobset.labels import INDEX_ANNOTATION, NODE_POOL_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import RUN, a_plan, a_spec
from tests.cluster.kube import IMAGE, Namespace, a_queue

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OWN = "nightshift.dev/test"
"""A node's label: of the namespace whose test it is there for, so that tests side by side do not meet."""

Document = dict[str, Any]


@dataclass(frozen=True)
class Machine:
    """As GKE makes its nodes. taint: its key; the effect is NoSchedule."""

    labels: dict[str, str]
    taint: str
    room: dict[str, str]


H100 = Machine(
    {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    "nvidia.com/gpu",
    {"cpu": "208", "memory": "1872Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "2Ti", "pods": "110"},
)
V6E = Machine(
    {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "4x4"},
    "google.com/tpu",
    {"cpu": "180", "memory": "720Gi", "google.com/tpu": "4", "ephemeral-storage": "2Ti", "pods": "110"},
)
L4 = Machine(
    {"cloud.google.com/gke-accelerator": "nvidia-l4"},
    "nvidia.com/gpu",
    {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1", "ephemeral-storage": "2Ti", "pods": "110"},
)
SLICES = {
    "two hosts of H100": (H100, 2, {"profile": "gpu-h100", "hosts": 2}),
    "a v6e slice of 4x4": (V6E, 4, {"profile": "tpu-v6e", "topology": "4x4"}),
}


class Machines:
    """Nodes for one namespace's JobSets, and these JobSets."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self.namespace = namespace
        self._patch = folder / "patch.yaml"
        self._patch.write_text(yaml.safe_dump({"spec": {"nodeSelector": {OWN: namespace.name}}}))

    def add(self, machine: Machine, pools: dict[str, int]) -> None:
        """So many in each node pool."""
        # A pool's name is the namespace's own too: a slice keeps out of a pool with pods of any namespace.
        own = {f"{self.namespace.name}-{pool}": count for pool, count in pools.items()}
        names = [(pool, f"{pool}-{number}") for pool, count in own.items() for number in range(count)]
        nodes = [self._node(machine, pool, name) for pool, name in names]
        self.namespace.cluster.kubectl("create", "-f", "-", text=yaml.safe_dump_all(nodes))
        wanted = (f"node/{name}" for _, name in names)
        self.namespace.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=600s", *wanted)

    def submit(self, name: str, spec: JobSpec, workers: int) -> None:
        settings = Settings(
            "runs", "acme", namespace=self.namespace.name, pod_patch=str(self._patch), service_account="default"
        )
        plan = a_plan(rows=workers * 4, workers=workers)
        self.namespace.create(render(spec, RUN, plan, settings, name=name))

    def pods(self, name: str) -> list[Document]:
        return [pod for pod in self.namespace.get("pods", f"jobset.sigs.k8s.io/jobset-name={name}") if not _ended(pod)]

    def wait_for_running(self, name: str, count: int) -> list[Document]:
        def running() -> list[Document] | None:
            found = [pod for pod in self.pods(name) if pod["status"]["phase"] == "Running"]
            return found if len(found) == count else None

        found: list[Document] = self.namespace.wait_until(f"{count} running pods of {name}", running)
        return found

    def pools(self, pods: list[Document]) -> dict[str, set[str]]:
        """In which node pools each Job's pods are."""
        nodes = json.loads(self.namespace.cluster.kubectl("get", "nodes", "--selector", OWN, "-o", "json"))["items"]
        pool_of = {node["metadata"]["name"]: node["metadata"]["labels"][NODE_POOL_LABEL] for node in nodes}
        found: dict[str, set[str]] = {}
        for pod in pods:
            job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            found.setdefault(job, set()).add(pool_of[pod["spec"]["nodeName"]])
        return found

    def end(self, pod: Document, *, code: int, disruption: str = "") -> None:
        """Has a pod end as if its driver had ended so."""
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        driver = {
            "name": DRIVER,
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
        }
        status: Document = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [driver]}
        if disruption:
            status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": disruption}]
        change = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
        self.namespace.kubectl("patch", "pod", pod["metadata"]["name"], *change)

    def _node(self, machine: Machine, pool: str, name: str) -> Document:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {**machine.labels, NODE_POOL_LABEL: pool, OWN: self.namespace.name}},
            "spec": {"taints": [{"key": machine.taint, "value": "present", "effect": "NoSchedule"}]},
            "status": {"allocatable": machine.room, "capacity": machine.room},
        }


@pytest.fixture
def machines(own_cluster: Cluster, namespace: Namespace, tmp_path: Path) -> Iterator[Machines]:
    """Kept alive by a kwok of their own, whose pods do not end by themselves."""
    stages = list(yaml.safe_load_all(Programs().manifest("kwok-stages.yaml").read_text()))
    kept = [stage for stage in stages if stage and stage["metadata"]["name"] != "pod-complete"]
    assert len(kept) == len(stages) - 1
    config = tmp_path / "stages.yaml"
    config.write_text(yaml.safe_dump_all(kept))
    command: list[str | Path] = [Programs()["kwok"], "--kubeconfig", own_cluster.kubeconfig, "--config", config]
    command += ["--manage-all-nodes=false", f"--manage-nodes-with-label-selector={OWN}={namespace.name}"]
    command += ["--node-lease-duration-seconds=40", f"--server-address={HOST}:{new_port()}"]
    with (tmp_path / "kwok.log").open("wb") as log:
        kwok = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Machines(namespace, tmp_path)
    finally:
        own_cluster.kubectl("delete", "nodes", "--selector", f"{OWN}={namespace.name}", "--wait=false")
        kwok.kill()
        kwok.wait()


@pytest.mark.parametrize("kind", SLICES)
def test_each_slice_has_a_node_pool_to_itself_and_a_further_one_waits_for_the_first_that_ends(
    machines: Machines, kind: str
) -> None:
    machine, hosts, compute = SLICES[kind]
    machines.add(machine, {"pool-1": hosts, "pool-2": hosts})
    machines.submit("first", a_spec(compute=compute), workers=2)
    first = machines.wait_for_running("first", 2 * hosts)

    one, other = machines.pools(first).values()
    assert len(one) == len(other) == 1
    assert one != other

    machines.submit("second", a_spec(compute=compute), workers=1)
    (waiting,) = machines.namespace.wait_until("the second one's first pod", lambda: unplaced(machines.pods("second")))
    assert waiting["metadata"]["annotations"][INDEX_ANNOTATION] == "0"
    assert machines.namespace.ended("first") is None

    for pod in first:
        if pod["metadata"]["annotations"][INDEX_ANNOTATION] == "0":
            machines.end(pod, code=exits.DONE)
    assert machines.namespace.wait_until("the first one's end", lambda: machines.namespace.ended("first")) == "Completed"
    (pools,) = machines.pools(machines.wait_for_running("second", hosts)).values()
    assert len(pools) == 1


@pytest.mark.gate
@pytest.mark.parametrize(("code", "disruption", "counted"), [(exits.RESUME, "TerminationByKubelet", 0), (1, "", 1)])
def test_a_host_that_fails_has_every_host_made_again_and_each_slice_back_in_one_pool(
    machines: Machines, code: int, disruption: str, counted: int
) -> None:
    """Only a failure of its own is counted as one of the restarts that are allowed."""
    machines.add(V6E, {"pool-1": 4, "pool-2": 4})
    machines.submit("night", a_spec(compute={"profile": "tpu-v6e", "topology": "4x4"}), workers=2)
    before = machines.wait_for_running("night", 8)

    machines.end(before[5], code=code, disruption=disruption)

    def restarted() -> bool:
        return bool(machines.namespace.jobset("night").get("status", {}).get("restarts"))

    machines.namespace.wait_until("the restart", restarted)
    after = machines.wait_for_running("night", 8)
    assert not {uid(pod) for pod in before} & {uid(pod) for pod in after}
    one, other = machines.pools(after).values()
    assert len(one) == len(other) == 1
    assert one != other
    status = machines.namespace.jobset("night")["status"]
    assert (status["restarts"], status.get("restartsCountTowardsMax", 0)) == (1, counted)


def test_a_queue_with_quota_for_one_run_admits_the_second_after_the_first(machines: Machines) -> None:
    machines.add(L4, {"pool-1": 4})
    with a_queue(machines.namespace, {"cpu": "100", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "nvidia.com/gpu": "2"}):
        spec = a_spec(compute={"profile": "gpu-l4"}, queue="nightly")
        machines.submit("first", spec, workers=2)
        # Of two that were made in the same second, Kueue may admit either.
        first = machines.wait_for_running("first", 2)
        machines.submit("second", spec, workers=2)
        reason = machines.namespace.wait_until("Kueue's words on the second", lambda: waits(machines.namespace, "second"))
        assert "insufficient unused quota for nvidia.com/gpu" in reason
        assert machines.pods("second") == []

        for pod in first:
            machines.end(pod, code=exits.DONE)

        assert machines.namespace.wait_until("the first one's end", lambda: machines.namespace.ended("first")) == "Completed"
        machines.wait_for_running("second", 2)


# Index 0 is done at once. The others work until a file says that they are done.
DRIVES = f"""
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit({exits.RESUME}))
print("at work", flush=True)
while os.environ["JOB_COMPLETION_INDEX"] != "0" and not pathlib.Path("/tmp/done").exists():
    time.sleep(0.1)
"""
SERVES = """
import http.server, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def test_indexes_that_are_done_stay_done_through_a_suspension_by_kueue(namespace: Namespace, tmp_path: Path) -> None:
    """The programs in these pods are stand-ins; how a run lives through it is in test_disruptions.py."""
    namespace.kubectl("create", "serviceaccount", "nightshift-worker")
    with a_queue(namespace, {"cpu": "50m"}) as priority:
        submit_stand_ins(namespace, tmp_path, "night", workers=2, queue="nightly")
        (job,) = namespace.wait_until("index 0's end", lambda: jobs(namespace, "night", completed="0"))

        submit_stand_ins(namespace, tmp_path, "urgent", workers=2, queue="nightly", priority=priority)

        namespace.wait_until("the suspension", lambda: namespace.jobset("night")["spec"].get("suspend"))
        namespace.wait_until("the end of its pods", lambda: not working(namespace, "night"))
        (urgent,) = namespace.wait_until("the urgent one's pod", lambda: working(namespace, "urgent"))
        (suspended,) = jobs(namespace, "night", completed="0")
        assert suspended["metadata"]["uid"] == job["metadata"]["uid"]
        assert not suspended["status"].get("failed")

        finish(namespace, urgent)
        (again,) = namespace.wait_until("index 1 at work again", lambda: working(namespace, "night"))
        finish(namespace, again)
        assert namespace.wait_until("the end", lambda: namespace.ended("night")) == "Completed"
        pods = namespace.get("pods", "jobset.sigs.k8s.io/jobset-name=night")
        assert sorted(pod["metadata"]["annotations"][INDEX_ANNOTATION] for pod in pods) == ["0", "1"]
        assert again["metadata"]["annotations"][INDEX_ANNOTATION] == "1"


def submit_stand_ins(namespace: Namespace, folder: Path, name: str, *, workers: int, **spec: Any) -> None:
    program = {"image": IMAGE, "imagePullPolicy": "IfNotPresent"}
    little = {"resources": {"requests": {"cpu": "10m", "memory": None, "ephemeral-storage": None}, "limits": None}}
    server = {"name": SERVER, **program, **little, "command": ["python3", "-uc", SERVES], "args": []}
    server["startupProbe"] = {"periodSeconds": 1, "httpGet": {"path": "/", "port": "engine"}}
    driver = {"name": DRIVER, **program, **little, "command": ["python3", "-uc", DRIVES]}
    patch = folder / f"{name}.yaml"
    patch.write_text(yaml.safe_dump({"spec": {"initContainers": [server], "containers": [driver]}}))
    settings = Settings("runs", "acme", namespace=namespace.name, pod_patch=str(patch))
    namespace.create(render(a_spec(**spec), RUN, a_plan(8, workers=workers), settings, name=name))


def jobs(namespace: Namespace, jobset: str, *, completed: str) -> list[Document]:
    found = namespace.get("jobs", f"jobset.sigs.k8s.io/jobset-name={jobset}")
    return [job for job in found if job["status"].get("completedIndexes") == completed]


def working(namespace: Namespace, jobset: str) -> list[Document]:
    """Pods of index 1 whose driver has said so and has not ended."""
    pods = namespace.get("pods", f"jobset.sigs.k8s.io/jobset-name={jobset},batch.kubernetes.io/job-completion-index=1")
    alive = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    return [pod for pod in alive if "at work" in namespace.kubectl("logs", pod["metadata"]["name"], "-c", DRIVER)]


def finish(namespace: Namespace, pod: Document) -> None:
    namespace.kubectl("exec", pod["metadata"]["name"], "-c", DRIVER, "--", "touch", "/tmp/done")


def waits(namespace: Namespace, jobset: str) -> str:
    """Why Kueue has not admitted it; '' when it does not say that it waits."""
    uid_ = namespace.jobset(jobset)["metadata"]["uid"]
    for workload in namespace.get("workloads.kueue.x-k8s.io", f"kueue.x-k8s.io/job-uid={uid_}"):
        for each in workload.get("status", {}).get("conditions", []):
            if each["type"] == "QuotaReserved" and each["status"] == "False":
                return str(each["message"])
    return ""


def unplaced(pods: list[Document]) -> list[Document]:
    """Those that the scheduler has said have no place."""
    return [
        pod
        for pod in pods
        if any(each["type"] == "PodScheduled" and each["status"] == "False" for each in pod["status"].get("conditions", []))
    ]


def uid(thing: Document) -> str:
    return str(thing["metadata"]["uid"])


def _ended(pod: Document) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
