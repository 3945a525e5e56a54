"""The state as Google's REST APIs show it, to whoever may see it.

Errors are Google's: AIP-193 (``status``, and ``ErrorInfo`` in ``details``), SERVICE_DISABLED for an API that is not enabled
in the project, IAM_PERMISSION_DENIED for what the caller's roles do not hold, and NOT_FOUND. Read-only, and only what `ROUTES`
lists: any other request is an AssertionError.

What Google fills in when a resource is made (states, versions, defaults of node pools) is filled in here, where the state does
not say it; `local/google_cloud/tests/test_rest.py` holds the answers against Google's own messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from local.google_cloud import state as types
from local.google_cloud.state import State, full_name

Reply = tuple[int, dict[str, Any]]
NOT_GOOGLES: Final = ("createdAtSeconds", "published", "iamPolicy")
"""What the state has of a resource besides."""
VERSION: Final = "1.34.1-gke.1829001"
PERMISSIONS: Final[dict[str, tuple[str, ...]]] = {
    "container.clusterViewer": ("container.clusters.get", "container.clusters.list"),
    "compute.viewer": ("compute.regions.get", "compute.projects.get"),
    "cloudquotas.viewer": ("cloudquotas.quotas.get",),
    "pubsub.viewer": ("pubsub.topics.get", "pubsub.subscriptions.get", "resourcemanager.projects.get"),
    "alloydb.viewer": (
        *("alloydb.clusters.get", "alloydb.instances.list", "alloydb.users.list"),
        "resourcemanager.projects.get",
    ),
    "iam.securityReviewer": (
        *("pubsub.topics.getIamPolicy", "pubsub.subscriptions.getIamPolicy", "iam.serviceAccounts.getIamPolicy"),
        "resourcemanager.projects.getIamPolicy",
    ),
    "browser": ("resourcemanager.projects.get", "resourcemanager.projects.getIamPolicy"),
}
"""Of Google's roles, what is asked for here ("IAM basic and predefined roles reference"). Others hold none."""
REGION_QUOTAS: Final[dict[str, int]] = {
    "CPUS": 24,
    "PREEMPTIBLE_CPUS": 0,
    "A2_CPUS": 0,
    "IN_USE_ADDRESSES": 8,
    "SSD_TOTAL_GB": 500,
    "DISKS_TOTAL_GB": 4096,
    "HDB_TOTAL_GB": 500,
    "NVIDIA_L4_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 0,
    "NVIDIA_A100_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_A100_GPUS": 0,
    "NVIDIA_A100_80GB_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_A100_80GB_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_H100_GPUS": 0,
    "TPU_LITE_PODSLICE_V5": 0,
    "PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 0,
}
"""Of a region of a new project, by ``Quota.Metric``. The numbers vary; no accelerators and eight addresses are usual."""
PROJECT_QUOTAS: Final[dict[str, int]] = {"GPUS_ALL_REGIONS": 0}
FAMILY_QUOTAS: Final = (
    "GPUS-PER-GPU-FAMILY-per-project-region",
    "TPUS-PER-TPU-FAMILY-per-project-region",
    "PREEMPTIBLE-TPU-V6E-per-project-region",
    "PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region",
    "PREEMPTIBLE-NVIDIA-B200-GPUS-per-project-region",
)
"""Quotas that only the Cloud Quotas API knows."""


@dataclass(frozen=True)
class Asked:
    """A request. names: the groups of its route. project: whose resource it is."""

    state: State
    names: Mapping[str, str]

    @property
    def project(self) -> str:
        return self.names["project"]


@dataclass(frozen=True)
class Route:
    """resource: FULL_NAME and TYPE of what is asked for, on whose policy a permission may stand; None if only the project's."""

    pattern: str
    permission: str
    answer: Callable[[Asked], dict[str, Any] | None]
    method: str = "GET"
    policy_of: str = ""


def answer(state: State, caller: str, method: str, url: str) -> Reply:
    """HTTP status and document. caller: the e-mail address of the account whose token the request has."""
    parts = urlsplit(url)
    service, path = parts.netloc, parts.path.removeprefix("/")
    for route in ROUTES.get(service, ()):
        match = re.fullmatch(route.pattern, path)
        if match is None or method != route.method:
            continue
        asked = Asked(state, match.groupdict())
        if not is_enabled(state, asked.project, service):
            return _off(state, asked.project, service)
        if not _may(asked, caller, route):
            return _denied(service, route.permission, path)
        found = route.answer(asked)
        if found is None:
            return 404, _error(404, "NOT_FOUND", f"Resource not found (resource={path}).")
        return 200, _only(found, parse_qs(parts.query).get("fields", [""])[0])
    raise AssertionError(f"the stand-in of Google's APIs does not know {method} {url}")


