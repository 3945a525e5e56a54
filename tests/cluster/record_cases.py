"""What is done to JobSets for `tests.cluster.record`; each function is a case, and its first sentence says what it does.

Not here, since this cluster cannot produce it: a kubelet that evicts for memory or disk pressure of its node, a node that
restarts under its pods (ContainerStatusUnknown, UnexpectedAdmissionError), and Kueue's admission checks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from nightshift import exits
from tests.cluster.kube import a_jobset, a_queue
from tests.cluster.record import Bench
from tests.cluster.scenes import evict

Case = Callable[[Bench], None]
Document = dict[str, Any]

CASES: Final[dict[str, Case]] = {}

QUOTA: Final = {"cpu": "200m"}
NODE: Final = "node-2"
HERE: Final = {"nodeSelector": {"pool": NODE}}
WORKS: Final = "import time; time.sleep(600)"
# Ends as a driver does: 75 is "resume me".
DRAINS: Final = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(600)"


def case(function: Case) -> Case:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def job_of(document: Document) -> Document:
    found: Document = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    return found


def pod_of(document: Document) -> Document:
    found: Document = job_of(document)["template"]["spec"]
    return found


def a_counting_jobset(name: str, code: str, **pod: Any) -> Document:
    """Without rules for disruptions: the first pod that is taken away fails it."""
    document = a_jobset(name, code, pods=1, **pod)
    del job_of(document)["podFailurePolicy"]
    job_of(document)["backoffLimitPerIndex"] = 0
    return document


def phases(bench: Bench, jobset: str) -> list[str]:
    return [pod["status"]["phase"] for pod in bench.pods(jobset)]


def all_run(bench: Bench, *jobsets: str) -> None:
    bench.wait_until("every pod at work", lambda: all(set(phases(bench, name)) == {"Running"} for name in jobsets))
    # The programs have set their handlers by then.
    time.sleep(2)


def ended(bench: Bench, name: str, how: str, patience_s: float = 90) -> None:
    bench.wait_until(f"the end of {name}", lambda: bench.namespace.ended(name) == how, patience_s)


def waits_for(bench: Bench, jobset: str, *reasons: str) -> None:
    def holds() -> bool:
        parts = [
            container
            for pod in bench.pods(jobset)
            for kind in ("initContainerStatuses", "containerStatuses")
            for container in pod["status"].get(kind, [])
        ]
        return any(part["state"].get("waiting", {}).get("reason") in reasons for part in parts)

    bench.wait_until(f"{' or '.join(reasons)} in {jobset}", holds)


@case
def completed(bench: Bench) -> None:
    """Both pods end with exit code 0."""
    bench.create(a_jobset("night", "pass"))
    ended(bench, "night", "Completed")
    bench.record("completed", "night")


@case
def running(bench: Bench) -> None:
    """Both pods work."""
    bench.create(a_jobset("night", DRAINS))
    all_run(bench, "night")
    bench.record("running", "night")


def taken_away(
    bench: Bench, name: str, disturb: Callable[[], object], restore: Callable[[], object] = lambda: None, patience_s: float = 90
) -> None:
    """Two JobSets meet the same end of a pod: one ignores it, and goes on; the other counts it, and fails."""
    bench.create(a_jobset("ignores", DRAINS, pods=1, **HERE))
    bench.create(a_counting_jobset("counts", DRAINS, **HERE))
    all_run(bench, "ignores", "counts")
    disturb()
    try:
        ended(bench, "counts", "Failed", patience_s)
        bench.wait_until("the replacement", lambda: len(bench.pods("ignores")) == 2)
        time.sleep(1)
        bench.record(f"{name}-running", "ignores")
        bench.record(f"{name}-failed", "counts")
    finally:
        restore()


@case
def spot(bench: Bench) -> None:
    """A Spot node is preempted: its kubelet shuts down gracefully."""
    faults = bench.faults
    taken_away(bench, "spot", lambda: faults.preempt(NODE), faults.undo)


@case
def evicted(bench: Bench) -> None:
    """The pods are evicted through the API, as `kubectl drain` does."""

    def all_of_them() -> None:
        for pod in bench.pods("ignores") + bench.pods("counts"):
            evict(bench.namespace, pod)

    taken_away(bench, "evicted", all_of_them)


@case
def tainted(bench: Bench) -> None:
    """The node gets a NoExecute taint."""
    taint = f"{bench.namespace.name}:NoExecute"
    taken_away(
        bench,
        "tainted",
        lambda: bench.kubectl("taint", "node", NODE, taint),
        lambda: bench.kubectl("taint", "node", NODE, f"{taint}-"),
    )


@case
def outranked(bench: Bench) -> None:
    """A pod of higher priority needs the node: the scheduler preempts."""
    classes = {f"{bench.namespace.name}-{value}": value for value in (1, 2)}
    for name, value in classes.items():
        bench.create(
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
        )
    low, high = classes
    cpus = int(json.loads(bench.kubectl("get", "node", NODE, "-o", "json"))["status"]["allocatable"]["cpu"])
    try:
        for document in (a_jobset("ignores", DRAINS, pods=1, **HERE), a_counting_jobset("counts", DRAINS, **HERE)):
            pod_of(document)["priorityClassName"] = low
            pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": f"{cpus * 400}m"}}
            bench.create(document)
        all_run(bench, "ignores", "counts")
        first = a_jobset("first", WORKS, pods=1, **HERE)
        pod_of(first)["priorityClassName"] = high
        pod_of(first)["containers"][0]["resources"] = {"requests": {"cpu": f"{cpus * 900}m"}}
        bench.create(first)
        ended(bench, "counts", "Failed")
        bench.wait_until("the replacement", lambda: len(bench.pods("ignores")) == 2)
        time.sleep(1)
        bench.record("outranked-running", "ignores")
        bench.record("outranked-failed", "counts")
    finally:
        bench.kubectl("delete", "priorityclass", *classes)


@case
def node_deleted(bench: Bench) -> None:
    """The node's object is deleted, as a cloud does with a machine that is gone."""
    faults = bench.faults
    taken_away(bench, "node-deleted", lambda: faults.delete_node(NODE), faults.undo, 180)


