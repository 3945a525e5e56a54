"""The endpoint picker of a pool: tells the gateway which server has the most room. The program is the inference extension's.

Its chart (``config/charts/inferencepool`` at v1.5.0) also makes a pool, named after the release, and the picker after the pool:
beside a pool that is rendered here the two would undo each other. So its Deployment, Service and rights are rendered here, too.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.jobset.manifest.pod_template import identity, pull_policy
from nightshift.stream.manifests.objects import an_object, deployment, policy, tcp
from nightshift.stream.manifests.render_request import StreamRequest

IMAGE: Final = "registry.k8s.io/gateway-api-inference-extension/epp:v1.5.0"
POOL_GROUP: Final = "inference.networking.k8s.io"
PORT: Final = 9002
HEALTH_PORT: Final = 9003
_OBJECTS_GROUP: Final = "inference.networking.x-k8s.io"
_API_PORTS: Final = (443, 6443)
"""Of the cluster's API: GKE's, and kubeadm's."""
_USER: Final = 65532
"""Its image's own."""
_RBAC: Final = "rbac.authorization.k8s.io"
_CONFIG: Final = {
    "apiVersion": f"{_OBJECTS_GROUP}/v1alpha1",
    "kind": "EndpointPickerConfig",
    "plugins": [{"type": name} for name in ("queue-scorer", "kv-cache-utilization-scorer", "passthrough-parser")],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [{"pluginRef": name} for name in ("queue-scorer", "kv-cache-utilization-scorer")],
        }
    ],
    # Its own parser takes /score, /classify, /rerank and /pooling for completions, and refuses what has no prompt.
    "parser": {"pluginRef": "passthrough-parser"},
}


def component_of(component: str) -> str:
    """The component of the picker for these servers."""
    return f"{component}-epp"


def objects(request: StreamRequest, component: str) -> list[dict[str, Any]]:
    own = component_of(component)
    name = request.name(own)
    service = {"selector": request.labels(own), "ports": [{"name": "picker", "port": PORT, "targetPort": "picker"}]}
    # Only the program's own read of its pool and of the servers' addresses.
    rules = [
        {"apiGroups": [group], "resources": kinds, "verbs": ["get", "list", "watch"]}
        for group, kinds in (
            ("", ["pods"]),
            (POOL_GROUP, ["inferencepools"]),
            (_OBJECTS_GROUP, ["inferenceobjectives", "inferencemodelrewrites"]),
        )
    ]
    binding = {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": request.settings.namespace}],
    }
    return [
        an_object(request, "ServiceAccount", "v1", own, {"automountServiceAccountToken": False}),
        an_object(request, "Role", f"{_RBAC}/v1", own, {"rules": rules}),
        an_object(request, "RoleBinding", f"{_RBAC}/v1", own, binding),
        _deployment(request, component),
        an_object(request, "Service", "v1", own, {"spec": service}),
        _policy(request, component),
    ]


def _deployment(request: StreamRequest, component: str) -> dict[str, Any]:
    own = component_of(component)
    probe = {"grpc": {"port": HEALTH_PORT, "service": "inference-extension"}}
    container: dict[str, Any] = {
        "name": "epp",
        "image": IMAGE,
        **pull_policy(request.settings),
        "args": [
            f"--pool-group={POOL_GROUP}",
            f"--pool-namespace={request.settings.namespace}",
            f"--pool-name={request.name(component)}",
            f"--grpc-port={PORT}",
            f"--grpc-health-port={HEALTH_PORT}",
            "--zap-encoder=json",
            "--tracing=false",
            f"--config-text={yaml.safe_dump(_CONFIG, sort_keys=False)}",
        ],
        "ports": [{"name": "picker", "containerPort": PORT}],
        # Upstream's chart asks for 4 CPUs and 8 GiB, sized for thousands of callers and a cache of prefixes; ours are few.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "livenessProbe": {**probe, "initialDelaySeconds": 5, "periodSeconds": 10},
        "readinessProbe": {**probe, "periodSeconds": 2},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    pod = {
        **identity(request.name(own)),
        # It watches the cluster's API.
        "automountServiceAccountToken": True,
        "containers": [container],
    }
    # One at a time: of two, the gateway would ask either, and each counts only the requests that it has placed itself.
    return deployment(request, own, pod, strategy={"type": "Recreate"})


def _policy(request: StreamRequest, component: str) -> dict[str, Any]:
    """A gateway's addresses are not known here, nor is that of the cluster's API."""
    servers = {"to": [{"podSelector": {"matchLabels": request.labels(component)}}], "ports": [tcp(ENGINE_PORT)]}
    return policy(
        request,
        component_of(component),
        ingress=[{"ports": [tcp(PORT)]}],
        egress=[servers, {"ports": [tcp(port) for port in _API_PORTS]}],
    )
