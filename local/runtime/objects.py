"""What the agent knows about a JobSet, as the objects that a cluster's API serves: JobSet, Job, Pods, events. Pure.

`nightshift.jobset.verdict` judges these objects, whichever runtime they come from. They contain everything that is
read from a cluster's objects, except uids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from local.runtime import policy
from local.runtime.model import JobSetSpec
from local.runtime.records import JobSetRecord, PodRecord
from nightshift.jobset.labels import (
    FAILURES_ANNOTATION,
    IGNORED_FAILURES_ANNOTATION,
    INDEX_ANNOTATION,
    JOB_INDEX_LABEL,
    JOB_NAME_LABEL,
    JOBSET_NAME_LABEL,
    REPLICATED_JOB_LABEL,
    RESTART_LABEL,
)
from nightshift.jobset.observation import moment
from nightshift.jobset.verdict import indexes

Objects = dict[str, Any]

EVICTED: Final = "EvictionByEvictionAPI"
_DISRUPTIONS: Final = {
    EVICTED: "Eviction API: evicting",
    "DeletionByPodGC": "PodGC: node no longer exists",
    "TerminationByKubelet": "Pod was terminated in response to imminent node shutdown.",
}


def objects(
    jobset: Mapping[str, Any], spec: JobSetSpec, record: JobSetRecord, node: str, stopped_at: float | None = None
) -> Objects:
    """{"jobset": JobSet, "jobs": [Job], "pods": [Pod, ...], "events": [...]}; no Job before the JobSet has started.

    jobset: without its status. node: the name of the only one. stopped_at: when its deletion began, in seconds since the epoch.
    """
    metadata = jobset["metadata"]
    if stopped_at:
        metadata = {**metadata, "deletionTimestamp": moment(stopped_at), "finalizers": ["foregroundDeletion"]}
    started = bool(record.started_at)
    return {
        "jobset": {**jobset, "metadata": metadata, "status": {"conditions": _jobset_conditions(spec, record)}},
        "jobs": [_job(jobset, spec, record)] if started else [],
        "pods": [_pod(spec, pod, node) for pod in record.pods],
        "events": [_deleted_event(spec, pod) for pod in record.pods if pod.deleted_at],
    }


def refused(manifest: Mapping[str, Any], reason: str, message: str, now: float) -> Objects:
    """The objects of a JobSet that will never start. The manifest may lack anything but its metadata."""
    jobset = {**manifest, "status": {"conditions": [_condition("Failed", reason, message, now)]}}
    return {"jobset": jobset, "jobs": [], "pods": [], "events": []}


def _jobset_conditions(spec: JobSetSpec, record: JobSetRecord) -> list[Objects]:
    """There is no failurePolicy: the first failed Job fails the JobSet."""
    if not record.finished_at or record.end is None:
        return []
    if record.end.succeeded:
        return [_condition("Completed", "AllJobsCompleted", "jobset completed successfully", record.finished_at)]
    message = f"jobset failed due to one or more job failures (first failed job: {spec.job_name})"
    return [_condition("Failed", "FailedJobs", message, record.finished_at)]


def _job(manifest: Mapping[str, Any], spec: JobSetSpec, record: JobSetRecord) -> Objects:
    template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pods = [pod.view() for pod in record.pods]
    status: Objects = {
        "startTime": moment(record.started_at),
        "conditions": _job_conditions(record),
        "active": sum(not pod.ruling for pod in record.pods),
        "succeeded": sum(pod.phase == "Succeeded" for pod in record.pods),
        "failed": sum(pod.phase == "Failed" for pod in record.pods),
        "completedIndexes": indexes.write(policy.completed_indexes(pods)),
    }
    if failed := policy.failed_indexes(spec.job, pods):
        status["failedIndexes"] = indexes.write(failed)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": spec.job_name,
            "namespace": spec.namespace,
            "uid": spec.job_name,
            "creationTimestamp": moment(record.started_at),
            "labels": _labels(spec),
        },
        "spec": {key: value for key, value in template.items() if key != "template"},
        "status": status,
    }


def _job_conditions(record: JobSetRecord) -> list[Objects]:
    """That the Job's end is decided, and, once its last pods have ended, the end."""
    end = record.end
    if end is None:
        return []
    decided, over = ("SuccessCriteriaMet", "Complete") if end.succeeded else ("FailureTarget", "Failed")
    found = [_condition(decided, end.reason, end.message, record.decided_at)]
    return [*found, _condition(over, end.reason, end.message, record.finished_at)] if record.finished_at else found


