"""The PriorityClass of a run's pods: whether it is there, and whether the cluster autoscaler still makes nodes for them.

The cluster autoscaler leaves pods below `LEAST` out: they cause no scale-up, and do not keep a node ("How does Cluster
Autoscaler work with Pod Priority and Preemption?" in its FAQ; ``--expendable-pods-priority-cutoff``, -10 by default, which GKE
does not let one change).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from nightshift.doctor import cluster_objects, queue
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.fields.text import n
from nightshift.jobset.kubernetes import rest
from nightshift.jobset.manifest.patch import PatchError

NAME: Final = "priority class"
PODS: Final = "priority of pods"
LEAST: Final = -10
BREAKS: Final = "infer: the cluster autoscaler makes no node for such pods, and they wait until the deadline"
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
OVER: Final = ("Succeeded", "Failed")


def classes(here: Surroundings) -> Iterator[Finding]:
    """A finding for each class that the job's pods have; without a job, for the deployment's."""
    names = sorted(_names(here))
    if not names:
        yield from _default(here)
    for name in names:
        found = cluster_objects.get(here, f"{CLASSES}/{name}")
        if found is None:
            wrong = f"the cluster has no PriorityClass {name} (NIGHTSHIFT_PRIORITY_CLASS, or the override file)"
            breaks = "infer: the cluster refuses the pods"
            yield Failed(NAME, wrong, breaks, "kubectl apply --server-side -f k8s/components/priority/priority-class.yaml")
        else:
            yield _judged(name, int(found["value"]))


def pods(here: Surroundings) -> Iterator[Finding]:
    """What the pods that are there now were given, whoever chose it."""
    found = cluster_objects.listed(here, rest.pods(here.settings.namespace)) or []
    alive = [each for each in found if each.get("status", {}).get("phase") not in OVER]
    low = [each for each in alive if each["spec"].get("priority", 0) < LEAST]
    if low:
        first = low[0]
        wrong = (
            f"less than {LEAST} for {len(low)} of {n(len(alive), 'pod')}, for example {first['metadata']['name']}: "
            f"{first['spec']['priority']}, of PriorityClass {first['spec'].get('priorityClassName', '(the default)')}"
        )
        yield Failed(PODS, wrong, BREAKS, _again(first["spec"].get("priorityClassName", "nightshift-batch")))
    else:
        yield Ok(PODS, f"{LEAST} or more for {n(len(alive), 'pod')} in namespace {here.settings.namespace}")


def _names(here: Surroundings) -> set[str]:
    stated = here.settings.priority_class
    if here.job is None:
        return {stated} - {""}
    try:
        return {queue.pod_of(here, profile).get("priorityClassName", "") for profile in here.job.compute.profiles} - {""}
    except (PatchError, ValueError):  # The check `manifest` says so.
        return {stated} - {""}


def _default(here: Surroundings) -> Iterator[Finding]:
    """Pods without a class get the cluster's default, if it has one."""
    found = cluster_objects.listed(here, CLASSES) or []
    default = next((each for each in found if each.get("globalDefault")), None)
    if default is None:
        yield Skipped(NAME, "NIGHTSHIFT_PRIORITY_CLASS is not set, so pods have priority 0")
    else:
        yield _judged(default["metadata"]["name"], int(default["value"]))


def _judged(name: str, value: int) -> Finding:
    if value < LEAST:
        return Failed(NAME, f"PriorityClass {name} has the value {value}, which is less than {LEAST}", BREAKS, _again(name))
    return Ok(NAME, f"{name} has the value {value}")


def _again(name: str) -> str:
    """The value of a class cannot be changed. Pods keep what they were made with."""
    quoted = shlex.quote(name)
    return (
        f"kubectl delete priorityclass {quoted} && kubectl create priorityclass {quoted} --value={LEAST} "
        "--preemption-policy=Never"
    )
