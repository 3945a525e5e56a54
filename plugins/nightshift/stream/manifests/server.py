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
NODE_SECONDS: Final = 600
"""For a node with an accelerator to appear."""


def objects(order: StreamRequest, component: str) -> list[dict[str, Any]]:
    return [
        _deployment(order, component),
        _service(order, component),
        budget(order, component),
        monitoring(order, component, "engine"),
        _policy(order, component),
    ]


def _deployment(order: StreamRequest, component: str) -> dict[str, Any]:
    server = order.server(component)
    container = container_of(server, sidecar=False)
    container["readinessProbe"] = {
        "httpGet": {"path": "/health", "port": "engine"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 2,
    }
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": LEAVE_SECONDS}}}
    pod = {
        **identity(order.settings.account_of(order.spec.job)),
        "containers": [container],
        "volumes": volumes_of(server),
        **placement(server.worker),
        "topologySpreadConstraints": across_zones(order.labels(component)),
    }
    return deployment(
        order,
        component,
        pod,
        labels={PROFILE_LABEL: server.worker.profile.name},
        annotations={**pod_annotations(server), **fuse_annotations(server)},
        # With the whole quota in use there is no accelerator for one more. A stream waits; its messages are held.
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        progressDeadlineSeconds=server.patience_seconds + NODE_SECONDS,
    )


def _service(order: StreamRequest, component: str) -> dict[str, Any]:
    spec = {"selector": order.labels(component), "ports": [{"name": "engine", "port": ENGINE_PORT, "targetPort": "engine"}]}
    return an_object(order, "Service", "v1", order.name(component), component, {"spec": spec})


def _policy(order: StreamRequest, component: str) -> dict[str, Any]:
    """vLLM has no password: what reaches it can use the model. A gateway's addresses are not known here."""
    subscribers = {"from": [{"podSelector": {"matchLabels": order.labels(SUBSCRIBER)}}]}
    callers: dict[str, Any] = {} if order.variant.gateway else subscribers
    return policy(order, component, ingress=[{**callers, "ports": [tcp(ENGINE_PORT)]}, from_collectors(ENGINE_PORT)])
