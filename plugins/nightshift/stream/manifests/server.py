"""The servers: vLLM as a run's pods have it, but for itself, behind a Service."""

from __future__ import annotations

from typing import Any, Final

from nightshift.jobset.labels import PROFILE_LABEL
from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.jobset.manifest.disk import fuse_annotations
from nightshift.jobset.manifest.pod_template import across_zones, container_of, identity, placement, volumes_of
from nightshift.jobset.manifest.weights import pod_annotations
from nightshift.stream.manifests.objects import an_object, budget, deployment, from_collectors, monitoring, policy, tcp
from nightshift.stream.manifests.render_request import SUBSCRIBER, StreamRequest

LEAVE_SECONDS: Final = 5
"""Before a server ends, so that every node has learned by then that the Service no longer includes it."""
HEALTH: Final[dict[str, Any]] = {
    "httpGet": {"path": "/health", "port": "engine"},
    "periodSeconds": 5,
    "timeoutSeconds": 5,
    "failureThreshold": 2,
}
"""When a server gets requests; whoever sends them, a Service or a load balancer, asks in the same way."""
NODE_SECONDS: Final = 600
"""For a node with an accelerator to appear."""


def objects(request: StreamRequest, component: str) -> list[dict[str, Any]]:
    return [
        _deployment(request, component),
        _service(request, component),
        budget(request, component),
        monitoring(request, component, "engine"),
        _policy(request, component),
    ]


def _deployment(request: StreamRequest, component: str) -> dict[str, Any]:
    server = request.server(component)
    container = container_of(server, sidecar=False)
    container["readinessProbe"] = HEALTH
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}}
    pod = {
        **identity(request.settings.account_of(request.spec.job)),
        "containers": [container],
        "volumes": volumes_of(server),
        **placement(server.worker, request.settings),
        "topologySpreadConstraints": across_zones(request.labels(component)),
    }
    return deployment(
        request,
        component,
        pod,
        labels={PROFILE_LABEL: server.worker.profile.name},
        annotations={**pod_annotations(server), **fuse_annotations(server)},
        # With the whole quota in use there is no accelerator for one more. A stream waits; its messages are held.
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        progressDeadlineSeconds=server.patience_seconds + NODE_SECONDS,
    )


def _service(request: StreamRequest, component: str) -> dict[str, Any]:
    spec = {"selector": request.labels(component), "ports": [{"name": "engine", "port": ENGINE_PORT, "targetPort": "engine"}]}
    return an_object(request, "Service", "v1", component, {"spec": spec})


def _policy(request: StreamRequest, component: str) -> dict[str, Any]:
    """vLLM has no password: what reaches it can use the model. A gateway's addresses are not known here."""
    subscribers = {"from": [{"podSelector": {"matchLabels": request.labels(SUBSCRIBER)}}]}
    callers: dict[str, Any] = {} if request.variant.gateway else subscribers
    return policy(request, component, ingress=[{**callers, "ports": [tcp(ENGINE_PORT)]}, from_collectors(ENGINE_PORT)])