@case
def node_refuses(bench: Bench) -> None:
    """A pod that is bound to a node without room for it: the kubelet refuses it."""
    document = a_counting_jobset("night", WORKS, nodeName=NODE)
    pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": "1k"}}
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("node-refuses", "night")


@case
def pod_deleted(bench: Bench) -> None:
    """Somebody deletes the pod, and its replacement: no mark says so, and Kubernetes counts both."""

    def delete(number: int) -> None:
        bench.wait_until("a pod at work", lambda: phases(bench, "night")[number - 1 :] == ["Running"])
        time.sleep(2)
        bench.kubectl("delete", "pod", bench.pods("night")[-1]["metadata"]["name"])

    bench.create(a_jobset("night", DRAINS, pods=1))
    delete(1)
    bench.wait_until("the replacement", lambda: len(bench.pods("night")) == 2)
    bench.record("pod-deleted-running", "night")
    delete(2)
    ended(bench, "night", "Failed")
    bench.record("pod-deleted-failed", "night")


@case
def pod_deleted_deaf(bench: Bench) -> None:
    """Somebody deletes a pod whose program ignores SIGTERM to the end of its grace."""
    document = a_counting_jobset("night", WORKS)
    pod_of(document)["terminationGracePeriodSeconds"] = 2
    bench.create(document)
    all_run(bench, "night")
    bench.kubectl("delete", "pod", bench.pods("night")[0]["metadata"]["name"])
    ended(bench, "night", "Failed")
    bench.record("pod-deleted-deaf", "night")