def is_enabled(state: State, project: str, service: str) -> bool:
    found = state.get(types.SERVICE, full_name("serviceusage", "projects", project, "services", service))
    return found is not None and found.get("state") == "ENABLED"


def _may(asked: Asked, caller: str, route: Route) -> bool:
    policies = [asked.state.get(types.PROJECT, full_name("cloudresourcemanager", "projects", asked.project))]
    if route.policy_of:
        name = f"//pubsub.googleapis.com/{asked.names['resource']}"
        policies.append(asked.state.get(route.policy_of, name))
    held = {
        permission
        for policy in policies
        for binding in (policy or {}).get("iamPolicy", {}).get("bindings", ())
        if f"serviceAccount:{caller}" in binding["members"]
        for permission in PERMISSIONS.get(binding["role"].removeprefix("roles/"), ())
    }
    return route.permission in held


def _error(code: int, status: str, message: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": status, "details": list(details)}}


def _info(reason: str, **metadata: str) -> dict[str, Any]:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    return {"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}


def _off(state: State, project: str, service: str) -> Reply:
    number = _number(state, project)
    words = (
        f"{service} has not been used in project {number} before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{service}/overview?project={number} then retry."
    )
    info = _info("SERVICE_DISABLED", service=service, consumer=f"projects/{number}")
    return 403, _error(403, "PERMISSION_DENIED", words, info)


def _denied(service: str, permission: str, path: str) -> Reply:
    """Compute Engine's form has ``errors`` instead of ``details``."""
    if service == "compute.googleapis.com":
        words = f"Required '{permission}' permission for '{path.removeprefix('compute/v1/')}'"
        errors = [{"message": words, "domain": "global", "reason": "forbidden"}]
        return 403, {"error": {"code": 403, "message": words, "errors": errors}}
    words = f"Permission '{permission}' denied on resource '//{service}/{path}' (or it may not exist)."
    return 403, _error(403, "PERMISSION_DENIED", words, _info("IAM_PERMISSION_DENIED", permission=permission, resource=path))


def _only(found: dict[str, Any], fields: str) -> dict[str, Any]:
    """A partial response: ``fields=a,b``."""
    return {key: value for key, value in found.items() if key in fields.split(",")} if fields else found


def _plain(value: Any) -> Any:
    """Names of the inventory as the APIs write them: without ``//SERVICE/``."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key not in NOT_GOOGLES and each is not None}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return re.sub(r"^//[a-z]+\.googleapis\.com/", "", value) if isinstance(value, str) else value


def _number(state: State, project: str) -> str:
    found = state.get(types.PROJECT, full_name("cloudresourcemanager", "projects", project)) or {}
    return str(found.get("projectNumber", ""))


def _cluster(asked: Asked) -> dict[str, Any] | None:
    names = asked.names
    name = full_name("container", "projects", names["project"], "locations", names["location"], "clusters", names["cluster"])
    found = asked.state.get(types.CLUSTER, name)
    if found is None:
        return None
    zones = [f"{names['location']}-{each}" for each in "abc"] if names["location"].count("-") == 1 else [names["location"]]
    made = {
        "name": names["cluster"],
        "location": names["location"],
        "status": "RUNNING",
        "currentMasterVersion": VERSION,
        "locations": zones,
        **found,
    }
    pools = asked.state.of(types.NODE_POOL).items()
    made["nodePools"] = [_pool(made, pool, each) for pool, each in pools if pool.startswith(f"{name}/nodePools/")]
    return dict(_plain(made))


def _pool(cluster: Mapping[str, Any], name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """GKE's defaults: boot disks are pd-balanced of 100 GB; with workload identity a pool has its metadata server."""
    mode = "GKE_METADATA" if cluster.get("workloadIdentityConfig", {}).get("workloadPool") else "GCE_METADATA"
    default = {"diskType": "pd-balanced", "diskSizeGb": 100, "workloadMetadataConfig": {"mode": mode}}
    config = {**default, **found.get("config", {})}
    return {"name": name.rpartition("/")[2], "status": "RUNNING", **found, "config": config}


def _granted(asked: Asked, metric: str, region: str | None, default: int) -> int:
    quota = f"{metric.replace('_', '-')}-per-project{'-region' if region else ''}"
    for name, each in asked.state.of(types.QUOTA).items():
        here = name.startswith(full_name("cloudquotas", "projects", asked.project, ""))
        if here and each["quotaId"] == quota and each.get("dimensions", {}).get("region", "global") == (region or "global"):
            return int(each["quotaConfig"]["grantedValue"])
    return default


def _region(asked: Asked) -> dict[str, Any]:
    region = asked.names["region"]
    limits = {metric: _granted(asked, metric, region, default) for metric, default in REGION_QUOTAS.items()}
    return {
        "kind": "compute#region",
        "name": region,
        "quotas": [{"metric": metric, "limit": float(limit), "usage": 0.0} for metric, limit in limits.items()],
    }


def _compute_project(asked: Asked) -> dict[str, Any]:
    limits = {metric: _granted(asked, metric, None, default) for metric, default in PROJECT_QUOTAS.items()}
    return {
        "kind": "compute#project",
        "name": asked.project,
        "quotas": [{"metric": metric, "limit": float(limit), "usage": 0.0} for metric, limit in limits.items()],
    }


def _quota(asked: Asked) -> dict[str, Any] | None:
    """The default of all dimensions is 0; a preference that was granted is an entry of its own."""
    quota = asked.names["quota"]
    if quota not in FAMILY_QUOTAS:
        return None
    entries: list[dict[str, Any]] = [{"details": {"value": "0"}}]
    for name, each in asked.state.of(types.QUOTA).items():
        if name.startswith(full_name("cloudquotas", "projects", asked.project, "")) and each["quotaId"] == quota:
            value = {"value": str(each["quotaConfig"]["grantedValue"])}
            entries.append({"dimensions": each.get("dimensions", {}), "details": value})
    return {"quotaId": quota, "service": "compute.googleapis.com", "dimensionsInfos": entries}


def _pubsub(asked: Asked) -> dict[str, Any] | None:
    resource = asked.names["resource"]
    kind = types.TOPIC if "/topics/" in resource else types.SUBSCRIPTION
    found = asked.state.get(kind, f"//pubsub.googleapis.com/{resource}")
    if found is None:
        return None
    shown = {"name": resource, "state": "ACTIVE", **_plain(found)}
    if kind == types.SUBSCRIPTION:
        # Google shows both where nobody set them.
        shown = {"ackDeadlineSeconds": 10, "messageRetentionDuration": "604800s", **shown}
        for holder, key in ((shown, "topic"), (shown.get("deadLetterPolicy", {}), "deadLetterTopic")):
            if key in holder and asked.state.get(types.TOPIC, f"//pubsub.googleapis.com/{holder[key]}") is None:
                holder[key] = "_deleted-topic_"
    return shown


def _readers(asked: Asked) -> dict[str, Any] | None:
    topic = asked.names["resource"]
    if asked.state.get(types.TOPIC, f"//pubsub.googleapis.com/{topic}") is None:
        return None
    found = asked.state.of(types.SUBSCRIPTION).items()
    return {"subscriptions": [_plain(name) for name, each in found if _plain(each.get("topic", "")) == topic]}


def _policy_of(kind: str) -> Callable[[Asked], dict[str, Any] | None]:
    def policy(asked: Asked) -> dict[str, Any] | None:
        name = (
            f"//pubsub.googleapis.com/{asked.names['resource']}"
            if "resource" in asked.names
            else full_name("cloudresourcemanager", "projects", asked.project)
        )
        found = asked.state.get(kind, name)
        return None if found is None else {"version": 1, "etag": "BwX=", **found.get("iamPolicy", {})}

    return policy


def _project(asked: Asked) -> dict[str, Any] | None:
    found = asked.state.get(types.PROJECT, full_name("cloudresourcemanager", "projects", asked.project))
    if found is None:
        return None
    return {"projectId": asked.project, "projectNumber": _number(asked.state, asked.project), "lifecycleState": "ACTIVE"}


def _account_policy(asked: Asked) -> dict[str, Any] | None:
    name = full_name("iam", "projects", asked.project, "serviceAccounts", asked.names["account"])
    found = asked.state.get(types.SERVICE_ACCOUNT, name)
    return None if found is None else {"version": 1, "etag": "BwX=", **found.get("iamPolicy", {})}


def _instances(asked: Asked) -> dict[str, Any]:
    prefix = full_name("alloydb", "projects", asked.project, "locations", "")
    found = [(name, each) for name, each in asked.state.of(types.ALLOYDB_INSTANCE).items() if name.startswith(prefix)]
    return {"instances": [{"name": _plain(name), "state": "READY", **_plain(each)} for name, each in found]}


def _database(asked: Asked) -> dict[str, Any] | None:
    found = asked.state.get(types.ALLOYDB, f"//alloydb.googleapis.com/{asked.names['resource']}")
    return None if found is None else {"name": asked.names["resource"], "state": "READY", **_plain(found)}


def _users(asked: Asked) -> dict[str, Any]:
    prefix = f"//alloydb.googleapis.com/{asked.names['resource']}/users/"
    users = [(name, each) for name, each in asked.state.of(types.ALLOYDB_USER).items() if name.startswith(prefix)]
    return {"users": [{"name": _plain(name), **_plain(each)} for name, each in users]}


_PROJECT: Final = r"projects/(?P<project>[^/:]+)"
_TOPIC: Final = rf"(?P<resource>{_PROJECT}/topics/[^/:]+)"
_SUBSCRIPTION: Final = rf"(?P<resource>{_PROJECT}/subscriptions/[^/:]+)"
_DATABASE: Final = rf"(?P<resource>{_PROJECT}/locations/[^/]+/clusters/[^/]+)"
ROUTES: Final[dict[str, tuple[Route, ...]]] = {
    "container.googleapis.com": (
        Route(rf"v1/{_PROJECT}/locations/(?P<location>[^/]+)/clusters/(?P<cluster>[^/]+)", "container.clusters.get", _cluster),
    ),
    "compute.googleapis.com": (
        Route(rf"compute/v1/{_PROJECT}/regions/(?P<region>[^/]+)", "compute.regions.get", _region),
        Route(rf"compute/v1/{_PROJECT}", "compute.projects.get", _compute_project),
    ),
    "cloudquotas.googleapis.com": (
        Route(
            rf"v1/{_PROJECT}/locations/global/services/compute\.googleapis\.com/quotaInfos/(?P<quota>[^/]+)",
            "cloudquotas.quotas.get",
            _quota,
        ),
    ),
    "pubsub.googleapis.com": (
        Route(rf"v1/{_TOPIC}", "pubsub.topics.get", _pubsub, policy_of=types.TOPIC),
        Route(rf"v1/{_TOPIC}/subscriptions", "pubsub.topics.get", _readers, policy_of=types.TOPIC),
        Route(rf"v1/{_SUBSCRIPTION}", "pubsub.subscriptions.get", _pubsub, policy_of=types.SUBSCRIPTION),
        Route(rf"v1/{_TOPIC}:getIamPolicy", "pubsub.topics.getIamPolicy", _policy_of(types.TOPIC), policy_of=types.TOPIC),
        Route(
            rf"v1/{_SUBSCRIPTION}:getIamPolicy",
            "pubsub.subscriptions.getIamPolicy",
            _policy_of(types.SUBSCRIPTION),
            policy_of=types.SUBSCRIPTION,
        ),
    ),
    "cloudresourcemanager.googleapis.com": (
        Route(rf"v1/{_PROJECT}", "resourcemanager.projects.get", _project),
        Route(
            rf"v1/{_PROJECT}:getIamPolicy", "resourcemanager.projects.getIamPolicy", _policy_of(types.PROJECT), method="POST"
        ),
    ),
    "iam.googleapis.com": (
        Route(
            rf"v1/{_PROJECT}/serviceAccounts/(?P<account>[^/:]+):getIamPolicy",
            "iam.serviceAccounts.getIamPolicy",
            _account_policy,
            method="POST",
        ),
    ),
    "alloydb.googleapis.com": (
        Route(rf"v1/{_PROJECT}/locations/-/clusters/-/instances", "alloydb.instances.list", _instances),
        Route(rf"v1/{_DATABASE}", "alloydb.clusters.get", _database),
        Route(rf"v1/{_DATABASE}/users", "alloydb.users.list", _users),
    ),
}
"""By host, what is asked: its path, the permission that it takes, and the answer; None is 404."""
