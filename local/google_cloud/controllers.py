"""What the controllers of a cluster would write into the status of the state's objects, as far as somebody reads it.

Only where an object has none yet: a test may put a status of its own into the state. Each rule names where it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from local.google_cloud import clusters, kubernetes, streams
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Machine
from local.google_cloud.state import Fields, State


def cloud_of(state: State) -> Cloud:
    """For what the other stand-ins know of a state; nobody is at a shell."""
    return Cloud(state, Machine(Path()))


def has_adapter(cloud: Cloud, cluster: str) -> bool:
    namespace, name = streams.ADAPTER
    return kubernetes.get(cloud, cluster, "deployments", name, namespace) is not None


def serves_gateways(cluster: Mapping[str, Any]) -> bool:
    """GKE's Gateway controller needs the load balancing add-on and the channel ("Deploying Gateways", "Requirements")."""
    channel = cluster.get("networkConfig", {}).get("gatewayApiConfig", {}).get("channel")
    return channel == "CHANNEL_STANDARD" and not clusters.disabled(dict(cluster), "httpLoadBalancing")


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
    """Kubernetes' controller, which GKE does not run without the add-on; what Google's adapter answers, `streams` knows."""
    if clusters.disabled(state.get(types.CLUSTER, cluster) or {}, "horizontalPodAutoscaling"):
        return None
    able = _condition("AbleToScale", True, "ReadyForNewScale", "recommended size matches current size")
    if problem := streams.blind(cloud_of(state), cluster, found):
        kind = "External" if any(each["type"] == "External" for each in found["spec"]["metrics"]) else "Pods"
        words = f"the HPA was unable to compute the replica count: {problem}"
        active = _condition("ScalingActive", False, f"FailedGet{kind}Metric", words)
    else:
        active = _condition("ScalingActive", True, "ValidMetricFound", "the HPA was able to compute a replica count")
    return {"currentReplicas": 1, "desiredReplicas": 1, "conditions": [able, active]}


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