@case
def pod_deleted_by_force(bench: Bench) -> None:
    """Somebody deletes the pod without grace: nobody hears of its containers' end."""
    bench.create(a_counting_jobset("night", DRAINS))
    all_run(bench, "night")
    bench.kubectl("delete", "pod", bench.pods("night")[0]["metadata"]["name"], "--force", "--grace-period=0")
    ended(bench, "night", "Failed")
    bench.record("pod-deleted-by-force", "night")


@case
def deleted_then_fails(bench: Bench) -> None:
    """The index's first pod is deleted, its second one ends with exit code 1."""
    count = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
    document = a_jobset("night", f"import os, sys; os.environ['FAILURES'] == '0' or sys.exit(1)\n{DRAINS}", pods=1)
    pod_of(document)["containers"][0]["env"] = [{"name": "FAILURES", "valueFrom": {"fieldRef": {"fieldPath": count}}}]
    bench.create(document)
    all_run(bench, "night")
    bench.kubectl("delete", "pod", bench.pods("night")[0]["metadata"]["name"])
    ended(bench, "night", "Failed")
    bench.record("deleted-then-fails", "night")


@case
def killed(bench: Bench) -> None:
    """The container's process gets SIGKILL from the node, as from the kernel when the machine's memory is out."""
    bench.create(a_counting_jobset("night", WORKS))
    all_run(bench, "night")
    bench.faults.kill_container(bench.namespace.name, bench.pods("night")[0]["metadata"]["name"], "driver")
    ended(bench, "night", "Failed")
    bench.record("killed", "night")


@case
def segfault(bench: Bench) -> None:
    """The program touches memory that is not its own."""
    bench.create(a_counting_jobset("night", "import ctypes; ctypes.string_at(0)"))
    ended(bench, "night", "Failed")
    bench.record("segfault", "night")


@case
def config_error(bench: Bench) -> None:
    """Index 1 says that it is not retryable: it fails at once, and index 0 comes to its end."""
    document = a_jobset("night", f"import os, sys; sys.exit({exits.CONFIG} * int(os.environ['JOB_COMPLETION_INDEX']))")
    on_codes = {"containerName": "driver", "operator": "In", "values": [exits.CONFIG]}
    job_of(document)["podFailurePolicy"]["rules"].append({"action": "FailIndex", "onExitCodes": on_codes})
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("config-error", "night")


@case
def exits_1(bench: Bench) -> None:
    """Index 1 ends with exit code 1 until its backoffLimitPerIndex is used up."""
    bench.create(a_jobset("night", "import os, sys; sys.exit(int(os.environ['JOB_COMPLETION_INDEX']))"))
    bench.wait_until("the first failure", lambda: "Failed" in phases(bench, "night"))
    bench.record("exits-1-running", "night")
    ended(bench, "night", "Failed")
    bench.record("exits-1-failed", "night")


@case
def work_is_left(bench: Bench) -> None:
    """The program ends with the code for work that is left, told by nobody, until its retries are used up."""
    bench.create(a_jobset("night", f"import sys; sys.exit({exits.RESUME})", pods=1))
    ended(bench, "night", "Failed")
    bench.record("work-is-left", "night")


@case
def out_of_memory(bench: Bench) -> None:
    """The program takes more memory than its limit."""
    document = a_counting_jobset("night", "b = bytearray(512 << 20); import time; time.sleep(5)")
    pod_of(document)["containers"][0]["resources"] = {"limits": {"memory": "64Mi"}}
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("out-of-memory", "night")


