"""Reads the status.json of nightshift 0.1.0's agent, so that a night begun under it continues under this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from local.runtime.objects import container_status, terminated
from local.runtime.policy import JobEnd
from local.runtime.records import Containers, JobSetRecord, PodRecord


def record_of_0_1(state: Mapping[str, Any], manifest: Mapping[str, Any], created_at: float) -> JobSetRecord:
    """state: what that agent recorded. created_at: the JobSet's, for the times that it did not record."""
    template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    init = [each["name"] for each in template.get("initContainers") or ()]
    finished_at = float(state["finished_at"])
    pods = []
    for old in state["pods"]:
        ended_at = float(old["ended_at"])
        pods.append(
            PodRecord(
                **{key: old[key] for key in ("name", "index", "attempt", "failures", "ignored", "phase", "bound", "reason")},
                created_at=created_at,
                disrupted_at=(ended_at or created_at) if old["reason"] else 0.0,
                deleted_at=ended_at if old["outcome"] == "Deleted" else 0.0,
                containers=_containers(old["containers"], init, created_at, ended_at),
                ruling=old["outcome"],
                message=old["message"],
                ended_at=ended_at,
            )
        )
    end = JobEnd(**state["ending"]) if state["ending"] else None
    decided_at = finished_at or max((pod.ended_at for pod in pods), default=0.0) if end else 0.0
    return JobSetRecord(float(state["started_at"]), decided_at, finished_at, end, pods)


def _containers(old: Collection[Mapping[str, Any]], init: Collection[str], began: float, ended: float) -> Containers:
    found: Containers = {"initContainerStatuses": [], "containerStatuses": []}
    for each in old:
        state: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
        if each["exit_code"] is not None:
            state = terminated(each["exit_code"], at=(began, ended or began))
        elif each["started"]:
            state = {"running": {}}
        status = container_status(
            each["name"], "", state=state, started=each["started"], ready=each["ready"], restarts=each["restarts"]
        )
        found["initContainerStatuses" if each["name"] in init else "containerStatuses"].append(status)
    return found
