"""Whether the gateway of a deployed stream works: its route, its pools, their pickers, and GKE's policies for them.

Conditions: Gateway API v1 (Gateway ``Programmed``; of a route's parents ``Accepted`` and ``ResolvedRefs``) and its inference
extension (of a pool's parents the same). GKE's load balancer asks each server for ``/``, which vLLM answers with 404, unless a
HealthCheckPolicy says otherwise, and ends a request after 30 s unless a GCPBackendPolicy does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from nightshift.doctor import cluster_objects, gke
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok
from nightshift.jobset.labels import JOB_LABEL

NAME: Final = "gateway"
ROUTE: Final = "route"
POOLS: Final = "pools"
GATEWAYS: Final = "/apis/gateway.networking.k8s.io/v1"
INFERENCE: Final = "/apis/inference.networking.k8s.io/v1"
POLICIES: Final = "/apis/networking.gke.io/v1"
BREAKS: Final = "the stream: its subscribers reach no engine"


def is_used(here: Surroundings) -> bool:
    """Whether the stream has a route."""
    try:
        return _route(here) is not None
    except NotKnown:
        return False


def health(here: Surroundings) -> Iterator[Finding]:
    route, namespace = _named_route(here), here.settings.namespace
    for parent in route["spec"].get("parentRefs", ()):
        at, name = parent.get("namespace", namespace), parent["name"]
        found = cluster_objects.get(here, f"{GATEWAYS}/namespaces/{at}/gateways/{name}")
        describe = f"kubectl describe gateway {name} --namespace={at}"
        if found is None:
            yield Failed(
                NAME, f"there is no Gateway {name} in namespace {at}", BREAKS, f"kubectl get gateways --namespace={at}"
            )
            continue
        programmed = cluster_objects.condition(found, "Programmed")
        if programmed is None or programmed["status"] != "True":
            why = cluster_objects.words(programmed) if programmed else "no controller has looked at it"
            yield Failed(NAME, f"Gateway {name} is not programmed: {why}", BREAKS, describe)
        else:
            addresses = ", ".join(each["value"] for each in found["status"].get("addresses", ()))
            yield Ok(NAME, f"{name} in namespace {at}{f', {addresses}' if addresses else ''}")


def route(here: Surroundings) -> Iterator[Finding]:
    found = _named_route(here)
    name, namespace = found["metadata"]["name"], here.settings.namespace
    describe = f"kubectl describe httproute {name} --namespace={namespace}"
    if wrong := _refused(found):
        yield Failed(ROUTE, f"HTTPRoute {name}: {wrong}", BREAKS, describe)
    else:
        yield Ok(ROUTE, f"HTTPRoute {name} is taken by its gateway")


def pools(here: Surroundings) -> Iterator[Finding]:
    """A finding for each pool of servers."""
    _named_route(here)
    job, namespace = here.named_stream.job, here.settings.namespace
    path = f"{INFERENCE}/namespaces/{namespace}/inferencepools"
    found = cluster_objects.listed(here, path, f"{JOB_LABEL}={job}")
    if not found:
        wrong = f"the stream has a route and no InferencePool in namespace {namespace}"
        yield Failed(POOLS, wrong, BREAKS, _render(here))
        return
    for pool in found:
        yield _pool(here, pool)


def _pool(here: Surroundings, pool: dict[str, Any]) -> Finding:
    name, namespace = pool["metadata"]["name"], here.settings.namespace
    check = f"pool {name}"
    if wrong := _refused(pool):
        return Failed(check, wrong, BREAKS, f"kubectl describe inferencepool {name} --namespace={namespace}")
    picker = pool["spec"]["endpointPickerRef"]["name"]
    if cluster_objects.get(here, f"/api/v1/namespaces/{namespace}/services/{picker}") is None:
        breaks = "routing by load: requests go to any server"
        return Failed(check, f"its endpoint picker, Service {picker}, is not there", breaks, _render(here))
    return (_policies(here, check, name) if gke.is_place_known(here) else None) or Ok(check, f"with its picker {picker}")


def _policies(here: Surroundings, check: str, pool: str) -> Finding | None:
    """What is wrong with GKE's policies for the pool; None if nothing is."""
    health = _policy(here, "healthcheckpolicies", pool)
    path = (health or {}).get("spec", {}).get("default", {}).get("config", {}).get("httpHealthCheck", {}).get("requestPath")
    if path != "/health":
        wrong = (
            "no HealthCheckPolicy is for it" if health is None else f"its HealthCheckPolicy asks for {path or '/'}, not /health"
        )
        breaks = "the stream: the load balancer takes no server for healthy, and answers 503"
        return Failed(check, wrong, breaks, _render(here))
    backend = _policy(here, "gcpbackendpolicies", pool)
    seconds = (backend or {}).get("spec", {}).get("default", {}).get("timeoutSec", 30)
    wanted = here.named_stream.request.timeout_seconds
    if seconds < wanted:
        wrong = f"the load balancer ends a request after {seconds} s, and request.timeout_seconds is {wanted}"
        return Failed(check, wrong, "messages whose answers take longer: they are tried again and again", _render(here))
    for each in (health, backend):
        attached = cluster_objects.condition(each or {}, "Attached")
        if attached and attached["status"] == "False":
            assert each
            wrong = f"its {each['kind']} is not attached: {cluster_objects.words(attached)}"
            fix = f"kubectl describe {each['kind'].lower()} {each['metadata']['name']} --namespace={here.settings.namespace}"
            return Failed(check, wrong, BREAKS, fix)
    return None


def _policy(here: Surroundings, plural: str, pool: str) -> dict[str, Any] | None:
    found = cluster_objects.listed(here, f"{POLICIES}/namespaces/{here.settings.namespace}/{plural}") or []
    wanted = {"name": pool, "kind": "InferencePool"}.items()
    return next((each for each in found if wanted <= each["spec"]["targetRef"].items()), None)


def _refused(found: cluster_objects.Object) -> str:
    """Why a parent does not take a route or a pool; '' if all do."""
    parents = found.get("status", {}).get("parents") or found.get("status", {}).get("parent") or ()
    if not parents:
        return "no gateway has taken it"
    for parent in parents:
        for each in parent.get("conditions", ()):
            if each["type"] in ("Accepted", "ResolvedRefs") and each["status"] != "True":
                return f"{each['type']} is {each['status']}, {cluster_objects.words(each)}"
    return ""


def _render(here: Surroundings) -> str:
    job = here.named_stream.job
    return f"nightshift render streams/{job}.yaml --engine-url=URL --gateway=GATEWAY | kubectl apply --server-side -f -"


def _route(here: Surroundings) -> cluster_objects.Object | None:
    path = f"{GATEWAYS}/namespaces/{here.settings.namespace}/httproutes/{here.named_stream.job}"
    return cluster_objects.get(here, path)


def _named_route(here: Surroundings) -> cluster_objects.Object:
    """Raises NotKnown if there is none."""
    found = _route(here)
    if found is None:
        raise NotKnown(f"{here.named_stream.job} has no HTTPRoute: no gateway is before its servers, or it is not deployed")
    return found
