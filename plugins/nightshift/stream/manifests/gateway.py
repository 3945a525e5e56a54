"""The Inference Gateway's objects: for each set of servers a pool with its endpoint picker, and on GKE the load balancer's
policies; and the route to the pools, divided between two versions. The Gateway is the platform's: it serves many streams.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.stream.manifests import picker
from nightshift.stream.manifests.objects import an_object
from nightshift.stream.manifests.picker import POOL_GROUP
from nightshift.stream.manifests.render_request import CANARY, SERVER, StreamRequest
from nightshift.stream.manifests.server import HEALTH

ROUTE_VERSION: Final = "gateway.networking.k8s.io/v1"
GKE_POLICIES: Final = "networking.gke.io/v1"
"""Their fields: GoogleCloudPlatform/gke-gateway-api. That a pool needs both: the inference extension's chart ``inferencepool``,
v1.5.0, ``templates/gke.yaml``.
"""


def objects(request: StreamRequest) -> list[dict[str, Any]]:
    found = []
    for component in request.servers:
        found += [_pool(request, component), *picker.objects(request, component)]
        if request.on_gke:
            found += _gke_policies(request, component)
    return [*found, _route(request)]


def _pool(request: StreamRequest, component: str) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": request.labels(component)},
        "targetPorts": [{"number": ENGINE_PORT}],
        # Without the picker any server is better than none: a stream's requests are alike.
        "endpointPickerRef": {
            "name": request.name(picker.component_of(component)),
            "port": {"number": picker.PORT},
            "failureMode": "FailOpen",
        },
    }
    return an_object(request, "InferencePool", f"{POOL_GROUP}/v1", component, {"spec": spec})


def _gke_policies(request: StreamRequest, component: str) -> list[dict[str, Any]]:
    """Without the first, the load balancer asks for /, which vLLM does not have, and takes no server for healthy; without the
    second, it ends a request after 30 s.
    """
    target = {"group": POOL_GROUP, "kind": "InferencePool", "name": request.name(component)}
    health = {
        "checkIntervalSec": HEALTH["periodSeconds"],
        "timeoutSec": HEALTH["timeoutSeconds"],
        "unhealthyThreshold": HEALTH["failureThreshold"],
        "config": {"type": "HTTP", "httpHealthCheck": {"port": ENGINE_PORT, "requestPath": HEALTH["httpGet"]["path"]}},
    }
    # Subscribers give a request up after this time themselves; the canary's file does not say.
    backend = {"timeoutSec": request.spec.request.timeout_seconds}
    return [
        an_object(request, kind, GKE_POLICIES, component, {"spec": {"targetRef": target, "default": default}})
        for kind, default in (("HealthCheckPolicy", health), ("GCPBackendPolicy", backend))
    ]


def _route(request: StreamRequest) -> dict[str, Any]:
    """From the host and the path of the URL that subscribers call to the pools."""
    namespace, _, gateway = (request.variant.gateway or "").rpartition("/")
    path = request.route.path.rstrip("/")
    weights = {SERVER: 100}
    if CANARY in request.servers:
        weights = {SERVER: 100 - request.variant.canary_percent, CANARY: request.variant.canary_percent}
    rule: dict[str, Any] = {"matches": [{"path": {"type": "PathPrefix", "value": path or "/"}}]}
    if path:
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    rule["backendRefs"] = [
        {"group": POOL_GROUP, "kind": "InferencePool", "name": request.name(component), "weight": weight}
        for component, weight in weights.items()
    ]
    host = request.route.hostname or ""
    spec = {
        "parentRefs": [{"name": gateway, **({"namespace": namespace} if namespace else {})}],
        **({} if _is_address(host) else {"hostnames": [host]}),
        "rules": [rule],
    }
    return an_object(request, "HTTPRoute", ROUTE_VERSION, SERVER, {"spec": spec}, request.spec.job)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
