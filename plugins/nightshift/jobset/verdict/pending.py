"""Why an unfinished JobSet does not start, in the words of what holds it up: Kueue, the scheduler, a kubelet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.jobset.labels import QUEUE_LABEL
from nightshift.jobset.observation import Observation, condition, containers
from nightshift.jobset.verdict import indexes
from nightshift.jobset.verdict.exit_codes import in_words
from nightshift.jobset.verdict.pod_ends import EndCause, FailedContainer, PodEnd, failed_container
from nightshift.jobset.verdict.text import fact, look_at, shorten

LATER: Final = "Try again later, or on another compute profile."

_BROKEN: Final = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    }
)
"""Why a container waits if waiting does not help: a wrong name, a missing secret, a program that always exits."""
POD_EVENTS: Final = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")
"""Why a pod that has a node has no volumes or no network: its own status has no words for it."""
_OWNER_EVENTS: Final = ("FailedCreate", "JobCreationFailed", "HeadlessServiceCreationFailed")
"""Events of Jobs and JobSets."""


@dataclass(frozen=True)
class Waiting:
    """What holds a JobSet up.

    subject: what waits, for a sentence: "2 of 8 pods wait". words: the controller's own. advice: what to do, one sentence.
    broken: waiting does not help.
    """

    reason: str
    subject: str
    words: str
    evidence: tuple[str, ...]
    advice: str = LATER
    broken: bool = False
    failed: tuple[FailedContainer, ...] = ()


def waiting_of(seen: Observation, ends: Sequence[PodEnd]) -> Waiting | None:
    """None when every pod that exists has started. ends: of the observation's pods, in their order."""
    jobset = seen.jobset or {}
    if jobset.get("spec", {}).get("suspend"):
        return _suspended(jobset, seen.workload)
    waiting = [pod for pod, end in zip(seen.pods, ends, strict=True) if end.cause is EndCause.WAITING]
    subject = _count(len(waiting), sum(end.cause in (EndCause.WAITING, EndCause.RUNNING) for end in ends))
    return (
        _broken(waiting, subject)
        or _unplaced(waiting, subject)
        or _not_created(seen, ends)
        or _starting(seen, waiting, subject)
    )


