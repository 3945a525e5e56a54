"""The test cluster itself: that it is the real thing, and that nothing of it stays behind."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from local.cluster import build
from local.cluster.cluster import Cluster, ClusterError
from local.cluster.layout import Layout
from tests.cluster.kube import Namespace, a_jobset, a_queue, require
from tests.cluster.scenes import UNTIL_LET_GO, let_go, running
from tests.cluster.traces import traces

pytestmark = pytest.mark.cluster


@pytest.mark.gate
def test_a_jobset_runs_to_its_end_and_its_logs_are_there(namespace: Namespace) -> None:
    namespace.create(a_jobset("hello", "import os; print('index', os.environ['JOB_COMPLETION_INDEX'])"))

    assert namespace.wait_until("the end of the JobSet", lambda: namespace.ended("hello")) == "Completed"

    logs = {namespace.kubectl("logs", pod["metadata"]["name"]).strip() for pod in namespace.get("pods")}
    assert logs == {"index 0", "index 1"}
    [job] = namespace.get("jobs")
    assert job["status"]["completedIndexes"] == "0,1"


def test_pods_find_each_other_by_name_and_reach_the_api_server(namespace: Namespace) -> None:
    code = (
        "import os, socket, time\n"
        "end = time.monotonic() + 30\n"
        "names = ['names-worker-0-0.names', 'names-worker-0-1.names', 'kubernetes.default.svc']\n"
        "while True:\n"
        "    try:\n"
        "        print(*(socket.gethostbyname(name) for name in names))\n"
        "        socket.create_connection((names[2], 443), 5).close()\n"
        "        break\n"
        "    except OSError:\n"
        "        if time.monotonic() > end: raise\n"
        "        time.sleep(0.5)\n"
        # Both have to be there until both have looked.
        f"{UNTIL_LET_GO}"
    )
    # Of the pod's own, since the nodes share this machine's.
    namespace.create(a_jobset("names", code))
    namespace.wait_until("both have looked", lambda: len(looked(namespace)) == 2)
    let_go(namespace)

    assert namespace.wait_until("the end of the JobSet", lambda: namespace.ended("names")) == "Completed"


def looked(namespace: Namespace) -> list[str]:
    """The pods that have written something."""
    names = [pod["metadata"]["name"] for pod in running(namespace)]
    return [name for name in names if namespace.kubectl("logs", name).strip()]


def admitted(namespace: Namespace) -> bool:
    return any(each.get("status", {}).get("admission") for each in namespace.get("workloads.kueue.x-k8s.io"))


def test_kueue_admits_what_fits_its_quota_and_the_next_one_after_it(namespace: Namespace) -> None:
    require(namespace.cluster, "clusterqueues.kueue.x-k8s.io")
    with a_queue(namespace, {"cpu": "1"}):
        for name in ("first", "second"):
            document = a_jobset(name, "import time; time.sleep(10)", pods=1)
            document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "nightly"}
            pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            pod["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
            namespace.create(document)
            if name == "first":
                # Kueue orders those that wait by the second in which they were made.
                namespace.wait_until("the first is admitted", lambda: admitted(namespace))

        assert namespace.wait_until("the first's end", lambda: namespace.ended("first")) == "Completed"
        assert namespace.wait_until("the second's end", lambda: namespace.ended("second")) == "Completed"
    [first], [second] = (namespace.get("jobs", f"jobset.sigs.k8s.io/jobset-name={name}") for name in ("first", "second"))
    assert second["status"]["startTime"] >= first["status"]["completionTime"]


def test_a_cluster_that_does_not_start_says_why_and_leaves_nothing(own_cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        missing = Path(folder) / "no-such-image.tar"
        state = _beside(own_cluster, Path(folder))
        failing = Cluster(state, nodes=1, kwok=0, kueue=False, images=[missing])

        with pytest.raises(ClusterError, match=r"does not start: .*no-such-image\.tar"):
            failing.up()

        assert traces(Layout.at(state)) == []


def test_a_killed_supervisor_takes_its_cluster_along_and_down_removes_the_rest(own_cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory(prefix="ns-") as folder:
        state = _beside(own_cluster, Path(folder))
        killed = Cluster(state, nodes=0, kwok=0, kueue=False)
        killed.up()
        supervisor = killed.document()["supervisor"]
        subprocess.run(["kill", "-9", str(supervisor)], check=True)

        Cluster(state).down()

        assert traces(Layout.at(state)) == []


def test_the_programs_are_of_the_pinned_versions(own_cluster: Cluster) -> None:
    pinned = (build.SOURCES / "kubernetes" / "go.mod").read_text()
    version = subprocess.run([build.Programs()["kubelet"], "--version"], capture_output=True, text=True, check=True).stdout

    assert f"k8s.io/kubernetes {version.split()[1]}\n" in pinned


def _beside(cluster: Cluster, folder: Path) -> Path:
    """A state folder whose addresses are not those of the cluster that is up."""
    return next(path for number in range(9) if (path := folder / str(number)) and Layout.at(path).gateway != cluster.gateway)