def _pod(spec: JobSetSpec, pod: PodRecord, node: str) -> Objects:
    metadata: Objects = {
        "name": pod.name,
        "namespace": spec.namespace,
        "uid": pod.name,
        "creationTimestamp": moment(pod.created_at),
        "labels": {**dict(spec.pod.labels), **_labels(spec), INDEX_ANNOTATION: str(pod.index)},
        "annotations": {
            **dict(spec.pod.annotations),
            INDEX_ANNOTATION: str(pod.index),
            FAILURES_ANNOTATION: str(pod.failures),
            IGNORED_FAILURES_ANNOTATION: str(pod.ignored),
        },
    }
    # An eviction is a deletion, too.
    if deleted_at := pod.deleted_at or (pod.disrupted_at if pod.reason == EVICTED else 0.0):
        metadata["deletionTimestamp"] = moment(deleted_at + spec.pod.grace_s)
    conditions = []
    if pod.reason:
        conditions.append(_condition("DisruptionTarget", pod.reason, _DISRUPTIONS.get(pod.reason, ""), pod.disrupted_at))
    if not pod.bound and not pod.ruling:
        full = "0/1 nodes are available: 1 Too many pods."
        conditions.append({**_condition("PodScheduled", "Unschedulable", full, pod.created_at), "status": "False"})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node} if pod.bound else {},
        "status": {"phase": pod.phase, "conditions": conditions, **pod.containers},
    }


def _deleted_event(spec: JobSetSpec, pod: PodRecord) -> Objects:
    """The event with which a Job reports that it ended a pod itself; only this distinguishes that end from a user's."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{spec.job_name}.{pod.name}", "namespace": spec.namespace, "uid": pod.name},
        "type": "Normal",
        "reason": "SuccessfulDelete",
        "message": f"Deleted pod: {pod.name}",
        "involvedObject": {"kind": "Job", "name": spec.job_name},
        "lastTimestamp": moment(pod.deleted_at),
    }


def _labels(spec: JobSetSpec) -> dict[str, str]:
    """Labels of a Job and of its pods."""
    return {
        JOBSET_NAME_LABEL: spec.name,
        REPLICATED_JOB_LABEL: spec.replicated_job,
        JOB_INDEX_LABEL: "0",
        RESTART_LABEL: "0",
        JOB_NAME_LABEL: spec.job_name,
    }


def _condition(kind: str, reason: str, message: str, at: float) -> Objects:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": moment(at)}


def terminated(
    exit_code: int, *, reason: str = "", message: str = "", at: tuple[float, float] | None = None, container_id: str = ""
) -> Objects:
    """The state of a container that has ended. reason: Error or Completed if absent. at: when it began and ended."""
    ended: Objects = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed")}
    if message:
        ended["message"] = message
    if at:
        ended |= {"startedAt": moment(at[0]), "finishedAt": moment(at[1])}
    if container_id:
        ended["containerID"] = container_id
    return {"terminated": ended}


def container_status(
    name: str,
    image: str,
    *,
    state: Objects,
    last_state: Objects | None = None,
    started: bool = False,
    ready: bool = False,
    restarts: int = 0,
    container_id: str = "",
) -> Objects:
    """An entry of a pod's containerStatuses, as a kubelet writes it."""
    return {
        "name": name,
        "image": image,
        "started": started,
        "ready": ready,
        "restartCount": restarts,
        "state": state,
        "lastState": last_state or {},
        **({"containerID": container_id} if container_id else {}),
    }