@case
def too_much_disk(bench: Bench) -> None:
    """The pod writes more into an emptyDir than its sizeLimit: the kubelet evicts it, for its own doing."""
    document = a_counting_jobset("night", f"open('/scratch/x', 'wb').write(bytes(64 << 20))\n{WORKS}")
    pod_of(document)["volumes"] = [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    pod_of(document)["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    bench.create(document)
    ended(bench, "night", "Failed", 180)
    bench.record("too-much-disk", "night")


@case
def bad_command(bench: Bench) -> None:
    """The container's command is not in its image."""
    document = a_counting_jobset("night", "")
    pod_of(document)["containers"][0]["command"] = ["no-such-program"]
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("bad-command", "night")


@case
def deadline(bench: Bench) -> None:
    """The Job's activeDeadlineSeconds pass."""
    document = a_jobset("night", DRAINS)
    job_of(document)["activeDeadlineSeconds"] = 6
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("deadline", "night")


@case
def bad_image(bench: Bench) -> None:
    """The image cannot be had."""
    document = a_jobset("night", WORKS, pods=1)
    pod_of(document)["containers"][0] |= {"image": "localhost/no-such-image:1", "imagePullPolicy": "IfNotPresent"}
    bench.create(document)
    waits_for(bench, "night", "ImagePullBackOff")
    bench.record("bad-image", "night")


@case
def missing_secret(bench: Bench) -> None:
    """A variable's secret is not there."""
    document = a_jobset("night", WORKS, pods=1)
    key = {"name": "no-such-secret", "key": "token"}
    pod_of(document)["containers"][0]["env"] = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": key}}]
    bench.create(document)
    waits_for(bench, "night", "CreateContainerConfigError")
    bench.record("missing-secret", "night")


@case
def missing_volume(bench: Bench) -> None:
    """A volume's secret is not there: the kubelet waits for it, and says so in events only."""
    document = a_jobset("night", WORKS, pods=1)
    pod_of(document)["volumes"] = [{"name": "token", "secret": {"secretName": "no-such-secret"}}]
    pod_of(document)["containers"][0]["volumeMounts"] = [{"name": "token", "mountPath": "/token"}]
    bench.create(document)
    bench.wait_until("its event", lambda: "FailedMount" in bench.kubectl("get", "events"))
    bench.record("missing-volume", "night")


def with_server(name: str, server: Document) -> Document:
    """A JobSet with a native sidecar in front of the driver."""
    document = a_jobset(name, WORKS, pods=1)
    container = {**pod_of(document)["containers"][0], "name": "server", "restartPolicy": "Always", **server}
    pod_of(document)["initContainers"] = [container]
    return document


@case
def sidecar_ends(bench: Bench) -> None:
    """The sidecar ends with exit code 1 again and again, so the driver never starts."""
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 100}
    command = ["python3", "-c", "import sys; sys.exit(1)"]
    bench.create(with_server("night", {"command": command, "startupProbe": probe}))
    waits_for(bench, "night", "CrashLoopBackOff")
    bench.record("sidecar-ends", "night")


@case
def sidecar_loads(bench: Bench) -> None:
    """The sidecar's startupProbe does not pass, so the driver does not start yet."""
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 1000}
    bench.create(with_server("night", {"startupProbe": probe}))
    running = lambda: any("running" in each["state"] for pod in bench.pods("night") for each in _init(pod))  # noqa: E731
    bench.wait_until("the sidecar", running)
    bench.record("sidecar-loads", "night")


def _init(pod: Document) -> list[Document]:
    found: list[Document] = pod["status"].get("initContainerStatuses", [])
    return found


@case
def restarts_in_place(bench: Bench) -> None:
    """Under restartPolicy OnFailure, JobSet's default, the container fails in place until the Job's backoffLimit is used up."""
    document = a_jobset("night", "import time, sys; time.sleep(1); sys.exit(1)", pods=1)
    for key in ("podFailurePolicy", "backoffLimitPerIndex"):
        del job_of(document)[key]
    job_of(document)["backoffLimit"] = 1
    pod_of(document)["restartPolicy"] = "OnFailure"
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("restarts-in-place", "night")


