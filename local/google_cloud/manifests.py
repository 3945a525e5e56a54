"""What `kubectl apply` reads: a folder of kustomize as far as `k8s/` uses it, and the releases that pages name by address.

Patches and replacements of kustomize are left out: a real kustomize and a real API server have them in `tests/cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

Document = dict[str, Any]

JOBSET: Final = "https://github.com/kubernetes-sigs/jobset/releases/download/"
KUEUE: Final = "https://github.com/kubernetes-sigs/kueue/releases/download/"
ADAPTER: Final = "https://raw.githubusercontent.com/GoogleCloudPlatform/k8s-stackdriver/"
RELEASES: Final = {
    JOBSET: ("jobset-system", "jobset-controller-manager", ("jobset.x-k8s.io/JobSet",)),
    KUEUE: (
        "kueue-system",
        "kueue-controller-manager",
        tuple(
            f"kueue.x-k8s.io/{kind}"
            for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass", "Workload", "AdmissionCheck")
        ),
    ),
    ADAPTER: ("custom-metrics", "custom-metrics-stackdriver-adapter", ()),
}
"""By the beginning of the address: namespace, Deployment, and the kinds that it brings."""


def release(url: str) -> tuple[list[Document], tuple[str, ...]] | None:
    """The objects of a release as far as pages name them, and its kinds (GROUP/KIND); None if there is none at that address.

    An address without a version (``master``, ``latest``) is another release tomorrow, so it is none.
    """
    for prefix, (namespace, deployment, kinds) in RELEASES.items():
        if url.startswith(prefix) and not any(each in url for each in ("/master/", "/main/", "/latest/")):
            return [
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
                {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": deployment, "namespace": namespace}},
            ], kinds
    return None


def kustomized(folder: Path, namespace: str = "") -> Iterator[Document]:
    """The objects of a kustomization and of its components. Raises OSError if there is none."""
    own = yaml.load((folder / "kustomization.yaml").read_text(), yaml.CSafeLoader)
    namespace = own.get("namespace", namespace)
    for each in (*own.get("resources", ()), *own.get("components", ())):
        if each.startswith("https://"):
            found = release(each)
            if found is None:
                raise FileNotFoundError(each)
            yield from found[0]
            continue
        path = folder / each
        if path.is_dir():
            yield from kustomized(path, namespace)
            continue
        for document in read(path.read_text()):
            if "config.kubernetes.io/local-config" in document["metadata"].get("annotations", {}):
                continue
            if namespace and "namespace" not in document["metadata"] and document["kind"] not in CLUSTER_WIDE:
                document["metadata"]["namespace"] = namespace
            yield document


def brought(folder: Path) -> tuple[str, ...]:
    """The kinds of the releases that a kustomization names (GROUP/KIND)."""
    resources = yaml.load((folder / "kustomization.yaml").read_text(), yaml.CSafeLoader).get("resources", ())
    releases = [release(each) for each in resources if each.startswith("https://")]
    return tuple(kind for found in releases if found for kind in found[1])


CLUSTER_WIDE: Final = {
    "Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "ComputeClass", "ClusterQueue", "ResourceFlavor",
    "WorkloadPriorityClass", "GatewayClass",
}  # fmt: skip


def read(text: str) -> list[Document]:
    """The documents of a YAML text, without empty ones."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
