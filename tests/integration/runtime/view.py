"""A JobSet of one Indexed Job at one moment, as the runtime tests speak of it: read off the objects that a runtime serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nightshift.jobset.observation import Observation, condition
from nightshift.jobset.runtime import JobSetNotFound, Runtime
from nightshift.jobset.verdict import indexes
from nightshift.jobset.verdict.pod_ends import index_of

Phase = Literal["Suspended", "Running", "Completed", "Failed"]


@dataclass(frozen=True)
class Container:
    """exit_code: None while it runs, and before."""

    name: str
    started: bool = False
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None


@dataclass(frozen=True)
class Pod:
    """attempt: counts from 1 for each index. reason: of the condition DisruptionTarget, '' without one."""

    name: str
    index: int
    attempt: int
    phase: str
    reason: str
    containers: tuple[Container, ...]

    def container(self, name: str) -> Container:
        """Of one that the pod does not speak of yet, that nothing has happened."""
        return next((each for each in self.containers if each.name == name), Container(name))


@dataclass(frozen=True)
class JobSet:
    """reason: of the condition that ended it. message: that condition's, and its failed Job's reason and message."""

    phase: Phase
    reason: str
    message: str
    completed_indexes: tuple[int, ...]
    failed_indexes: tuple[int, ...]
    pods: tuple[Pod, ...]

    @property
    def finished(self) -> bool:
        return self.phase in ("Completed", "Failed")


def look(runtime: Runtime, name: str) -> JobSet:
    """Raises JobSetNotFound."""
    seen = runtime.observe(name)
    if seen.jobset is None:
        raise JobSetNotFound(name)
    phase, reason, message = _phase(seen.jobset)
    failed = [found for job in seen.jobs if phase == "Failed" and (found := condition(job, "Failed"))]
    told = [part for each in failed for part in (each["reason"], each["message"])]
    return JobSet(
        phase,
        reason,
        ": ".join([message, *told]),
        _indexes(seen, "completedIndexes"),
        _indexes(seen, "failedIndexes"),
        _pods(seen),
    )


def _phase(jobset: Mapping[str, Any]) -> tuple[Phase, str, str]:
    ends: tuple[Phase, ...] = ("Completed", "Failed")
    for phase in ends:
        if found := condition(jobset, phase):
            return phase, found["reason"], found["message"]
    return "Suspended" if jobset["spec"].get("suspend") else "Running", "", ""


def _indexes(seen: Observation, which: str) -> tuple[int, ...]:
    return tuple(index for job in seen.jobs for index in indexes.parse(job["status"].get(which, "")))


def _pods(seen: Observation) -> tuple[Pod, ...]:
    """In the order in which they were made; of those made within one second, as they come."""
    attempts: Counter[int] = Counter()
    found = []
    for pod in sorted(seen.pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"])):
        index, status = index_of(pod), pod["status"]
        attempts[index] += 1
        disruption = condition(pod, "DisruptionTarget")
        parts = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
        found.append(
            Pod(
                pod["metadata"]["name"],
                index,
                attempts[index],
                status["phase"],
                disruption["reason"] if disruption else "",
                tuple(_container(each) for each in parts),
            )
        )
    return tuple(found)


def _container(status: Mapping[str, Any]) -> Container:
    ended = (status.get("state") or {}).get("terminated")
    return Container(
        status["name"],
        bool(status.get("started")),
        bool(status.get("ready")),
        status.get("restartCount", 0),
        ended["exitCode"] if ended else None,
    )
