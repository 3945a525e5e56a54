"""The cluster as Google Cloud describes it: its state, its version and its endpoint.

Fields: GKE API v1, ``projects.locations.clusters`` (google.cloud.container_v1.Cluster).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.doctor import google_api
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok
from nightshift.hooks.services import Wrong
from nightshift.settings import GKE_CLUSTER, GKE_FORM

NAME: Final = "gke cluster"
WELL: Final = ("RUNNING", "RECONCILING")
"""States of a cluster, or of a node pool, in which it works; RECONCILING is an upgrade, for example."""
VERSION_LEAST: Final = (1, 33)
"""From here on native sidecars and indexes with a backoff limit of their own are stable (Kubernetes 1.33's changelog)."""
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a GKE cluster is. location: a region, or a zone of a zonal cluster."""

    project: str
    location: str
    name: str

    @property
    def region(self) -> str:
        return self.location.rpartition("-")[0] if self.location.count("-") > 1 else self.location

    @property
    def flags(self) -> str:
        return f"--location={self.location} --project={self.project}"

    def update(self, flag: str) -> str:
        """The command that changes the cluster."""
        return f"gcloud container clusters update {self.name} {self.flags} {flag}"


def place(here: Surroundings) -> Place:
    """Raises NotKnown if the runtime is no GKE cluster by its full name."""
    found = GKE_CLUSTER.fullmatch(here.settings.runtime)
    if found is None:
        raise NotKnown(
            "Airflow reaches the cluster over a connection, so its project and name are not known "
            f"(NIGHTSHIFT_RUNTIME={GKE_FORM} says them)"
        )
    return Place(found["project_id"], found["location"], found["cluster_name"])


def is_place_known(here: Surroundings) -> bool:
    return GKE_CLUSTER.fullmatch(here.settings.runtime) is not None


def cluster(here: Surroundings) -> Document:
    """The cluster, with its node pools. Raises as `google_api.read` does, and Wrong if there is none."""
    at = place(here)
    path = f"v1/projects/{at.project}/locations/{at.location}/clusters/{at.name}"
    try:
        return google_api.read(here.connections.google(), google_api.CONTAINER, path, project=at.project)
    except google_api.NotThere:
        raise Wrong(
            f"there is no cluster {at.name} in {at.location} of {at.project} (NIGHTSHIFT_RUNTIME)",
            f"gcloud container clusters list --project={at.project}",
        ) from None


def version_of(found: Document) -> tuple[int, ...]:
    """Of the control plane: ``1.34.1-gke.1829001`` is (1, 34, 1)."""
    return tuple(int(part) for part in str(found["currentMasterVersion"]).partition("-")[0].split("."))


def is_autopilot(found: Document) -> bool:
    return bool(found.get("autopilot", {}).get("enabled"))


def there(here: Surroundings) -> Iterator[Finding]:
    at, found = place(here), cluster(here)
    breaks = "infer, and every stream"
    describe = f"gcloud container clusters describe {at.name} {at.flags}"
    status = found.get("status", "")
    if status not in WELL:
        words = "; ".join(each.get("message", "") for each in found.get("conditions", ()))
        yield Failed(NAME, f"{at.name} is {status}{f': {words}' if words else ''}", breaks, describe)
        return
    if version_of(found)[:2] < VERSION_LEAST:
        least = ".".join(map(str, VERSION_LEAST))
        wrong = f"{at.name} runs {found['currentMasterVersion']}, and nightshift needs {least} or later"
        upgrade = f"gcloud container clusters upgrade {at.name} {at.flags} --master --cluster-version={least}"
        yield Failed(NAME, wrong, "infer: native sidecars and backoff limits of single indexes", upgrade)
        return
    endpoint = found.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
    if not endpoint.get("allowExternalTraffic"):
        wrong = "its DNS endpoint takes no calls from outside, and Airflow calls no other"
        yield Failed(NAME, wrong, "infer: Airflow does not reach the cluster", at.update("--enable-dns-access"))
        return
    mode = "Autopilot" if is_autopilot(found) else "Standard"
    yield Ok(NAME, f"{at.name} in {at.location}, {mode}, {found['currentMasterVersion']}, reached by its DNS endpoint")
