"""A JobSet's objects as the status that every runtime gives, and the way back. Pure.

`status_of` serves a runtime over a cluster. By `observation_of` the judgement of a cluster's objects serves the local runtime
too. The one undoes the other: ``status_of(observation_of(s, ...)) == s``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nightshift.jobset.observation import INDEX_ANNOTATION, Observation, condition
from nightshift.jobset.runtime import ContainerStatus, JobSetNotFound, JobSetStatus, Phase, PodStatus
from nightshift.jobset.verdict import indexes
from nightshift.jobset.verdict.exit_codes import signal_name
from nightshift.jobset.verdict.pod_ends import JobKey, index_of

JOB_REASONS: Final = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_JOB_PART: Final = re.compile(rf"^(.*?): ({'|'.join(JOB_REASONS)})(?:: (.*))?$", re.DOTALL)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def status_of(observation: Observation) -> JobSetStatus:
    """Raises JobSetNotFound where there is no JobSet.

    The pods of a JobSet of several Jobs are numbered through, in the order of its replicatedJobs; so are its indexes.
    """
    jobset = observation.jobset
    if jobset is None:
        raise JobSetNotFound("there is no such JobSet")
    firsts = _first_indexes(jobset)
    phase, reason, message = _phase(jobset)
    if phase == "Failed":
        message = ": ".join([message, *_job_parts(observation.jobs)])
    return JobSetStatus(
        name=jobset["metadata"]["name"],
        phase=phase,
        reason=reason,
        message=message,
        completed_indexes=_indexes(observation, firsts, "completedIndexes"),
        failed_indexes=_indexes(observation, firsts, "failedIndexes"),
        pods=_pods(observation, firsts),
        annotations=dict(jobset["metadata"].get("annotations") or {}),
    )


def observation_of(status: JobSetStatus, *, init_containers: Collection[str]) -> Observation:
    """The objects that a cluster would serve for this status, as far as a judgement reads them.

    init_containers: names of those of the manifest, sidecars included: a status does not tell them from the others.
    Creation times only keep the order of the pods, which is that of their making.
    """
    conditions, job_conditions = [], []
    if status.finished:
        message = status.message
        if status.phase == "Failed" and (parts := _JOB_PART.match(message)):
            message, reason, told = parts.groups()
            job_conditions.append({"type": "Failed", "status": "True", "reason": reason, "message": told or ""})
        conditions.append({"type": status.phase, "status": "True", "reason": status.reason, "message": message})
    job_status: dict[str, Any] = {"conditions": job_conditions, "completedIndexes": indexes.write(status.completed_indexes)}
    if status.failed_indexes:
        job_status["failedIndexes"] = indexes.write(status.failed_indexes)
    return Observation(
        jobset={
            "metadata": {"name": status.name, "annotations": dict(status.annotations)},
            "spec": {"suspend": status.phase == "Suspended"},
            "status": {"conditions": conditions},
        },
        jobs=({"metadata": {"name": status.name}, "status": job_status},),
        pods=tuple(_pod_object(pod, number, init_containers) for number, pod in enumerate(status.pods)),
    )


def _phase(jobset: Mapping[str, Any]) -> tuple[Phase, str, str]:
    for phase in ("Completed", "Failed"):
        if found := condition(jobset, phase):
            return phase, found.get("reason", ""), found.get("message", "")
    return "Suspended" if jobset["spec"].get("suspend") else "Running", "", ""


def _job_parts(jobs: Collection[Mapping[str, Any]]) -> list[str]:
    """Reason and message of the Job that failed first."""
    failed = [found for job in jobs if (found := condition(job, "Failed"))]
    first = min(failed, key=lambda found: found.get("lastTransitionTime", ""), default=None)
    return [part for part in (first.get("reason"), first.get("message")) if part] if first else []


def _first_indexes(jobset: Mapping[str, Any]) -> dict[JobKey, int]:
    """Job -> the number that its first pod has in the JobSet."""
    found: dict[JobKey, int] = {}
    number = 0
    for replicated in jobset["spec"].get("replicatedJobs") or ():
        job = replicated["template"]["spec"]
        for replica in range(replicated.get("replicas", 1)):
            found[JobKey(replicated["name"], replica)] = number
            number += job.get("completions", job.get("parallelism", 1))
    return found


def _indexes(observation: Observation, firsts: Mapping[JobKey, int], which: str) -> tuple[int, ...]:
    found = [
        firsts.get(JobKey.of(job), 0) + index
        for job in observation.jobs
        for index in indexes.parse(job.get("status", {}).get(which, ""))
    ]
    return tuple(sorted(found))


def _pods(observation: Observation, firsts: Mapping[JobKey, int]) -> tuple[PodStatus, ...]:
    """In the order in which they were made."""
    attempts: Counter[int] = Counter()
    found = []
    for pod in sorted(observation.pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])):
        index = firsts.get(JobKey.of(pod), 0) + index_of(pod)
        attempts[index] += 1
        found.append(_pod_status(pod, index, attempts[index]))
    return tuple(found)


def _pod_status(pod: Mapping[str, Any], index: int, attempt: int) -> PodStatus:
    status = pod.get("status", {})
    disruption = condition(pod, "DisruptionTarget")
    parts = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    return PodStatus(
        name=pod["metadata"]["name"],
        index=index,
        attempt=attempt,
        # Its fifth phase, Unknown, has not been set by any Kubernetes since 2015.
        phase=status.get("phase", "Pending"),
        reason=disruption.get("reason", "") if disruption else "",
        containers=tuple(_container_status(container) for container in parts),
    )


def _container_status(container: Mapping[str, Any]) -> ContainerStatus:
    ended = (container.get("state") or {}).get("terminated")
    code = ended["exitCode"] if ended else None
    return ContainerStatus(
        name=container["name"],
        started=bool(container.get("started")),
        ready=bool(container.get("ready")),
        restarts=container.get("restartCount", 0),
        exit_code=code,
        signal=_signal(ended) if ended else None,
    )


def _signal(ended: Mapping[str, Any]) -> int | None:
    """Container runtimes leave the field out and say a signal by the exit code."""
    if "signal" in ended:
        return ended["signal"] or None
    return ended["exitCode"] - 128 if signal_name(ended["exitCode"]) else None


def _pod_object(pod: PodStatus, number: int, init_containers: Collection[str]) -> dict[str, Any]:
    conditions = [{"type": "DisruptionTarget", "status": "True", "reason": pod.reason}] if pod.reason else []
    created = _EPOCH + timedelta(seconds=number)
    return {
        "metadata": {
            "name": pod.name,
            "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "annotations": {INDEX_ANNOTATION: str(pod.index)},
        },
        "status": {
            "phase": pod.phase,
            "conditions": conditions,
            "initContainerStatuses": [_container_object(each) for each in pod.containers if each.name in init_containers],
            "containerStatuses": [_container_object(each) for each in pod.containers if each.name not in init_containers],
        },
    }


def _container_object(container: ContainerStatus) -> dict[str, Any]:
    state: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
    if container.exit_code is not None:
        # 0 where no signal ended it: left out, the exit code would tell.
        ended = {"exitCode": container.exit_code, "signal": container.signal or 0}
        state = {"terminated": {**ended, "reason": "Error" if container.exit_code else "Completed"}}
    elif container.started:
        state = {"running": {}}
    return {
        "name": container.name,
        "started": container.started,
        "ready": container.ready,
        "restartCount": container.restarts,
        "state": state,
    }
