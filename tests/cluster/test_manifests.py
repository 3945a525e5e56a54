"""What is rendered, and what k8s/ holds, is accepted by a real API server with the real JobSet and Kueue webhooks.

A server-side dry run of a JobSet makes no pods, so the pod of each template is tried by itself too, in a namespace that
enforces the restricted pod security standard.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from local.cluster.processes import StartError
from nightshift.jobset.manifest import render, to_yaml
from nightshift.profiles import PROFILES
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec
from tests.cluster.kube import Namespace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
PLAN = a_plan(rows=64, workers=2)
BUCKET_MODEL = {"name": "m", "uri": "gs://models/org/m", "revision": "r1"}


@pytest.fixture
def restricted(namespace: Namespace) -> Namespace:
    namespace.cluster.kubectl("label", "namespace", namespace.name, RESTRICTED)
    namespace.kubectl("create", "serviceaccount", "nightshift-worker")
    return namespace


def computes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every profile, with the largest engine of one host and, where there are any, of several."""
    for name in PROFILES:
        yield name, {"profile": name}
        if name.startswith("tpu-"):
            yield f"{name} 4x4", {"profile": name, "topology": "4x4"}
        elif name.startswith("gpu-"):
            yield f"{name} x8", {"profile": name, "tensor_parallel": 8}
        if name.startswith(("gpu-h100", "gpu-h200", "gpu-b200")):
            yield f"{name} 2 hosts", {"profile": name, "hosts": 2}


def rendered(namespace: Namespace) -> list[dict[str, Any]]:
    settings = Settings(bucket="runs", project="acme", namespace=namespace.name, image_pull_policy="IfNotPresent")
    manifests = []
    for number, (_, compute) in enumerate(computes()):
        for queue, weights in ((None, "stream"), ("nightly", "mount")):
            spec = a_spec(compute=compute, model=BUCKET_MODEL, queue=queue, priority=queue and "nightly-low")
            manifests.append(render(spec, RUN, PLAN, replace(settings, weights=weights), name=f"night-{number}-{weights}"))
    return manifests


def dry_run(namespace: Namespace, documents: list[dict[str, Any]]) -> str:
    """kubectl's words for each document; raises StartError with the API server's for those that it refuses."""
    text = "---\n".join(map(to_yaml, documents))
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    return namespace.kubectl(*arguments, text=text)


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The pod that the template makes, as the Job's controller would create it."""
    [replicated] = manifest["spec"]["replicatedJobs"]
    template = replicated["template"]["spec"]["template"]
    metadata = {**template["metadata"], "name": manifest["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}


def test_every_rendered_manifest_is_accepted(restricted: Namespace) -> None:
    manifests = rendered(restricted)

    said = dry_run(restricted, manifests)

    assert said.count("serverside-applied") == len(manifests) == len({each["metadata"]["name"] for each in manifests})


def test_every_rendered_pod_is_admitted_under_the_restricted_standard(restricted: Namespace) -> None:
    pods = [pod_of(each) for each in rendered(restricted)]

    said = dry_run(restricted, pods)

    assert said.count("serverside-applied") == len(pods)


def test_the_namespace_does_refuse_a_pod(restricted: Namespace) -> None:
    """Else the test above proves nothing."""
    [pod, *_] = [pod_of(each) for each in rendered(restricted)]
    del pod["spec"]["securityContext"]["seccompProfile"]

    with pytest.raises(StartError, match="violates PodSecurity"):
        dry_run(restricted, [pod])


def test_the_api_server_does_refuse_a_field(restricted: Namespace) -> None:
    [manifest, *_] = rendered(restricted)
    manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 1

    with pytest.raises(StartError, match="backofLimit"):
        dry_run(restricted, [manifest])
