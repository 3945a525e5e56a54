"""Which resources the API serves, and the documents that say so: discovery, and reviews of what the caller may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from local.runtime.refusals import Refusal
from nightshift.jobset.labels import JOBSET_API_VERSION

VERSION: Final = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-nightshift"}
USER: Final = "local"

SERVED: Final[Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]]] = {
    JOBSET_API_VERSION: {"jobsets": ("JobSet", ("create", "delete", "get", "list", "patch", "watch"))},
    "batch/v1": {"jobs": ("Job", ("get", "list", "watch"))},
    "v1": {
        "pods": ("Pod", ("get", "list", "watch")),
        "pods/log": ("Pod", ("get",)),
        "pods/eviction": ("Eviction", ("create",)),
        "events": ("Event", ("get", "list", "watch")),
    },
    "authentication.k8s.io/v1": {"selfsubjectreviews": ("SelfSubjectReview", ("create",))},
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews": ("SelfSubjectAccessReview", ("create",))},
}
"""By API version and resource: its kind and verbs."""
REVIEWS: Final = {
    f"/apis/{version}/{resource}": kind
    for version, resources in SERVED.items()
    for resource, (kind, _) in resources.items()
    if "reviews" in resource
}


def discovery(path: str) -> dict[str, Any] | None:
    """The document at a path that tells what is served; None for any other path."""
    if path == "/version":
        return dict(VERSION)
    for version, resources in SERVED.items():
        group, _, short = version.rpartition("/")
        if path == (f"/apis/{version}" if group else f"/api/{version}"):
            found = [
                {"name": name, "kind": kind, "namespaced": "reviews" not in name, "verbs": list(verbs)}
                for name, (kind, verbs) in resources.items()
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}
        if group and path == f"/apis/{group}":
            served = {"groupVersion": version, "version": short}
            return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [served], "preferredVersion": served}
    return None


def review(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Raises Refusal."""
    if body.get("kind") != kind:
        raise Refusal(400, f"{body.get('kind')} cannot be handled as a {kind}")
    if kind == "SelfSubjectReview":
        return {**body, "status": {"userInfo": {"username": USER}}}
    if not isinstance((body.get("spec") or {}).get("resourceAttributes"), dict):
        raise Refusal(422, "spec.resourceAttributes: the local runtime is asked about resources alone")
    return {**body, "status": {"allowed": True}}