@case
def unschedulable(bench: Bench) -> None:
    """No node has what one pod asks for."""
    document = a_jobset("night", WORKS)
    pod_of(document)["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    bench.create(document)
    bench.wait_until("the scheduler's words", lambda: "FailedScheduling" in bench.kubectl("get", "events"))
    time.sleep(1)
    bench.record("unschedulable", "night")


@case
def forbidden(bench: Bench) -> None:
    """The namespace's quota admits no pod."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    bench.create(quota)
    bench.create(a_jobset("night", WORKS))
    bench.wait_until("the Job's event", lambda: "FailedCreate" in bench.kubectl("get", "events"))
    bench.record("forbidden", "night")


@case
def suspended(bench: Bench) -> None:
    """A person suspends the JobSet while it works."""
    bench.create(a_jobset("night", DRAINS))
    all_run(bench, "night")
    bench.kubectl("patch", "jobset", "night", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    bench.wait_until("its pods' end", lambda: not bench.namespace.get("pods"))
    bench.record("suspended", "night")


@case
def jobset_deleted(bench: Bench) -> None:
    """Somebody deletes the JobSet while it works."""
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(5), sys.exit(75))); time.sleep(600)"
    bench.create(a_jobset("night", code, pods=1))
    all_run(bench, "night")
    bench.kubectl("delete", "jobset", "night", "--cascade=foreground", "--wait=false")
    bench.wait_until("the pod's notice", lambda: "deletionTimestamp" in bench.pods("night")[0]["metadata"])
    bench.record("jobset-deleted-running", "night")
    bench.wait_until("its end", lambda: bench.jobset("night") is None)
    bench.record("jobset-deleted", "night")


@case
def job_deleted(bench: Bench) -> None:
    """Somebody deletes the Job while it works: the JobSet makes it again, and what it knew of its indexes is lost."""
    code = f"import os\nif os.environ['JOB_COMPLETION_INDEX'] == '1':\n    {DRAINS}"
    bench.create(a_jobset("night", code))
    bench.wait_until("index 0's end", lambda: sorted(phases(bench, "night")) == ["Running", "Succeeded"])
    time.sleep(2)
    bench.kubectl("delete", "job", "night-worker-0")
    bench.wait_until("four pods", lambda: len(bench.pods("night")) == 4)
    bench.wait_until("the new ones at work", lambda: phases(bench, "night")[-2:].count("Running") >= 1)
    bench.record("job-deleted", "night")


def slices(name: str, code: str, *, restarts: int | None, replicas: int = 2) -> Document:
    """Workers of two hosts each: the first failure of a host fails its Job, and the JobSet makes all of them again."""
    document = a_jobset(name, code, pods=2)
    document["spec"]["replicatedJobs"][0]["replicas"] = replicas
    for key in ("podFailurePolicy", "backoffLimitPerIndex"):
        del job_of(document)[key]
    job_of(document)["backoffLimit"] = 0
    if restarts is not None:
        document["spec"]["failurePolicy"] = {"maxRestarts": restarts}
    return document


@case
def slice_fails(bench: Bench) -> None:
    """A host of one slice ends with exit code 1, and again after the restart of all, which is the last."""
    code = (
        "import os, sys, time\n"
        "if os.environ['SLICE'] == '1' and os.environ['JOB_COMPLETION_INDEX'] == '1':\n"
        "    time.sleep(4); sys.exit(1)\n" + DRAINS
    )
    document = slices("night", code, restarts=1)
    index = "metadata.labels['jobset.sigs.k8s.io/job-index']"
    pod_of(document)["containers"][0]["env"] = [{"name": "SLICE", "valueFrom": {"fieldRef": {"fieldPath": index}}}]
    bench.create(document)
    ended(bench, "night", "Failed")
    bench.record("slice-fails", "night")


@case
def slice_evicted(bench: Bench) -> None:
    """One host of a slice is evicted, and the program of the other fails for it."""
    code = (
        "import os, signal, socket, sys, time\n"
        "def drained(*_):\n"
        "    if connection: connection.close()\n"
        "    time.sleep(1); sys.exit(75)\n"
        "connection = None\n"
        "if os.environ['JOB_COMPLETION_INDEX'] == '0':\n"
        "    signal.signal(signal.SIGTERM, drained)\n"
        "    connection, _ = socket.create_server(('', 7000)).accept()\n"
        "    time.sleep(600)\n"
        "while connection is None:\n"
        "    try: connection = socket.create_connection(('night-worker-0-0.night', 7000), 5)\n"
        "    except OSError: time.sleep(0.5)\n"
        "connection.settimeout(None); connection.recv(1); sys.exit(1)\n"
    )
    bench.create(slices("night", code, restarts=None, replicas=1))
    all_run(bench, "night")
    time.sleep(5)
    [leader] = [pod["metadata"]["name"] for pod in bench.pods("night") if "-worker-0-0-" in pod["metadata"]["name"]]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": leader}}
    path = f"/api/v1/namespaces/{bench.namespace.name}/pods/{leader}/eviction"
    bench.kubectl("create", "--raw", path, "-f", "-", text=json.dumps(body))
    ended(bench, "night", "Failed")
    bench.record("slice-evicted", "night")


def queued(bench: Bench, name: str, *, cpu: str, priority: str = "", pods: int = 1) -> Document:
    document = a_jobset(name, DRAINS, pods=pods)
    labels = {"kueue.x-k8s.io/queue-name": "nightly"}
    document["metadata"]["labels"] = labels | ({"kueue.x-k8s.io/priority-class": priority} if priority else {})
    pod_of(document)["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return document


def conditions(bench: Bench) -> str:
    return bench.kubectl("get", "workloads.kueue.x-k8s.io", "-o", "jsonpath={.items[*].status.conditions}")


@case
def not_admitted(bench: Bench) -> None:
    """Kueue holds a JobSet for quota: one that waits for another's end, and one that asks for more than there is."""
    with a_queue(bench.namespace, QUOTA):
        bench.create(queued(bench, "first", cpu="150m"))
        all_run(bench, "first")
        bench.create(queued(bench, "second", cpu="150m"))
        bench.create(queued(bench, "huge", cpu="150m", pods=2))
        bench.wait_until("Kueue's words", lambda: conditions(bench).count('"QuotaReserved"') >= 3)
        time.sleep(2)
        bench.record("queue-waits", "second")
        bench.record("queue-too-small", "huge")


@case
def queue_preempts(bench: Bench) -> None:
    """A JobSet of higher priority takes the quota: Kueue suspends the one that works, which goes on afterwards."""
    with a_queue(bench.namespace, QUOTA):
        bench.create(queued(bench, "night", cpu="150m"))
        all_run(bench, "night")
        bench.create(queued(bench, "urgent", cpu="150m", priority=bench.namespace.name))
        all_run(bench, "urgent")
        bench.record("queue-preempts", "night")
        bench.kubectl("delete", "jobset", "urgent")
        bench.wait_until("night at work again", lambda: phases(bench, "night")[-1] == "Running")
        bench.record("queue-resumes", "night")


@case
def queue_ends_it(bench: Bench) -> None:
    """The JobSet uses up the execution time that it told Kueue."""
    with a_queue(bench.namespace, QUOTA):
        document = queued(bench, "night", cpu="150m")
        document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "5"
        bench.create(document)
        bench.wait_until("Kueue's end of it", lambda: "MaximumExecutionTimeExceeded" in conditions(bench))
        time.sleep(2)
        bench.record("queue-time-over", "night")


@case
def queue_deactivated(bench: Bench) -> None:
    """A person takes the JobSet's Workload out of the queue."""
    with a_queue(bench.namespace, QUOTA):
        bench.create(queued(bench, "night", cpu="150m"))
        all_run(bench, "night")
        [workload] = bench.namespace.get("workloads.kueue.x-k8s.io")
        name = workload["metadata"]["name"]
        bench.kubectl("patch", "workloads.kueue.x-k8s.io", name, "--type=merge", "-p", '{"spec": {"active": false}}')
        bench.wait_until("its pods' end", lambda: not bench.namespace.get("pods"))
        bench.record("queue-deactivated", "night")
