"""What a Kubernetes API answers to the doctor, from documents that a test alters: no cluster. Pure.

Shapes as real API servers send them: discovery (APIGroup, APIResourceList), SelfSubjectReview, SelfSubjectAccessReview, and
Kueue's v1beta2. `tests/cluster/test_doctor.py` asks a real one.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.kubernetes.rest import failure

USER = "110000000000000000001"
NAMESPACE = "nightshift"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
LOCAL_QUEUE = f"{KUEUE}/namespaces/{NAMESPACE}/localqueues/nightly"
CLUSTER_QUEUE = f"{KUEUE}/clusterqueues/nightshift"
FLAVOR = f"{KUEUE}/resourceflavors/no-accelerator"

_ACTIVE = {"conditions": [{"type": "Active", "status": "True", "reason": "Ready", "message": "Can admit new workloads"}]}
_OBJECTS: dict[str, dict[str, Any]] = {
    LOCAL_QUEUE: {
        "metadata": {"name": "nightly"},
        "spec": {"clusterQueue": "nightshift", "stopPolicy": "None"},
        "status": _ACTIVE,
    },
    CLUSTER_QUEUE: {
        "metadata": {"name": "nightshift"},
        "spec": {
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory", "ephemeral-storage"],
                    "flavors": [
                        {
                            "name": "no-accelerator",
                            "resources": [
                                {"name": "cpu", "nominalQuota": "4"},
                                {"name": "memory", "nominalQuota": "16Gi"},
                                {"name": "ephemeral-storage", "nominalQuota": "200Gi"},
                            ],
                        }
                    ],
                }
            ],
            "stopPolicy": "None",
        },
        "status": _ACTIVE,
    },
    FLAVOR: {"metadata": {"name": "no-accelerator"}, "spec": {}},
}


@dataclass
class Cluster:
    """groups: served, by version of each API, with their resources. denied: rights, as text. hidden: paths answered with 403.

    ahead_s: by how much the API server's clock is ahead of this machine's.
    """

    groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            "jobset.x-k8s.io/v1alpha2": ("jobsets", "jobsets/status"),
            "kueue.x-k8s.io/v1beta2": ("localqueues", "clusterqueues", "resourceflavors", "workloads"),
        }
    )
    objects: dict[str, dict[str, Any]] = field(default_factory=lambda: copy.deepcopy(_OBJECTS))
    denied: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)

    def answer(self, path: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """(HTTP status, document)."""
        if path in self.hidden:
            return 403, {"kind": "Status", "message": f"cannot get resource at {path}"}
        found = self._posted(path, body) if body else self._there(path)
        return (200, found) if found is not None else (404, {"kind": "Status", "message": "the server could not find it"})

    def _posted(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        if path == "/apis/authentication.k8s.io/v1/selfsubjectreviews":
            return {**body, "status": {"userInfo": {"username": USER}}}
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            where = ".".join(filter(None, (asked["resource"], asked["group"])))
            right = f"{asked['verb']} {where}{'/' if asked['subresource'] else ''}{asked['subresource']}"
            return {**body, "status": {"allowed": right not in self.denied and asked["namespace"] == NAMESPACE}}
        return None

    def _there(self, path: str) -> dict[str, Any] | None:
        if path == "/version":
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.3"}
        name = path.removeprefix("/apis/")
        if name in self.groups:
            return {"kind": "APIResourceList", "resources": [{"name": each} for each in self.groups[name]]}
        versions = [each.partition("/")[2] for each in self.groups if each.partition("/")[0] == name]
        if versions:
            return {"kind": "APIGroup", "versions": [{"groupVersion": f"{name}/{each}", "version": each} for each in versions]}
        return self.objects.get(path)


class CannedApi(JobSetApi):
    """The product's own client, with the network cut out."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.patience_s = 0.0

    def _ask_once(self, method: str, path: str, what: str, query: Mapping[str, Any], body: Any, content: str) -> bytes:
        status, document = self.cluster.answer(path, body)
        text = json.dumps(document)
        if status != 200:
            raise failure(status, text, what)
        return text.encode()