def _suspended(jobset: Mapping[str, Any], workload: Mapping[str, Any] | None) -> Waiting:
    name = jobset["metadata"]["name"]
    if workload is None:
        queue = (jobset["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        words = (
            f"Kueue has no Workload for it in queue {queue!r}"
            if queue
            else "it is in no queue, so a user or a program suspended it"
        )
        advice = "Check that Kueue is running." if queue else "Resume the JobSet, or delete it."
        return Waiting("Suspended", f"JobSet {name} is suspended", words, (f"jobset/{name}: suspended",), advice)
    of = f"workload/{workload['metadata']['name']}"
    checks = tuple(
        f"{of}: admission check {each['name']} is {each['state']}: {shorten(each.get('message', ''))}"
        for each in workload.get("status", {}).get("admissionChecks") or ()
        if each["state"] != "Ready"
    )
    evicted = condition(workload, "Evicted")
    unmet = [each for kind in ("QuotaReserved", "Admitted") if (each := condition(workload, kind, "False"))]
    # An eviction explains more than the quota that has been missing since.
    first = evicted or (unmet[0] if unmet else {"type": "Admitted", "reason": "Pending"})
    facts = [*([evicted] if evicted else []), *unmet]
    return Waiting(
        first.get("reason", ""),
        "the JobSet waits in its queue",
        shorten(first.get("message", "")) or "Kueue gives no reason",
        (*(f"{of}: {fact(each)}" for each in facts), *checks),
    )


def _broken(pods: Sequence[Mapping[str, Any]], subject: str) -> Waiting | None:
    found = [
        (pod, container, waits)
        for pod in pods
        for container in containers(pod)
        if (waits := (container.get("state") or {}).get("waiting") or {}).get("reason") in _BROKEN
    ]
    if not found:
        return None
    _, container, waits = found[0]
    words = shorten(waits.get("message", "")) or waits["reason"]
    advice = "Correct the image, the command or the secret that it needs: waiting does not help."
    ends = [(pod, each["name"], (each.get("lastState") or {}).get("terminated")) for pod, each, _ in found]
    if failed := tuple(failed_container(pod, name, ended) for pod, name, ended in ends if ended):
        words = f"it keeps exiting, last with exit code {in_words(failed[0].exit_code, failed[0].reason)}"
        advice = look_at(failed[0])
    return Waiting(
        waits["reason"],
        f"{subject} for container {container['name']}",
        words,
        tuple(
            f"pod/{pod['metadata']['name']}: {each['name']} {waits['reason']}: {shorten(waits.get('message', ''))}"
            for pod, each, waits in found
        ),
        advice,
        broken=True,
        failed=failed,
    )


def _unplaced(pods: Sequence[Mapping[str, Any]], subject: str) -> Waiting | None:
    found = [(pod, each) for pod in pods if (each := condition(pod, "PodScheduled", "False"))]
    if not found:
        return None
    return Waiting(
        found[0][1].get("reason", "Unschedulable"),
        f"{subject} for a node",
        shorten(found[0][1].get("message", "")) or "the scheduler gives no reason",
        tuple(f"pod/{pod['metadata']['name']}: {fact(each)}" for pod, each in found),
    )


def _not_created(seen: Observation, ends: Sequence[PodEnd]) -> Waiting | None:
    """Only events explain why a Job's pods are missing. An old event may be about pods that have been created since."""
    lacking = _wanted(seen.jobs) - sum(end.cause in (EndCause.WAITING, EndCause.RUNNING) for end in ends)
    event = latest(seen.events, _OWNER_EVENTS)
    if event is None or (seen.jobs and lacking <= 0):
        return None
    of = event["involvedObject"]
    line = f"{of['kind'].lower()}/{of['name']}: {event['reason']}: {shorten(event.get('message', ''))}"
    advice = "Change what rejects its pods: a quota, an admission policy, or the manifest."
    subject = f"{n(lacking, 'pod')} cannot be created" if seen.jobs else "its Jobs cannot be created"
    return Waiting(event["reason"], subject, shorten(event.get("message", "")), (line,), advice)


def _wanted(jobs: Sequence[Mapping[str, Any]]) -> int:
    """How many pods should exist now."""
    wanted = 0
    for job in jobs:
        spec, status = job.get("spec", {}), job.get("status", {})
        over = [*indexes.parse(status.get("completedIndexes", "")), *indexes.parse(status.get("failedIndexes", ""))]
        left = spec.get("completions", 1) - max(len(over), status.get("succeeded", 0))
        wanted += 0 if condition(job, "Failed") or condition(job, "Complete") else min(spec.get("parallelism", 1), left)
    return wanted


def _starting(seen: Observation, pods: Sequence[Mapping[str, Any]], subject: str) -> Waiting | None:
    if not pods:
        return None
    names = {pod["metadata"]["name"] for pod in pods}
    troubles = [each for each in seen.events if each["involvedObject"]["name"] in names]
    event = latest(troubles, POD_EVENTS)
    lines = tuple(f"pod/{pod['metadata']['name']}: {_progress(pod)}" for pod in pods)
    if event:
        return Waiting(event["reason"], f"{subject} to start", shorten(event.get("message", "")), lines)
    reasons = [waits["reason"] for each in containers(pods[0]) if (waits := (each.get("state") or {}).get("waiting"))]
    return Waiting(reasons[-1] if reasons else "Pending", f"{subject} to start", _progress(pods[0]), lines)


def _progress(pod: Mapping[str, Any]) -> str:
    """How far the containers are: "server runs, startup probe not yet passed; driver PodInitializing"."""
    parts = []
    for each in containers(pod):
        state = each.get("state") or {}
        if "running" in state:
            parts.append(f"{each['name']} runs" + ("" if each.get("started") else ", startup probe not yet passed"))
        elif ended := state.get("terminated"):
            parts.append(f"{each['name']} ended with exit code {ended['exitCode']}")
        else:
            parts.append(f"{each['name']} {state.get('waiting', {}).get('reason', 'waits')}")
    return "; ".join(parts) or "no kubelet has reported on its containers yet"


def latest(events: Sequence[Mapping[str, Any]], reasons: Sequence[str]) -> Mapping[str, Any] | None:
    """The newest of those with one of the reasons."""
    found = [each for each in events if each.get("reason") in reasons]
    return max(found, key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "", default=None)


def _count(some: int, every: int) -> str:
    """For a sentence: "the pod waits", "all 8 pods wait", "2 of 8 pods wait"."""
    if some == every:
        return "the pod waits" if every == 1 else f"all {every} pods wait"
    return f"{some} of {n(every, 'pod')} {'waits' if some == 1 else 'wait'}"
