"""One JobSet at one moment, as the objects that its cluster's API serves. Pure.

`nightshift.jobset.verdict.outcome` judges it; `nightshift.jobset.kubernetes` collects it. A deleted pod can no longer be
requested, so the watcher keeps its last state, cut down by `slim_pod` to what the verdict reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.jobset.labels import FAILURES_ANNOTATION, INDEX_ANNOTATION, JOB_INDEX_LABEL, REPLICATED_JOB_LABEL, RESTART_LABEL

_ANNOTATIONS: Final = (INDEX_ANNOTATION, FAILURES_ANNOTATION)
_LABELS: Final = (REPLICATED_JOB_LABEL, JOB_INDEX_LABEL, RESTART_LABEL)
_CONDITIONS: Final = ("DisruptionTarget", "PodReadyToStartContainers", "PodScheduled", "Ready")
_CONTAINER_KEYS: Final = ("name", "ready", "started", "restartCount", "state", "lastState")
_STATUS_LISTS: Final = ("initContainerStatuses", "containerStatuses")


@dataclass(frozen=True)
class Observation:
    """The objects as their JSON. jobset: None when it is gone. jobs, pods: its own, pods also deleted ones, slim or whole.
    workload: Kueue's, where there is one. events: of any of these."""

    jobset: Mapping[str, Any] | None
    jobs: tuple[Mapping[str, Any], ...] = ()
    pods: tuple[Mapping[str, Any], ...] = ()
    workload: Mapping[str, Any] | None = None
    events: tuple[Mapping[str, Any], ...] = ()


def condition(thing: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """The object's condition of this type where it is true, or has another status: JobSets carry false ones too."""
    found = thing.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind and each["status"] == status), None)


def containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The statuses of a pod's containers, those of its init containers first."""
    return [each for part in _STATUS_LISTS for each in pod.get("status", {}).get(part) or ()]


def finished(jobset: Mapping[str, Any]) -> bool:
    """Whether it has come to an end of its own; one that was deleted has not."""
    return bool(condition(jobset, "Completed") or condition(jobset, "Failed"))


def moment(seconds: float) -> str:
    """A time, given in seconds since the epoch, as Kubernetes writes it: such texts sort like the times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def slim_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Of a pod's JSON, in the same shape, what its end is judged by: about half a kilobyte."""
    meta, status, spec = pod["metadata"], pod.get("status", {}), pod.get("spec", {})
    slim_status: dict[str, Any] = {key: status[key] for key in ("phase", "reason", "message", "startTime") if key in status}
    slim_status["conditions"] = [each for each in status.get("conditions") or () if each["type"] in _CONDITIONS]
    for part in _STATUS_LISTS:
        slim_status[part] = [{key: each[key] for key in _CONTAINER_KEYS if key in each} for each in status.get(part) or ()]
    slim_meta = {key: meta[key] for key in ("name", "uid", "creationTimestamp", "deletionTimestamp") if key in meta}
    slim_meta["labels"] = {key: value for key, value in (meta.get("labels") or {}).items() if key in _LABELS}
    slim_meta["annotations"] = {key: value for key, value in (meta.get("annotations") or {}).items() if key in _ANNOTATIONS}
    return {"metadata": slim_meta, "spec": {"nodeName": spec.get("nodeName", "")}, "status": slim_status}
