"""The add-ons of a GKE cluster, and whether this deployment, or the stream that is asked about, needs them.

Fields: GKE API v1, ``AddonsConfig`` and beside it (google.cloud.container_v1.Cluster). ``--addons`` switches off what it does
not name (gcloud's source, ``_AddonsConfig``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from nightshift.doctor import gateway
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.doctor.gke import Document, cluster, is_autopilot, place

NAME: Final = "add-ons"


@dataclass(frozen=True)
class AddOn:
    """name: as gcloud writes it. is_on: in the cluster's document. breaks: what fails without it. on: flag that switches it on.

    wanted: why this deployment, or the stream that is asked about, needs it; '' if it does not.
    """

    name: str
    is_on: Callable[[Document], bool]
    breaks: str
    on: str
    wanted: Callable[[Surroundings], str]
    otherwise: str


def _addon(key: str, *, off: str = "", on: str = "") -> Callable[[Document], bool]:
    """off: the field that is true if the add-on is off. on: the field that is true if it is on."""

    def is_on(found: Document) -> bool:
        config = found.get("addonsConfig", {}).get(key, {})
        # Autopilot has both drivers, whatever its document says ("Compare GKE Autopilot and Standard").
        return bool(config.get(on)) or is_autopilot(found) if on else not config.get(off)

    return is_on


def _always(_: Surroundings) -> str:
    return "every worker"


def _stream(here: Surroundings) -> str:
    return f"the stream {here.stream.job}" if here.stream else ""


def _gateway(here: Surroundings) -> str:
    return f"the stream {here.stream.job}, which has a route," if here.stream and gateway.is_used(here) else ""


def _mounted(here: Surroundings) -> str:
    return "NIGHTSHIFT_WEIGHTS=mount" if here.settings.weights == "mount" else ""


def _enforces_policies(found: Document) -> bool:
    dataplane = found.get("networkConfig", {}).get("datapathProvider") == "ADVANCED_DATAPATH"
    return dataplane or bool(found.get("networkPolicy", {}).get("enabled"))


_ONLY_STREAMS: Final = "only streams need it, and none was named"
_ONLY_GATEWAY: Final = "only a stream behind a gateway needs it"
ADD_ONS: Final = (
    AddOn(
        "HorizontalPodAutoscaling",
        _addon("horizontalPodAutoscaling", off="disabled"),
        "autoscaling: every HorizontalPodAutoscaler stays as it is",
        "--update-addons=HorizontalPodAutoscaling=ENABLED",
        _stream,
        _ONLY_STREAMS,
    ),
    AddOn(
        "HttpLoadBalancing",
        _addon("httpLoadBalancing", off="disabled"),
        "the gateway: GKE programs no load balancer",
        "--update-addons=HttpLoadBalancing=ENABLED",
        _gateway,
        _ONLY_GATEWAY,
    ),
    AddOn(
        "Gateway API",
        lambda found: found.get("networkConfig", {}).get("gatewayApiConfig", {}).get("channel") == "CHANNEL_STANDARD",
        "the gateway: GKE does not look at it",
        "--gateway-api=standard",
        _gateway,
        _ONLY_GATEWAY,
    ),
    AddOn(
        "GcsFuseCsiDriver",
        _addon("gcsFuseCsiDriverConfig", on="enabled"),
        "engines: a bucket with a model cannot be mounted, and the pods stay Pending",
        "--update-addons=GcsFuseCsiDriver=ENABLED",
        _mounted,
        "only NIGHTSHIFT_WEIGHTS=mount needs it",
    ),
    AddOn(
        "managed Prometheus",
        lambda found: bool(found.get("monitoringConfig", {}).get("managedPrometheusConfig", {}).get("enabled")),
        "autoscaling of servers, and the status of streams: nothing collects their metrics",
        "--enable-managed-prometheus",
        _stream,
        "a night runs without it, and nothing collects its metrics",
    ),
    AddOn(
        "workload identity",
        lambda found: bool(found.get("workloadIdentityConfig", {}).get("workloadPool")),
        "infer: pods have no account of their own, and may not read the bucket",
        "--workload-pool={project}.svc.id.goog",
        _always,
        "",
    ),
    AddOn(
        "NetworkPolicy enforcement",
        _enforces_policies,
        "isolation: nothing enforces the NetworkPolicies of k8s/base, so a pod may call anything",
        "--update-addons=NetworkPolicy=ENABLED && gcloud container clusters update {name} {flags} --enable-network-policy",
        _always,
        "",
    ),
)


def add_ons(here: Surroundings) -> Iterator[Finding]:
    """A finding for each."""
    at, found = place(here), cluster(here)
    for each in ADD_ONS:
        name = f"add-on {each.name}"
        if each.is_on(found):
            yield Ok(name, f"on in {at.name}")
            continue
        fix = at.update(each.on.format(project=at.project, name=at.name, flags=at.flags))
        if who := each.wanted(here):
            yield Failed(name, f"it is off in {at.name}, and {who} needs it", each.breaks, fix)
        else:
            yield Skipped(name, f"it is off in {at.name}: {each.otherwise} (to switch it on: {fix})")
