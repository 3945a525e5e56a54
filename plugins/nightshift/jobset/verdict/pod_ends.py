"""What caused one pod's end, by its object. Pure.

The order matters. A drained pod also has an exit code, often 137 or 143, so disruptions are checked before exit codes. A
deleted pod has only its deletionTimestamp, so its exit codes are attributed to the deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.jobset.labels import INDEX_ANNOTATION, JOB_INDEX_LABEL, REPLICATED_JOB_LABEL, RESTART_LABEL
from nightshift.jobset.observation import condition, containers

_TERMINATION_CODES: Final = frozenset({137, 143})
"""The exit codes of a program that ignores SIGTERM until its grace period ends, or has no handler for it."""


class Blame(StrEnum):
    """Whom a kubelet's own word for a pod's end (its status.reason) blames."""

    NODE = "node"
    """Its node, at that moment: another pod, or the same later, may be taken."""
    POD = "pod"
    """What the pod asks for, or has used more of than it may: another one would end in the same way."""


REASONS: Final[Mapping[str, Blame]] = {
    # It refused the pod (kubelet.go: admissionRejectionReasons, and the names of the scheduler's filters that it repeats).
    **dict.fromkeys(
        (
            *("InvalidNodeInfo", "NodeAffinity", "NodeName", "NodePorts", "NodeShutdown", "TaintToleration"),
            *("TopologyAffinityError", "UnexpectedAdmissionError", "UnexpectedPredicateFailureType", "UnknownReason"),
            "VolumeAttachmentLimitExceeded",
        ),
        Blame.NODE,
    ),
    # It ended the pod, or no longer answers; "Shutdown" is what releases before 1.22 wrote.
    **dict.fromkeys(("NodeLost", "Preempting", "Shutdown", "Terminated"), Blame.NODE),
    # It cannot do what the pod asks for, as all nodes of its kind.
    **dict.fromkeys(
        (
            *("AppArmor", "InitContainerRestartPolicyForbidden", "PodFeatureUnsupported", "PodLevelResourcesNotSupported"),
            *("PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "SMTAlignmentError"),
            *("SupplementalGroupsPolicyNotSupported", "SysctlForbidden"),
        ),
        Blame.POD,
    ),
    "DeadlineExceeded": Blame.POD,
}
"""A Job counts all of these as failures of the index: no refused pod has the condition DisruptionTarget, or any other condition
or exit code by which a podFailurePolicy could tell it. So what a node's refusals end is started again by the task."""
_REFUSED_PREFIX: Final = "OutOf"
"""Of a resource, for which another pod was faster: "OutOfcpu", "OutOfnvidia.com/gpu"."""
_EVICTED: Final = "Evicted"
_NODES_WORDS: Final = ("The node had condition", "The node was low on resource")
"""In the message of an eviction; without them the pod went beyond a limit of its own (eviction/helpers.go)."""
_DELETED_POD: Final = "Deleted pod: "
_END_NOT_SEEN: Final = "ContainerStatusUnknown"
"""A kubelet's reason for a container that it found gone: the node went down with it."""


class EndCause(StrEnum):
    """What ended a pod; the first two have not ended."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DISRUPTED = "disrupted"
    """The cluster took it away: a node's end, an eviction, a preemption."""
    DELETED = "deleted"
    """It was deleted while it worked. Kubernetes does not mark this and counts it as a failure."""
    STOPPED = "stopped"
    """Its Job deleted it: the Job was over, or suspended, as Kueue does to preempt."""
    FAILED = "failed"
    """Its own program failed."""


@dataclass(frozen=True)
class JobKey:
    """One Job of a JobSet, across restarts."""

    replicated_job: str
    index: int

    @classmethod
    def of(cls, thing: Mapping[str, Any]) -> JobKey:
        """The key of a Job or of a pod."""
        labels = thing["metadata"].get("labels") or {}
        return cls(labels.get(REPLICATED_JOB_LABEL, ""), int(labels.get(JOB_INDEX_LABEL, 0)))


@dataclass(frozen=True)
class FailedContainer:
    """A container that failed by itself.

    index: the pod's completion index. job_index: of its Job in the replicatedJob, which is the slice if a worker is several
    pods. reason: as Kubernetes names it (Error, OOMKilled, StartError). message: its termination message, or why it could
    not be started. node: '' if it is unknown. lines: its last ones, if they were kept.
    """

    pod: str
    index: int
    job_index: int
    container: str
    exit_code: int
    reason: str
    node: str
    message: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class PodEnd:
    """restart: of the JobSet, from 0. since: when its end began, in Kubernetes' time format, which sorts; '' if unknown.

    reason: of the disruption, the kubelet or the container; '' until the pod ends.
    failed: its containers that failed by themselves; only if the cause is FAILED.
    unknown: the reason is a kubelet's that is not in `REASONS`.
    """

    name: str
    job: JobKey
    restart: int
    index: int
    cause: EndCause
    reason: str = ""
    message: str = ""
    since: str = ""
    failed: tuple[FailedContainer, ...] = ()
    unknown: bool = False


def restart_of(thing: Mapping[str, Any]) -> int:
    """In which restart of its JobSet a Job or pod was created."""
    return int((thing["metadata"].get("labels") or {}).get(RESTART_LABEL, 0))


