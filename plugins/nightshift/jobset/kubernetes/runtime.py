"""`nightshift.jobset.runtime.Runtime` on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, QUEUE_LABEL
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound


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
        """Also resumes a JobSet that was suspended when a person ended its task."""
        patch = {"metadata": {"uid": uid, "annotations": {OWNER_ANNOTATION: owner}}}
        jobset = self._patch(name, patch)
        if QUEUE_LABEL in (jobset["metadata"].get("labels") or {}):
            workload = self._api.get_workload(self._namespace, uid)
            if workload and not workload["spec"].get("active", True):
                self._api.patch_workload(self._namespace, workload["metadata"]["name"], {"spec": {"active": True}})
        elif jobset["spec"].get("suspend"):
            self._patch(name, {"metadata": {"uid": uid}, "spec": {"suspend": False}})

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
