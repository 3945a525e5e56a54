"""P9: what 200 waiting JobSets cost a triggerer and the API server, compared with 200 Jobs of Airflow's own operator."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.noop import NAMESPACE, NoopCluster, noop_cluster
from benchmarks.report import Report, say
from benchmarks.triggerer import CONNECTION, Triggerer

PODS: Final = 25
"""Of a JobSet, each with a driver and a sidecar."""
GOAL: Final = 0.25
STARTS_S: Final = 3600.0
SETTLE_S: Final = 30.0
READ_S: Final = 30.0
METHOD: Final = """
A real kube-apiserver with the JobSet and Job controllers. Its nodes and pods are kwok's; the pods run until they are deleted
(`benchmarks/noop.py`). Each container writes a line a minute, through our own kubelet that serves only logs. Each side is a
real `airflow triggerer` with its own database and as many deferred tasks as JobSets; all sides share the cluster. They are
KubernetesJobSetTrigger as the operator makes it, the same without logs, and KubernetesJobTrigger on the JobSets' child Jobs
with the 10 s of `GKEStartJobOperator.job_poll_interval`. GKEJobTrigger itself needs Google's endpoint; it waits by the same
method of the same hook, and polls as often. The API server counts the requests: by user (requests that flow control has
dispatched; a watch counts when it begins) and for logs, which only ours reads (requests that have ended, which is all of
them, as the triggerers are killed first). Memory is the proportional set size of the process that runs the triggers: the
largest of the readings, one every 30 s. CPU is that process's user and system time.
"""


@dataclass(frozen=True)
class Side:
    """One operator's triggers. path, arguments: of the trigger of each JobSet."""

    name: str
    path: str
    arguments: list[dict[str, Any]]


@dataclass
class Cost:
    """What a side has cost. requests: without those for logs."""

    requests: int = 0
    memory_mib: float = 0.0
    sockets: int = 0
    cpu_s: float = 0.0


def measure(report: Report, folder: Path, quick: bool) -> None:
    # Otherwise, ending the measure leaves its triggerers and nodes behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    jobsets = 20 if quick else int(os.environ.get("P9_JOBSETS", "200"))
    minutes = 2.0 if quick else float(os.environ.get("P9_MINUTES", "60"))
    with noop_cluster(folder, jobsets * PODS) as cluster:
        names = [f"night-{number}" for number in range(jobsets)]
        cluster.apply(*(_jobset(name) for name in names))
        _await_pods(cluster, jobsets * PODS)
        sides = _sides(names, cluster.uids())
        logs = cluster.logs_read()
        costs = _costs(cluster, folder, sides, minutes)
        logs = cluster.logs_read() - logs
        failed = cluster.logs_failed()
    hours = jobsets * minutes / 60
    ours, quiet, theirs = (costs[side.name] for side in sides)
    calls = (ours.requests + logs) / hours, quiet.requests / hours, theirs.requests / hours
    ratio = calls[0] / calls[2]
    text = f"{ratio:.3f} ({calls[0]:.1f} / {calls[2]:.1f})"
    report.add("requests per JobSet-hour, ours / theirs", text, f"<= {GOAL}", ratio <= GOAL)
    report.add("the same without logs", f"{calls[1] / calls[2]:.3f} ({calls[1]:.1f} / {calls[2]:.1f})")
    for label, read in (("memory of the triggers' process", _memory), ("its CPU", _cpu)):
        report.add(f"{label}: ours, without logs, theirs", ", ".join(read(cost) for cost in (ours, quiet, theirs)))
    report.note(f"{jobsets} JobSets of {PODS} pods of 2 containers, {minutes:.0f} min")
    report.note(f"sockets of ours at the end: {ours.sockets}, without logs {quiet.sockets}")
    report.note(f"{logs:,} of our requests were for logs; {failed:,} of them got no answer from this cluster and were repeated")


def _memory(cost: Cost) -> str:
    return f"{cost.memory_mib:.0f} MiB"


def _cpu(cost: Cost) -> str:
    return f"{cost.cpu_s:.0f} s"


def _costs(cluster: NoopCluster, folder: Path, sides: list[Side], minutes: float) -> dict[str, Cost]:
    """What each side has cost `minutes` after its triggers were made. The triggerers have ended by then."""
    costs = {side.name: Cost() for side in sides}
    with ExitStack() as stack:
        triggerers = {}
        for side in sides:
            triggerer = Triggerer(folder / side.name, cluster.user(side.name), len(side.arguments))
            triggerers[side.name] = stack.enter_context(triggerer)
        time.sleep(SETTLE_S)
        for side in sides:
            before = triggerers[side.name].memory_mib()
            say(f"{side.name}: {before:.0f} MiB before")
            triggerers[side.name].defer([(side.path, arguments) for arguments in side.arguments])
        end = time.monotonic() + minutes * 60
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, READ_S))
            for name, cost in costs.items():
                triggerer = triggerers[name]
                cost.memory_mib = max(cost.memory_mib, triggerer.memory_mib())
                cost.sockets, cost.cpu_s = triggerer.sockets(), triggerer.cpu_s()
                cost.requests = cluster.requests(name)
                say(f"{name}: {cost}, {max(left - READ_S, 0):.0f} s left")
    return costs


def _sides(names: list[str], uids: dict[str, str]) -> list[Side]:
    ours = "nightshift.triggers.jobset.KubernetesJobSetTrigger"
    theirs = "airflow.providers.cncf.kubernetes.triggers.job.KubernetesJobTrigger"
    deadline = time.time() + 86400
    follow = [
        {
            "jobsets": [{"name": name, "uid": uids[name]}],
            "namespace": NAMESPACE,
            "deadline": deadline,
            "kubernetes_conn_id": CONNECTION,
        }
        for name in names
    ]
    poll = [
        {
            "job_name": f"{name}-worker-0",
            "job_namespace": NAMESPACE,
            "pod_names": [],
            "pod_namespace": NAMESPACE,
            "base_container_name": "driver",
            "kubernetes_conn_id": CONNECTION,
            "poll_interval": 10.0,
        }
        for name in names
    ]
    return [
        Side("ours", ours, follow),
        Side("ours-without-logs", ours, [{**each, "get_logs": False} for each in follow]),
        Side("theirs", theirs, poll),
    ]


def _jobset(name: str) -> dict[str, Any]:
    pod = {
        "restartPolicy": "Never",
        "initContainers": [{"name": "server", "image": "noop", "restartPolicy": "Always"}],
        "containers": [{"name": "driver", "image": "noop"}],
    }
    job = {"completionMode": "Indexed", "completions": PODS, "parallelism": PODS, "backoffLimitPerIndex": 1}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicatedJobs": [{"name": "worker", "template": {"spec": {**job, "template": {"spec": pod}}}}]},
    }


def _await_pods(cluster: NoopCluster, count: int) -> None:
    end = time.monotonic() + STARTS_S
    while (running := cluster.running_pods()) < count:
        assert time.monotonic() < end, f"{running} of {count} pods run after {STARTS_S:.0f} s"
        say(f"{running} of {count} pods run")
        time.sleep(10)