def stopped_by_jobs(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Names of the pods that Jobs deleted, by their events. Kubernetes keeps events for an hour."""
    messages = [each.get("message", "") for each in events if each.get("reason") == "SuccessfulDelete"]
    return frozenset(message.removeprefix(_DELETED_POD) for message in messages if message.startswith(_DELETED_POD))


def end_of(
    pod: Mapping[str, Any], *, resume_codes: Collection[int], permanent_codes: Collection[int], stopped: Collection[str] = ()
) -> PodEnd:
    """resume_codes: of a program that exits early on SIGTERM. permanent_codes: of one that is not retryable; that
    is its own failure even after a deletion. stopped: `stopped_by_jobs`."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")

    def end(cause: EndCause, **more: Any) -> PodEnd:
        return PodEnd(pod["metadata"]["name"], JobKey.of(pod), restart_of(pod), index_of(pod), cause, **more)

    if phase == "Succeeded":
        return end(EndCause.SUCCEEDED)
    own = tuple(_own_failures(pod))
    since = min((at for _, at in own), default=pod["metadata"].get("deletionTimestamp", ""))
    kubelet = status.get("reason", "")
    unknown = bool(kubelet) and _blame(kubelet, status.get("message", "")) is None
    if disruption := disruption_of(pod):
        why = {"reason": disruption.get("reason", ""), "message": disruption.get("message", "")}
        unknown = unknown and why["reason"] == kubelet
        return end(EndCause.DISRUPTED, since=disruption.get("lastTransitionTime") or since, unknown=unknown, **why)
    failed = tuple(each for each, _ in own)
    drained = {*resume_codes, *_TERMINATION_CODES}.difference(permanent_codes)
    if "deletionTimestamp" in pod["metadata"] and all(_may_be_drained(each, drained) for each in failed):
        codes = ", ".join(f"{each.container} ended with exit code {each.exit_code}" for each in failed)
        cause, reason = (EndCause.STOPPED, "Stopped") if pod["metadata"]["name"] in stopped else (EndCause.DELETED, "Deleted")
        return end(cause, reason=reason, message=codes or "how its containers ended is unknown", since=since)
    ended = phase == "Failed" or "deletionTimestamp" in pod["metadata"]
    if not ended:
        return end(EndCause.WAITING if phase == "Pending" else EndCause.RUNNING)
    if failed and all(each.reason == _END_NOT_SEEN for each in failed):
        return end(EndCause.DISRUPTED, reason=_END_NOT_SEEN, since=since)
    reason = kubelet or (failed[0].reason if failed else "")
    message = status.get("message", "")
    return end(EndCause.FAILED, reason=reason, message=message, since=since, failed=failed, unknown=unknown)


def disruption_of(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """reason and message of what took a pod away, or refused it; None if nothing did. By its object, gone or not.

    A kubelet's unknown word for a pod of which no container has begun is a refusal by its node, which another attempt survives.
    """
    if marked := condition(pod, "DisruptionTarget"):
        return marked
    status = pod.get("status", {})
    reason, message = status.get("reason", ""), status.get("message", "")
    blame = _blame(reason, message) if reason else Blame.POD
    never_began = status.get("phase") == "Failed" and not any(map(_begun, containers(pod)))
    if blame is Blame.NODE or (blame is None and never_began):
        return {"reason": reason, "message": message}
    return None


def _blame(reason: str, message: str) -> Blame | None:
    """None for a word that is not known."""
    if reason == _EVICTED:
        return Blame.NODE if any(words in message for words in _NODES_WORDS) else Blame.POD
    return Blame.NODE if reason.startswith(_REFUSED_PREFIX) else REASONS.get(reason)


def index_of(pod: Mapping[str, Any]) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, 0))


def _may_be_drained(failed: FailedContainer, drained: Collection[int]) -> bool:
    return failed.exit_code in drained and failed.reason != "OOMKilled"


def _own_failures(pod: Mapping[str, Any]) -> Iterator[tuple[FailedContainer, str]]:
    """Each failed container that decides about the pod, with the time of its failure.

    These are main containers. Init containers count only if no main one has begun: a sidecar's exit code decides nothing.
    """
    status = pod.get("status", {})
    main = list(_failures(pod, status.get("containerStatuses") or ()))
    begun = main or any(_begun(each) for each in status.get("containerStatuses") or ())
    yield from main if begun else _failures(pod, status.get("initContainerStatuses") or ())


def _begun(container: Mapping[str, Any]) -> bool:
    return bool({"running", "terminated"}.intersection(container.get("state") or {}))


def _failures(pod: Mapping[str, Any], among: Collection[Mapping[str, Any]]) -> Iterator[tuple[FailedContainer, str]]:
    for container in among:
        # With restartPolicy OnFailure a container fails without its pod, which may be ended later.
        states = ("lastState", "state") if container.get("restartCount") else ("state",)
        for state in states:
            ended = (container.get(state) or {}).get("terminated")
            if ended and ended["exitCode"]:
                yield failed_container(pod, container["name"], ended), ended.get("finishedAt") or ""


def failed_container(pod: Mapping[str, Any], container: str, ended: Mapping[str, Any]) -> FailedContainer:
    """ended: the `terminated` of its state."""
    return FailedContainer(
        pod=pod["metadata"]["name"],
        index=index_of(pod),
        job_index=JobKey.of(pod).index,
        container=container,
        exit_code=ended["exitCode"],
        reason=ended.get("reason", ""),
        node=pod.get("spec", {}).get("nodeName", ""),
        message=ended.get("message", ""),
    )
