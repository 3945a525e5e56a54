"""The shapes that subscribers and servers share: metadata, Deployment, PodDisruptionBudget, PodMonitoring, NetworkPolicy."""

from __future__ import annotations

from typing import Any

from nightshift.jobset.labels import JOB_LABEL
from nightshift.stream.manifests.render_request import StreamRequest

COLLECTORS = ("gmp-system", "gke-gmp-system")
"""The namespaces of Google's collector of metrics: on Standard, on Autopilot."""


def an_object(
    request: StreamRequest, kind: str, version: str, component: str, body: dict[str, Any], name: str | None = None
) -> dict[str, Any]:
    """body: what follows the metadata, mostly ``spec``. name: by default the component's."""
    metadata = {
        "name": name or request.name(component),
        "namespace": request.settings.namespace,
        "labels": request.labels(component),
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def deployment(
    request: StreamRequest,
    component: str,
    pod: dict[str, Any],
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """labels, annotations: of the pods, besides those that select them. It names no replicas: the autoscaler decides them."""
    own = request.labels(component)
    metadata = {"labels": {**own, **(labels or {})}, **({"annotations": annotations} if annotations else {})}
    body = {"selector": {"matchLabels": own}, **spec, "template": {"metadata": metadata, "spec": pod}}
    return an_object(request, "Deployment", "apps/v1", component, {"spec": body})


def budget(request: StreamRequest, component: str) -> dict[str, Any]:
    """A node that is emptied costs one pod at a time. Not minAvailable: a single pod would keep its node for ever.

    Nor may pods keep their nodes that are not ready, while a database is away, say.
    """
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": request.labels(component)},
    }
    return an_object(request, "PodDisruptionBudget", "policy/v1", component, {"spec": spec})


def monitoring(request: StreamRequest, component: str, port: str) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": request.labels(component)},
        "targetLabels": {"fromPod": [{"from": JOB_LABEL, "to": "nightshift_job"}]},
        "endpoints": [{"port": port, "path": "/metrics", "interval": "30s"}],
    }
    return an_object(request, "PodMonitoring", "monitoring.googleapis.com/v1", component, {"spec": spec})


def policy(
    request: StreamRequest, component: str, *, ingress: list[dict[str, Any]], egress: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """What k8s/base/network.yaml, which forbids everything else, leaves to a stream. egress: None if that page is enough."""
    spec = {
        "podSelector": {"matchLabels": request.labels(component)},
        "policyTypes": ["Ingress", *(["Egress"] if egress else [])],
        "ingress": ingress,
        **({"egress": egress} if egress else {}),
    }
    return an_object(request, "NetworkPolicy", "networking.k8s.io/v1", component, {"spec": spec})


def from_collectors(port: int) -> dict[str, Any]:
    selectors = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}} for name in COLLECTORS]
    return {"from": selectors, "ports": [tcp(port)]}


def tcp(port: int) -> dict[str, Any]:
    return {"protocol": "TCP", "port": port}
