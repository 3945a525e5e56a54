"""The objects of a cluster: which kinds it knows, and which objects it holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from local.google_cloud import clusters
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.manifests import CLUSTER_WIDE, Document
from local.google_cloud.state import Fields, kubernetes_type

BUILT_IN: Final = {
    "", "apps", "batch", "rbac.authorization.k8s.io", "networking.k8s.io", "scheduling.k8s.io", "policy", "autoscaling",
    "storage.k8s.io",
}  # fmt: skip
CRD: Final = "apiextensions.k8s.io/CustomResourceDefinition"
"""CLUSTER/k8s/customresourcedefinitions/GROUP-KIND: kind (``jobset.x-k8s.io/JobSet``)."""
GATEWAY: Final = ("gateway.networking.k8s.io", "networking.gke.io", "inference.networking.k8s.io")


def plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith("y") and lower[-2] not in "aeiou":
        return f"{lower[:-1]}ies"
    return f"{lower}es" if lower.endswith("s") else f"{lower}s"


def compute_class_is_there(cloud: Cloud, cluster: Fields) -> bool:
    return cloud.state.seconds >= int(cluster.get("createdAtSeconds", 0)) + clusters.COMPUTE_CLASS_S


def knows(cloud: Cloud, cluster: str, api_version: str, kind: str) -> bool:
    """Whether the cluster's API has the kind now."""
    group = api_version.rpartition("/")[0]
    fields = cloud.state.of(types.CLUSTER)[cluster]
    if group in BUILT_IN:
        return True
    if group == "cloud.google.com" and kind == "ComputeClass":
        return compute_class_is_there(cloud, fields)
    if group == "monitoring.googleapis.com":
        return bool(fields.get("monitoringConfig", {}).get("managedPrometheusConfig", {}).get("enabled"))
    if group in GATEWAY:
        channel = (
            fields.get("networkConfig", {}).get("gatewayApiConfig", {}).get("channel", "").removeprefix("CHANNEL_").lower()
        )
        return channel == "standard" and not clusters.disabled(fields, "httpLoadBalancing")
    return cloud.state.get(CRD, f"{cluster}/k8s/customresourcedefinitions/{group}-{kind}") is not None


def bring(cloud: Cloud, cluster: str, kinds: Iterable[str]) -> None:
    """CRDs; kinds: GROUP/KIND of each."""
    for each in kinds:
        cloud.state.put(CRD, f"{cluster}/k8s/customresourcedefinitions/{each.replace('/', '-')}", {"kind": each})


def path(cluster: str, resources: str, name: str, namespace: str = "") -> str:
    return f"{cluster}/k8s/{f'namespaces/{namespace}/' if namespace else ''}{resources}/{name}"


def get(cloud: Cloud, cluster: str, resources: str, name: str, namespace: str = "") -> Fields | None:
    """An object by its plural (``serviceaccounts``)."""
    where = path(cluster, resources, name, namespace)
    return next((objects[where] for objects in cloud.state.resources.values() if where in objects), None)


def apply(cloud: Cloud, cluster: str, documents: list[Document], dry_run: bool) -> list[str]:
    """What kubectl prints, a line for each object; namespaces come first. Raises Refused at the first that is refused."""
    lines = []
    for each in sorted(documents, key=lambda document: document["kind"] != "Namespace"):
        kind, meta = each["kind"], each["metadata"]
        namespace = "" if kind in CLUSTER_WIDE else meta.get("namespace", "default")
        if not knows(cloud, cluster, each["apiVersion"], kind):
            raise Refused(
                f'error: resource mapping not found for name: "{meta["name"]}" namespace: "{namespace}" from "STDIN": no '
                f'matches for kind "{kind}" in version "{each["apiVersion"]}"\nensure CRDs are installed first'
            )
        if namespace not in ("", "default") and get(cloud, cluster, "namespaces", namespace) is None:
            raise Refused(f'Error from server (NotFound): namespaces "{namespace}" not found')
        if not dry_run:
            where = path(cluster, plural(kind), meta["name"], namespace)
            cloud.state.put(kubernetes_type(each["apiVersion"], kind), where, each)
        lines.append(f"{kind.lower()}/{meta['name']} serverside-applied{' (server dry run)' if dry_run else ''}")
    return lines


def objects(cloud: Cloud, cluster: str, api_version: str, kind: str) -> list[dict[str, Any]]:
    """All of a kind in a cluster."""
    found = cloud.state.of(kubernetes_type(api_version, kind))
    return [fields for name, fields in found.items() if name.startswith(f"{cluster}/")]
