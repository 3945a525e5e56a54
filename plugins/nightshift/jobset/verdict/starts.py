"""How long each stage of a pod's start took, and which pods were taken away, by their cluster's objects. Pure.

`queue` is from the creation of Kueue's Workload to its admission, for a pod that followed at once; `node` until the condition
PodScheduled; `image` until the start of the server's container; `weights` until the start of the driver's, which on one host
waits for the engine. `driver` is how long the driver's container ran. Kubernetes writes these times in whole seconds. A
container that was started again, and a Workload that was evicted, no longer show the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.observation import Observation, condition, containers
from nightshift.jobset.verdict.pod_ends import EndCause, end_of
from nightshift.run.observed.pod_startup import RAN

AT_ONCE_S: Final = 60.0
"""A pod that was created later than this after the admission is a replacement, which waited for no quota."""


def starts_of(seen: Observation) -> dict[str, dict[str, float]]:
    """Seconds by stage (`nightshift.run.observed.pod_startup.STAGES`, and `RAN`) of each pod, by its name; unknown ones are
    missing."""
    return {pod["metadata"]["name"]: stages for pod in seen.pods if (stages := _stages(pod, seen.workload))}


def taken_of(seen: Observation) -> frozenset[str]:
    """Names of the pods that the cluster took away: a node's end, an eviction, a preemption.

    Not those that a user or nightshift itself ended: by a pause, a smaller JobSet, falling back. Nor those that Kueue
    suspends for a more urgent run: their objects look the same as after a pause.
    """
    ends = (end_of(pod, resume_codes=(), permanent_codes=()) for pod in seen.pods)
    return frozenset(end.name for end in ends if end.cause is EndCause.DISRUPTED)


def _stages(pod: Mapping[str, Any], workload: Mapping[str, Any] | None) -> dict[str, float]:
    created = pod["metadata"].get("creationTimestamp")
    placed = (condition(pod, "PodScheduled") or {}).get("lastTransitionTime")
    states = [_once(pod, name) for name in (SERVER, DRIVER)]
    server, driver = ((each.get("running") or each.get("terminated") or {}).get("startedAt") for each in states)
    ended = (states[1].get("terminated") or {}).get("finishedAt")
    times = {"node": (created, placed), "image": (placed or created, server), "weights": (server, driver), RAN: (driver, ended)}
    found = {stage: seconds for stage, (begin, end) in times.items() if (seconds := _between(begin, end)) is not None}
    if workload and not any(each["type"] == "Evicted" for each in workload.get("status", {}).get("conditions") or ()):
        admitted = (condition(workload, "Admitted") or {}).get("lastTransitionTime")
        queued, after = _between(workload["metadata"].get("creationTimestamp"), admitted), _between(admitted, created)
        if queued is not None and after is not None and after <= AT_ONCE_S:
            found["queue"] = queued
    return found


def _once(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The state of a container that was started once; {} of any other."""
    found = (each for each in containers(pod) if each["name"] == name and not each.get("restartCount"))
    return next(found, {}).get("state") or {}


def _between(begin: str | None, end: str | None) -> float | None:
    """Seconds; None if either is unknown, or they are in the wrong order."""
    if not begin or not end:
        return None
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return seconds if seconds >= 0 else None
