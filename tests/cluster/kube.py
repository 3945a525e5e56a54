"""What tests ask of a namespace, by kubectl."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml

from local.cluster import build, images, packages
from local.cluster.processes import StartError, run

PATIENCE_S = 300.0
OURS = not (packages.obstacle() or build.obstacle())
# Of a cluster that somebody else runs we know no image; Docker's own has a Python.
IMAGE = images.PYTHON if OURS else "python:3.11-slim"


STREAM_KINDS = (
    "ScaledObject",
    "TriggerAuthentication",
    "InferencePool",
    "HTTPRoute",
    "HealthCheckPolicy",
    "GCPBackendPolicy",
)
"""What a stream's manifests use of local/cluster/programs/crds; those modules have many more."""


class Kubernetes(Protocol):
    """A cluster, ours or another."""

    @property
    def kubeconfig(self) -> Path: ...

    def kubectl(self, *arguments: object, text: str | None = None) -> str: ...


class Existing:
    """A cluster that somebody else runs, for example kind's."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def kubectl(self, *arguments: object, text: str | None = None) -> str:
        return run("kubectl", "--kubeconfig", self.kubeconfig, *arguments, text=text)


def require(cluster: Kubernetes, resource: str) -> None:
    """Skips the test where the cluster does not know a custom resource, such as ``jobsets.jobset.x-k8s.io``."""
    try:
        cluster.kubectl("get", "crd", resource)
    except StartError as error:
        pytest.skip(f"the cluster of {cluster.kubeconfig} has no {resource}: {error}")


def await_kinds(cluster: Kubernetes, *which: object) -> None:
    """Until the API server serves custom resources. which: kubectl's arguments that name their definitions."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            cluster.kubectl("wait", "--for=condition=Established", "--timeout=300s", *which)
            return
        except StartError:
            # The wait fails while a new one has no conditions yet.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class Namespace:
    """One namespace of a cluster."""

    def __init__(self, cluster: Kubernetes, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *arguments: object, text: str | None = None) -> str:
        return self.cluster.kubectl("--namespace", self.name, *arguments, text=text)

    def delete(self) -> None:
        """Begins the end of the namespace and of all in it."""
        # First, and not with the namespace, which deletes pods before Jobs: a Job with a limit per index lets go of a failed
        # pod only when it has made the next one, and in a namespace that ends nothing can be made. Both would stay for ever.
        self.kubectl("delete", "jobsets,jobs", "--all", "--wait=false")
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def create(self, document: dict[str, Any]) -> None:
        self.kubectl("create", "-f", "-", text=yaml.safe_dump(document))

    def get(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", "--selector", selector))["items"]
        return items

    def jobset(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "jobset", name, "-o", "json"))
        return found

    def ended(self, name: str) -> str | None:
        """Completed or Failed, when the JobSet is."""
        conditions = self.jobset(name).get("status", {}).get("conditions", [])
        true = {condition["type"] for condition in conditions if condition["status"] == "True"}
        return next((end for end in ("Completed", "Failed") if end in true), None)

    def wait_until(self, what: str, holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """The first true answer. An API server that does not answer is asked again."""
        deadline = time.monotonic() + patience_s
        last: object = ""
        while time.monotonic() < deadline:
            try:
                if answer := holds():
                    return answer
            except StartError as error:
                last = error
            time.sleep(0.5)
        shown = self.kubectl("get", "all,events")
        raise AssertionError(f"{what} did not happen within {patience_s:.0f} s:\n{shown}\n{last}")


@contextmanager
def a_namespace(cluster: Kubernetes) -> Iterator[Namespace]:
    """A new one, which goes with all that is in it."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    namespace = Namespace(cluster, name)
    namespace.wait_until("its service account", lambda: namespace.get("serviceaccounts"))
    try:
        yield namespace
    finally:
        namespace.delete()


def a_jobset(name: str, code: str, *, pods: int = 2, **pod: Any) -> dict[str, Any]:
    """A JobSet of one Indexed Job whose pods run Python `code`, with the rules for disruptions that nightshift renders."""
    container = {
        "name": "driver",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", code],
    }
    job = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimitPerIndex": 1,
        "podFailurePolicy": {
            "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 15, "containers": [container], **pod}},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": job}}]},
    }


@contextmanager
def a_queue(namespace: Namespace, quota: Mapping[str, str]) -> Iterator[str]:
    """Makes Kueue's queue ``nightly``, for that namespace alone. quota: by resource; a pod there may ask for no other one.

    Gives the name of a priority class that outranks what has none.
    """
    name, kueue = namespace.name, {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    flavors = [{"name": name, "resources": [{"name": resource, "nominalQuota": most} for resource, most in quota.items()]}]
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quota), "flavors": flavors}],
    }
    documents: list[dict[str, Any]] = [
        {**kueue, "kind": "ResourceFlavor", "metadata": {"name": name}},
        {**kueue, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec},
        {**kueue, "kind": "LocalQueue", "metadata": {"name": "nightly"}, "spec": {"clusterQueue": name}},
        {**kueue, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": 1000},
    ]
    namespace.kubectl("create", "-f", "-", text=yaml.safe_dump_all(documents))
    try:
        yield name
    finally:
        # The queue goes with the namespace.
        for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
            namespace.cluster.kubectl("delete", kind, name, "--wait=false")
