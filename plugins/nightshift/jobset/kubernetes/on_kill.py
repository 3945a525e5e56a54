"""What happens to a JobSet when a user ends the task that waits for it: the attempt that owns it deletes or suspends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.labels import OWNER_ANNOTATION, QUEUE_LABEL
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound

TRIES: Final = 10


def signed(owner: str, follower: str) -> str:
    """An attempt's id, and that of the follower that follows the JobSet for it; '' before there is one."""
    return f"{owner}#{follower}" if follower else owner


def owner_of(jobset: Mapping[str, Any]) -> str:
    """'' if it is not signed."""
    return _signature(jobset)[0]


async def apply_kill_policy(
    api: AsyncJobSetApi, name: str, uid: str, owner: str, follower: str, policy: Literal["delete", "suspend"]
) -> str:
    """What was done, in a sentence. Raises RuntimeUnavailable, RequestRefused. follower: '' if it has not signed yet.

    If you clear a task, a new attempt starts while the old one's trigger is cancelled: that attempt may have adopted the
    JobSet already. And a triggerer that stood still until another took over its triggers cancels them when it wakes up
    (Airflow 3.3: `TriggerRunnerSupervisor.update_triggers`). So the signature is read, and only that version is deleted.
    """
    for _ in range(TRIES):
        try:
            jobset = await api.get_jobset(name)
            meta = jobset["metadata"]
            if meta["uid"] != uid:
                return f"JobSet {name} is gone, and another one has its name"
            theirs, followed_by = _signature(jobset)
            if theirs != owner:
                return f"JobSet {name} keeps running: another attempt of the task waits for it"
            if follower and followed_by != follower:
                return f"JobSet {name} keeps running: another triggerer follows it"
            if policy == "delete":
                await api.delete_jobset(name, uid=uid, resource_version=meta["resourceVersion"])
                return f"JobSet {name} is being deleted: a user ended its task"
            await _suspend(api, jobset)
            return f"JobSet {name} is suspended: a user ended its task"
        except JobSetNotFound:
            return f"JobSet {name} is already gone"
        except JobSetExists:
            continue
    return f"JobSet {name} changes too often to be ended"


def _signature(jobset: Mapping[str, Any]) -> tuple[str, str]:
    owner, _, follower = (jobset["metadata"].get("annotations") or {}).get(OWNER_ANNOTATION, "").partition("#")
    return owner, follower


async def _suspend(api: AsyncJobSetApi, jobset: Mapping[str, Any]) -> None:
    meta = jobset["metadata"]
    if QUEUE_LABEL in (meta.get("labels") or {}) and (workload := await api.get_workload(meta["uid"])):
        # Kueue decides whether a JobSet of its queues is suspended; it would admit one that is suspended directly.
        await api.patch_workload(workload["metadata"]["name"], {"spec": {"active": False}})
        return
    await api.patch_jobset(meta["name"], {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"suspend": True}})
