"""Ends a JobSet for the attempt that waits for it, and for no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from nightshift.jobset.cluster.aio import AsyncJobSetApi
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound

OWNER_ANNOTATION: Final = "nightshift.dev/owner"
"""Which attempt of a task waits for the JobSet: whoever adopts it writes its own id."""
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
TRIES: Final = 10


async def end_jobset(api: AsyncJobSetApi, name: str, uid: str, owner: str, policy: Literal["delete", "suspend"]) -> str:
    """What was done, in a sentence. Raises RuntimeUnavailable, RequestRefused.

    A person who clears a task starts a new attempt while the old one's trigger is being told: that attempt may have adopted
    the JobSet by now. So the owner is read, and the deletion holds only for the version that was read.
    """
    for _ in range(TRIES):
        try:
            jobset = await api.get_jobset(name)
            meta = jobset["metadata"]
            if meta["uid"] != uid:
                return f"JobSet {name} is gone; another one has its name"
            if (meta.get("annotations") or {}).get(OWNER_ANNOTATION, "") != owner:
                return f"JobSet {name} works on: another attempt of the task waits for it"
            if policy == "delete":
                await api.delete_jobset(name, uid=uid, resource_version=meta["resourceVersion"])
                return f"JobSet {name} is being deleted: its task was ended by a person"
            await _suspend(api, jobset)
            return f"JobSet {name} is suspended: its task was ended by a person"
        except JobSetNotFound:
            return f"JobSet {name} is gone already"
        except JobSetExists:
            continue
    return f"JobSet {name} changes too often to be ended"


async def _suspend(api: AsyncJobSetApi, jobset: Mapping[str, Any]) -> None:
    meta = jobset["metadata"]
    if QUEUE_LABEL in (meta.get("labels") or {}) and (workload := await api.get_workload(meta["uid"])):
        # Kueue decides whether a JobSet of its queues is suspended; asked directly, it would admit it again.
        await api.patch_workload(workload["metadata"]["name"], {"spec": {"active": False}})
        return
    await api.patch_jobset(meta["name"], {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"suspend": True}})
