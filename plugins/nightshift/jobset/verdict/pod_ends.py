"""What one pod's object says of its end: whose doing it was. Pure.

The order matters. A pod that is drained also has an exit code, often 137 or 143, so a disruption is looked for before any exit
code is read; and a pod that somebody deletes has no mark but its deletionTimestamp, so its codes are those of its deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.jobset.labels import INDEX_ANNOTATION, JOB_INDEX_LABEL, REPLICATED_JOB_LABEL, RESTART_LABEL
from nightshift.jobset.observation import condition
from nightshift.jobset.verdict.exit_codes import signal_name

_TERMINATION_CODES: Final = frozenset({137, 143})
"""What a program leaves that ignores SIGTERM to the end of its grace period, or has no handler for it."""

NODE_REASONS: Final = frozenset(
    {"Terminated", "NodeShutdown", "Shutdown", "NodeLost", "NodeAffinity", "Preempting", "UnexpectedAdmissionError"}
)
"""Words of a kubelet, in a pod's status.reason, for a pod that it ended or refused for its node's sake."""
_REFUSED_PREFIX: Final = "OutOf"
_DELETED_POD: Final = "Deleted pod: "
_END_NOT_SEEN: Final = "ContainerStatusUnknown"
"""A kubelet's word for a container that was gone when it looked: the node went down with it."""


class EndCause(StrEnum):
    """Whose doing a pod's end was; the first two live."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DISRUPTED = "disrupted"
    """The cluster took it away: a node's end, an eviction, a preemption."""
    DELETED = "deleted"
    """Somebody deleted it while it worked. Kubernetes has no mark for it and counts it as a failure."""
    STOPPED = "stopped"
    """Its Job deleted it: the Job was over, or suspended, as Kueue does to preempt."""
    FAILED = "failed"
    """Its own program's."""


@dataclass(frozen=True)
class JobKey:
    """One Job of a JobSet, in all its restarts."""

    replicated_job: str
    index: int

    @classmethod
    def of(cls, thing: Mapping[str, Any]) -> JobKey:
        """Of a Job or a pod."""
        labels = thing["metadata"].get("labels") or {}
        return cls(labels.get(REPLICATED_JOB_LABEL, ""), int(labels.get(JOB_INDEX_LABEL, 0)))


@dataclass(frozen=True)
class FailedContainer:
    """A container that ended with a failure of its own.

    index: the pod's completion index. job_index: of its Job in the replicatedJob: the slice, where a worker is several pods.
    reason: Kubernetes' word (Error, OOMKilled, StartError). message: its termination message, or why it could not be started.
    node: '' when it is not known.
    """

    pod: str
    index: int
    job_index: int
    container: str
    exit_code: int
    signal_name: str | None
    reason: str
    node: str
    message: str = ""


@dataclass(frozen=True)
class PodEnd:
    """restart: of the JobSet, from 0. since: when its end began, as Kubernetes writes times, which sort; '' when not known.

    reason: the disruption's word, the kubelet's, or that of the container; '' while it lives.
    failed: its containers that ended with a failure of their own; only where the cause is FAILED.
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


def restart_of(thing: Mapping[str, Any]) -> int:
    """Of a Job or a pod: in which restart of its JobSet it was made."""
    return int((thing["metadata"].get("labels") or {}).get(RESTART_LABEL, 0))


def stopped_by_jobs(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Names of the pods that Jobs say they deleted. Kubernetes keeps events for an hour."""
    told = [each.get("message", "") for each in events if each.get("reason") == "SuccessfulDelete"]
    return frozenset(message.removeprefix(_DELETED_POD) for message in told if message.startswith(_DELETED_POD))


def end_of(
    pod: Mapping[str, Any], *, resume_codes: Collection[int], permanent_codes: Collection[int], stopped: Collection[str] = ()
) -> PodEnd:
    """resume_codes: with which the program says that it ends early because it was told to. permanent_codes: with which it says
    that trying again cannot help, which is its own failure even after a deletion. stopped: `stopped_by_jobs`."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")

    def end(cause: EndCause, **more: Any) -> PodEnd:
        return PodEnd(pod["metadata"]["name"], JobKey.of(pod), restart_of(pod), index_of(pod), cause, **more)

    if phase == "Succeeded":
        return end(EndCause.SUCCEEDED)
    own = tuple(_own_failures(pod))
    since = min((at for _, at in own), default=pod["metadata"].get("deletionTimestamp", ""))
    if disruption := condition(pod, "DisruptionTarget"):
        told = {"reason": disruption.get("reason", ""), "message": disruption.get("message", "")}
        return end(EndCause.DISRUPTED, since=disruption.get("lastTransitionTime") or since, **told)
    kubelet = status.get("reason", "")
    if kubelet in NODE_REASONS or kubelet.startswith(_REFUSED_PREFIX):
        return end(EndCause.DISRUPTED, reason=kubelet, message=status.get("message", ""), since=since)
    failed = tuple(each for each, _ in own)
    drained = {*resume_codes, *_TERMINATION_CODES}.difference(permanent_codes)
    if "deletionTimestamp" in pod["metadata"] and all(_may_be_told(each, drained) for each in failed):
        codes = ", ".join(f"{each.container} ended with exit code {each.exit_code}" for each in failed)
        cause, reason = (EndCause.STOPPED, "Stopped") if pod["metadata"]["name"] in stopped else (EndCause.DELETED, "Deleted")
        return end(cause, reason=reason, message=codes or "how its containers ended is not known", since=since)
    ended = phase == "Failed" or "deletionTimestamp" in pod["metadata"]
    if not ended:
        return end(EndCause.WAITING if phase == "Pending" else EndCause.RUNNING)
    if failed and all(each.reason == _END_NOT_SEEN for each in failed):
        return end(EndCause.DISRUPTED, reason=_END_NOT_SEEN, since=since)
    reason = kubelet or (failed[0].reason if failed else "")
    return end(EndCause.FAILED, reason=reason, message=status.get("message", ""), since=since, failed=failed)


def index_of(pod: Mapping[str, Any]) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX_ANNOTATION, 0))


def _may_be_told(failed: FailedContainer, drained: Collection[int]) -> bool:
    return failed.exit_code in drained and failed.reason != "OOMKilled"


def _own_failures(pod: Mapping[str, Any]) -> Iterator[tuple[FailedContainer, str]]:
    """Each container whose end decides about the pod and was a failure, with the time of that.

    Main containers; the init containers only where no main one has begun: a sidecar's exit code decides nothing.
    """
    status = pod.get("status", {})
    main = list(_failures(pod, status.get("containerStatuses") or ()))
    begun = main or any(_begun(each) for each in status.get("containerStatuses") or ())
    yield from main if begun else _failures(pod, status.get("initContainerStatuses") or ())


def _begun(container: Mapping[str, Any]) -> bool:
    return bool({"running", "terminated"}.intersection(container.get("state") or {}))


def _failures(pod: Mapping[str, Any], containers: Collection[Mapping[str, Any]]) -> Iterator[tuple[FailedContainer, str]]:
    for container in containers:
        # Under restartPolicy OnFailure a container fails without its pod, and may be told to end later.
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
        signal_name=signal_name(ended["exitCode"]),
        reason=ended.get("reason", ""),
        node=pod.get("spec", {}).get("nodeName", ""),
        message=ended.get("message", ""),
    )
