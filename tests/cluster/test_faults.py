"""The faults that other tests rely on do what they say, and the cluster survives them."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from local.cluster.cluster import Cluster
from local.cluster.faults import API_SERVER, Faults
from local.cluster.processes import StartError
from tests.cluster.kube import IMAGE, Namespace, a_jobset

pytestmark = pytest.mark.cluster

WORKS = "import time; print('at work', flush=True); time.sleep(600)"
# Ends as a driver does: 75 is "resume me".
DRAINS = """
import signal, sys, time
def drained(*_):
    print("draining", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, drained)
print("at work", flush=True)
time.sleep(600)
"""
# Writes down when it was told to end and what came of it, beyond the end of its pod.
LINGERS = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
print("at work", flush=True)
while True:
    time.sleep(1)
"""


def test_killed_parts_come_back_and_the_cluster_works_on(namespace: Namespace, faults: Faults) -> None:
    """One after the other; the cluster has to work again before the next one is killed."""
    namespace.create(a_jobset("before", WORKS, pods=1, nodeSelector={"pool": "node-1"}))
    [before] = namespace.wait_until("a pod at work", lambda: at_work(namespace, "before"))

    for part in ("etcd", API_SERVER, "kube-controller-manager", "jobset", "kueue", "node-1", "node-1-containerd"):
        faults.kill(part)

        # A controller that has just come back may not answer its webhook yet.
        after = f"after-{part}"
        document = a_jobset(after, "print('done')", pods=1)
        namespace.wait_until(f"a new JobSet {after}", partial(created, namespace, document))
        assert namespace.wait_until(f"the end of {after}", partial(namespace.ended, after)) == "Completed"
        [pod] = namespace.get("pods", "jobset.sigs.k8s.io/jobset-name=before")
        assert pod["metadata"]["uid"] == before["metadata"]["uid"]
        assert pod["status"]["phase"] == "Running"
        assert not pod["status"]["containerStatuses"][0]["restartCount"]


def test_a_preempted_node_drains_its_pods_and_the_job_does_not_count_them(namespace: Namespace, faults: Faults) -> None:
    namespace.create(a_jobset("spot", DRAINS, pods=1, nodeSelector={"pool": "node-2"}))
    [pod] = namespace.wait_until("a pod at work", lambda: at_work(namespace, "spot"))

    faults.preempt("node-2")

    failed = namespace.wait_until("the pod's end", lambda: in_phase(namespace, pod, "Failed"))
    [condition] = [one for one in failed["status"]["conditions"] if one["type"] == "DisruptionTarget"]
    assert (condition["status"], condition["reason"]) == ("True", "TerminationByKubelet")
    [container] = failed["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 75
    assert "draining" in namespace.kubectl("logs", pod["metadata"]["name"])
    namespace.wait_until("the replacement", lambda: len(namespace.get("pods")) == 2)
    [job] = namespace.get("jobs")
    assert not job["status"].get("failed")
    faults.restore("node-2")
    namespace.wait_until("the replacement at work", lambda: at_work(namespace, "spot"))


def test_a_grace_of_one_second_is_one_second(namespace: Namespace, faults: Faults) -> None:
    namespace.create(a_jobset("hurried", LINGERS, pods=1, nodeSelector={"pool": "node-2"}))
    [pod] = namespace.wait_until("a pod at work", lambda: at_work(namespace, "hurried"))

    faults.preempt("node-2", grace_s=1)

    failed = namespace.wait_until("the pod's end", lambda: in_phase(namespace, pod, "Failed"))
    [container] = failed["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 137
    assert "told to end" in namespace.kubectl("logs", pod["metadata"]["name"])


def test_a_deleted_node_takes_its_pods_along_and_can_come_back(namespace: Namespace, faults: Faults) -> None:
    namespace.create(a_jobset("gone", LINGERS, pods=1, nodeSelector={"pool": "node-2"}))
    [pod] = namespace.wait_until("a pod at work", lambda: at_work(namespace, "gone"))
    pid = faults.container_pid(namespace.name, pod["metadata"]["name"], "driver")

    faults.delete_node("node-2")

    def replaced() -> bool:
        return pod["metadata"]["uid"] not in [one["metadata"]["uid"] for one in namespace.get("pods")]

    namespace.wait_until("the end of the pod's object", replaced, patience_s=150)
    namespace.wait_until("the end of its process", lambda: not Path(f"/proc/{pid}").exists())
    faults.rejoin("node-2")
    namespace.wait_until("the replacement at work", lambda: at_work(namespace, "gone"))


def test_an_api_server_that_is_stopped_refuses_and_a_frozen_one_never_answers(own_cluster: Cluster, faults: Faults) -> None:
    faults.stop(API_SERVER)
    with pytest.raises(ConnectionRefusedError):
        connect(own_cluster).close()

    faults.start(API_SERVER)
    faults.freeze(API_SERVER)
    with connect(own_cluster) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(1)

    faults.thaw(API_SERVER)
    assert "node-1" in own_cluster.kubectl("get", "nodes", "--request-timeout=30s")


def test_a_container_is_killed_by_its_process_sidecars_included(namespace: Namespace, faults: Faults) -> None:
    sidecar = {"name": "server", "image": IMAGE, "restartPolicy": "Always", "command": ["python3", "-u", "-c", WORKS]}
    namespace.create(a_jobset("pair", WORKS, pods=1, initContainers=[sidecar]))
    [pod] = namespace.wait_until("a pod at work", lambda: at_work(namespace, "pair"))

    faults.kill_container(namespace.name, pod["metadata"]["name"], "server")

    def restarted() -> Any:
        [one] = namespace.get("pods")
        [status] = one["status"]["initContainerStatuses"]
        return status["restartCount"] and status["state"].get("running")

    namespace.wait_until("the sidecar's second life", restarted)

    faults.kill_container(namespace.name, pod["metadata"]["name"], "driver")

    failed = namespace.wait_until("the pod's end", lambda: in_phase(namespace, pod, "Failed"))
    [container] = failed["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 137


def connect(cluster: Cluster) -> socket.socket:
    server = urlsplit(yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert server.hostname is not None
    return socket.create_connection((server.hostname, server.port), timeout=3)


def created(namespace: Namespace, document: dict[str, Any]) -> bool:
    """Also by an earlier call whose reply was lost."""
    try:
        namespace.create(document)
    except StartError as error:
        if "AlreadyExists" not in str(error):
            raise
    return True


def at_work(namespace: Namespace, jobset: str) -> list[dict[str, Any]]:
    """The pods of a JobSet whose driver has begun."""
    pods = namespace.get("pods", f"jobset.sigs.k8s.io/jobset-name={jobset}")
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    return [pod for pod in running if "at work" in namespace.kubectl("logs", pod["metadata"]["name"], "-c", "driver")]


def in_phase(namespace: Namespace, pod: dict[str, Any], phase: str) -> dict[str, Any] | None:
    """The pod as it is now, when it is in that phase."""
    uid = pod["metadata"]["uid"]
    return next(
        (one for one in namespace.get("pods") if one["metadata"]["uid"] == uid and one["status"]["phase"] == phase), None
    )
