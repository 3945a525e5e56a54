"""The Inference Gateway's objects: a pool for each set of servers, and the route to them, divided between two versions.

Gateway and endpoint picker are the platform's: a Gateway serves many streams, and the picker is a program of its own.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.stream.manifests.objects import an_object
from nightshift.stream.manifests.render_request import CANARY, SERVER, StreamRequest

POOL_GROUP: Final = "inference.networking.k8s.io"
ROUTE_VERSION: Final = "gateway.networking.k8s.io/v1"
PICKER_PORT: Final = 9002


def objects(request: StreamRequest) -> list[dict[str, Any]]:
    return [*(_pool(request, component) for component in request.servers), _route(request)]


def _pool(request: StreamRequest, component: str) -> dict[str, Any]:
    name = request.name(component)
    spec = {
        "selector": {"matchLabels": request.labels(component)},
        "targetPorts": [{"number": ENGINE_PORT}],
        # Without the picker any server is better than none: a stream's requests are alike.
        "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": PICKER_PORT}, "failureMode": "FailOpen"},
    }
    return an_object(request, "InferencePool", f"{POOL_GROUP}/v1", name, component, {"spec": spec})


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
    return an_object(request, "HTTPRoute", ROUTE_VERSION, request.spec.job, SERVER, {"spec": spec})


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
