"""What the controllers of a cluster would write into the status of the state's objects, as far as somebody reads it.

Only where an object has none yet: a test may put a status of its own into the state. Each rule names where it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from local.google_cloud import state as types
from local.google_cloud.state import Fields, State

PROJECT_LABEL: Final = "resource.labels.project_id"
SUBSCRIPTION_LABEL: Final = "resource.labels.subscription_id"


def is_disabled(cluster: Mapping[str, Any], addon: str) -> bool:
    return bool(cluster.get("addonsConfig", {}).get(addon, {}).get("disabled"))


def serves_gateways(cluster: Mapping[str, Any]) -> bool:
    """GKE's Gateway controller needs the load balancing add-on and the channel ("Deploying Gateways", "Requirements")."""
    channel = cluster.get("networkConfig", {}).get("gatewayApiConfig", {}).get("channel")
    return channel == "CHANNEL_STANDARD" and not is_disabled(cluster, "httpLoadBalancing")


def with_status(state: State, cluster: str, found: Fields) -> Fields:
    """cluster: its FULL_NAME."""
    write = _CONTROLLERS.get(found.get("kind", ""))
    if "status" in found or write is None:
        return found
    status = write(state, cluster, found)
    return found if status is None else {**found, "status": status}


def _condition(kind: str, holds: bool, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message}


def _horizontal(state: State, cluster: str, found: Fields) -> Fields | None:
    """Kubernetes' controller, which GKE does not run without the add-on; Google's adapter answers for metrics.

    Without the label of a project the adapter asks its own, the cluster's (k8s-stackdriver,
    ``GetExternalMetricProject``).
    """
    if is_disabled(state.get(types.CLUSTER, cluster) or {}, "horizontalPodAutoscaling"):
        return None
    able = _condition("AbleToScale", True, "ReadyForNewScale", "recommended size matches current size")
    problem = next(filter(None, (_unread(state, cluster, metric) for metric in found["spec"].get("metrics", ()))), None)
    if problem:
        kind, why = problem
        reason = f"FailedGet{kind}Metric"
        active = _condition("ScalingActive", False, reason, f"the HPA was unable to compute the replica count: {why}")
    else:
        active = _condition("ScalingActive", True, "ValidMetricFound", "the HPA was able to compute a replica count")
    return {"currentReplicas": 1, "desiredReplicas": 1, "conditions": [able, active]}


def _unread(state: State, cluster: str, metric: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a metric has no value: the kind of the metric, and the words."""
    group = {"External": "external.metrics.k8s.io", "Pods": "custom.metrics.k8s.io"}.get(metric["type"])
    services = [each for name, each in state.of("apiregistration.k8s.io/APIService").items() if name.startswith(cluster)]
    if group and group not in {each["spec"]["group"] for each in services}:
        words = f"no known available metric versions found for {group}"
        return metric["type"] if metric["type"] == "External" else "Pods", f"unable to get metric: {words}"
    if metric["type"] != "External":
        return None
    labels = metric["external"]["metric"].get("selector", {}).get("matchLabels", {})
    project = labels.get(PROJECT_LABEL, cluster.split("/")[4])
    name = f"//pubsub.googleapis.com/projects/{project}/subscriptions/{labels.get(SUBSCRIPTION_LABEL)}"
    if state.get(types.SUBSCRIPTION, name) is None:
        what = metric["external"]["metric"]["name"]
        return "External", f"unable to get external metric {what}: no metrics returned from external metrics API"
    return None


def _gateway(state: State, cluster: str, found: Fields) -> Fields | None:
    if not serves_gateways(state.get(types.CLUSTER, cluster) or {}):
        return None
    conditions = [_condition("Accepted", True, "Accepted", ""), _condition("Programmed", True, "Programmed", "")]
    return {"addresses": [{"type": "IPAddress", "value": "10.0.0.9"}], "conditions": conditions}


def _attached(state: State, cluster: str, found: Fields) -> Fields | None:
    """Of a route, and of a pool: its parents."""
    if not serves_gateways(state.get(types.CLUSTER, cluster) or {}):
        return None
    conditions = [_condition("Accepted", True, "Accepted", ""), _condition("ResolvedRefs", True, "ResolvedRefs", "")]
    return {"parents": [{"parentRef": each, "conditions": conditions} for each in found["spec"].get("parentRefs", ({},))]}


def _policy(state: State, cluster: str, found: Fields) -> Fields:
    return {"conditions": [_condition("Attached", True, "Attached", "")]}


def _compute_class(state: State, cluster: str, found: Fields) -> Fields:
    return {"conditions": [_condition("Health", True, "Health", "Crd is healthy.")]}


def _queue(state: State, cluster: str, found: Fields) -> Fields:
    return {"conditions": [_condition("Active", True, "Ready", "Can admit new workloads")]}


_CONTROLLERS: Final[dict[str, Callable[[State, str, Fields], Fields | None]]] = {
    "HorizontalPodAutoscaler": _horizontal,
    "Gateway": _gateway,
    "HTTPRoute": _attached,
    "InferencePool": _attached,
    "HealthCheckPolicy": _policy,
    "GCPBackendPolicy": _policy,
    "ComputeClass": _compute_class,
    "ClusterQueue": _queue,
    "LocalQueue": _queue,
}
