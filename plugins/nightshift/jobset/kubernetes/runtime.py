"""`nightshift.jobset.runtime.Runtime` on a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, PAUSED_ANNOTATION, QUEUE_LABEL, RUN_LABEL
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound

WORKLOAD_S: Final = 10.0
"""How long Kueue may take to make its Workload for a new JobSet that is to be paused."""


class KubernetesRuntime:
    """One namespace of the cluster that `api` has the credentials for. Raises what `JobSetApi` raises."""

    def __init__(self, api: JobSetApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def submit(self, manifest: Mapping[str, Any]) -> str:
        return str(self._api.create_jobset(self._namespace, manifest)["metadata"]["uid"])

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        return self._api.observe(self._namespace, name, closely=closely)

    def claim(self, name: str, uid: str, owner: str) -> None:
        """Also resumes a JobSet that was suspended by a kill of its task, unless it is paused."""
        patch = {"metadata": {"uid": uid, "annotations": {OWNER_ANNOTATION: owner}}}
        jobset = self._patch(name, patch)
        if PAUSED_ANNOTATION not in (jobset["metadata"].get("annotations") or {}):
            self._unsuspend(jobset)

    def jobsets(self, run_id: str) -> list[dict[str, Any]]:
        return self._api.list_jobsets(self._namespace, f"{RUN_LABEL}={run_id}")

    def pause(self, name: str, note: str) -> None:
        """Kueue suspends a JobSet of its queues if its Workload is not active; without Kueue, the JobSet itself is suspended.

        The annotation comes first, so that followers know why the pods go.
        """
        jobset = self._patch(name, {"metadata": {"annotations": {PAUSED_ANNOTATION: note}}})
        meta = jobset["metadata"]
        if QUEUE_LABEL in (meta.get("labels") or {}) and (workload := self._workload(meta["uid"])):
            self._api.patch_workload(self._namespace, workload["metadata"]["name"], {"spec": {"active": False}})
        elif not jobset["spec"].get("suspend"):
            self._patch(name, {"metadata": {"uid": meta["uid"]}, "spec": {"suspend": True}})

    def resume(self, name: str) -> None:
        self._unsuspend(self._patch(name, {"metadata": {"annotations": {PAUSED_ANNOTATION: None}}}))

    def _workload(self, uid: str) -> dict[str, Any] | None:
        """Kueue's object of a JobSet, which it makes shortly after the JobSet; None if there is no Kueue."""
        end = time.monotonic() + WORKLOAD_S
        while (found := self._api.get_workload(self._namespace, uid)) is None and time.monotonic() < end:
            time.sleep(WORKLOAD_S / 20)
        return found

    def _unsuspend(self, jobset: Mapping[str, Any]) -> None:
        meta = jobset["metadata"]
        if QUEUE_LABEL in (meta.get("labels") or {}):
            workload = self._api.get_workload(self._namespace, meta["uid"])
            if workload is not None:
                if not workload["spec"].get("active", True):
                    self._api.patch_workload(self._namespace, workload["metadata"]["name"], {"spec": {"active": True}})
                return
        if jobset["spec"].get("suspend"):
            self._patch(meta["name"], {"metadata": {"uid": meta["uid"]}, "spec": {"suspend": False}})

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        self._patch(name, {"metadata": {"uid": uid, "annotations": {JUDGED_ANNOTATION: by}}})

    def stop(self, name: str, uid: str = "") -> None:
        try:
            self._api.delete_jobset(self._namespace, name, uid=uid or None)
        except JobSetExists:
            # Another JobSet has the name: the one meant is gone.
            return

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        return self._api.read_logs(self._namespace, pod, container, tail_lines=last)

    def _patch(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._api.patch_jobset(self._namespace, name, patch)
        except JobSetExists as error:
            # A merge patch without a version conflicts only about the uid.
            raise JobSetNotFound(f"JobSet {name} was replaced by another one") from error
