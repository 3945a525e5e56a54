"""A stream's manifests, in every variant, are accepted by a real API server that has the kinds of the gateway and of KEDA.

Their kinds come from the projects' own modules (local/cluster/programs/crds), Google's PodMonitoring from tests/cluster/crds. A
dry run of a Deployment makes no pods, so the pod of each template is tried by itself, under the standard that it must satisfy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from local.cluster.processes import StartError
from nightshift.profiles import PROFILES
from nightshift.settings import Settings
from nightshift.stream.manifests.render import render
from tests.builders import RESERVATIONS
from tests.cluster.kube import STREAM_KINDS, Namespace
from tests.cluster.test_manifests import RESTRICTED, STANDARD, dry_run
from tests.stream_manifests import CLUSTER, GATEWAY, PLAIN, VARIANTS, an_order

pytestmark = [pytest.mark.cluster, pytest.mark.gate, pytest.mark.timeout(600)]


@pytest.fixture
def restricted(namespace: Namespace, stream_kinds: None) -> Namespace:
    namespace.cluster.kubectl("label", "namespace", namespace.name, RESTRICTED)
    for account in ("nightshift-worker", "package-texts-subscriber", "package-texts-server-epp"):
        namespace.kubectl("create", "serviceaccount", account)
    return namespace


def settings(namespace: Namespace) -> Settings:
    found = Settings(bucket="runs", project="acme", runtime=CLUSTER, namespace=namespace.name, reservations=RESERVATIONS)
    return replace(found, image_pull_policy="IfNotPresent")


def of_all_variants(namespace: Namespace) -> list[dict[str, Any]]:
    """Under names that tell the variants apart."""
    found = []
    for number, (variant, changes) in enumerate(VARIANTS.values()):
        for document in render(an_order(variant, settings(namespace), **changes)):
            document["metadata"]["name"] += f"-{number}"
            found.append(document)
    return found


def pods_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the Deployments' controller would create them."""
    found = []
    for number, document in enumerate(each for each in documents if each["kind"] == "Deployment"):
        template = document["spec"]["template"]
        metadata = {**template["metadata"], "name": f"{document['metadata']['name']}-{number}"}
        found.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})
    return found


def test_every_variant_is_accepted(restricted: Namespace) -> None:
    documents = of_all_variants(restricted)

    said = dry_run(restricted, documents)

    assert said.count("serverside-applied") == len(documents)
    assert set(STREAM_KINDS) < {each["kind"] for each in documents}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://texts%40acme.iam@10.1.2.3:6432/catalog",
        "postgresql://u:p@10.1.2.3:5433,[fd00::1]:5432/catalog",
        "postgresql://u:p@127.0.0.1/catalog",
    ],
    ids=["token", "several", "proxy"],
)
def test_every_way_to_a_database_is_accepted(restricted: Namespace, url: str) -> None:
    documents = render(replace(an_order(PLAIN, settings(restricted)), sink_url=url))

    assert dry_run(restricted, documents).count("serverside-applied") == len(documents)


def test_the_picker_is_admitted_under_the_strictest_standard(restricted: Namespace) -> None:
    pods = pods_of(render(an_order(GATEWAY, settings(restricted))))

    assert [each["spec"]["serviceAccountName"] for each in pods].count("package-texts-server-epp") == 1
    assert dry_run(restricted, pods).count("serverside-applied") == len(pods) == 3


def test_pods_on_every_machine_are_admitted_under_the_standard_of_their_overlay(restricted: Namespace) -> None:
    on_tpus: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for name in PROFILES:
        pods = pods_of(render(an_order(PLAIN, settings(restricted), compute={"profile": name})))
        subscriber, server = pods
        for pod in pods:
            pod["metadata"]["name"] += f"-{name}"
        others.append(subscriber)
        (on_tpus if name.startswith("tpu-") else others).append(server)

    assert dry_run(restricted, others).count("serverside-applied") == len(others)
    restricted.cluster.kubectl("label", "--overwrite", "namespace", restricted.name, f"{STANDARD}=baseline")
    assert dry_run(restricted, on_tpus).count("serverside-applied") == len(on_tpus) > 0


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("HTTPRoute", ("spec", "rules", 0, "backendRefs", 0, "share"), 10, "share"),
        ("InferencePool", ("spec", "endpointPicker"), {}, "endpointPicker"),
        ("HealthCheckPolicy", ("spec", "default", "config", "httpHealthCheck", "path"), "/", "path"),
        ("HealthCheckPolicy", ("spec", "default", "config", "type"), "HTTP1", "HTTP1"),
        ("GCPBackendPolicy", ("spec", "default", "timeoutSec"), 0, "timeoutSec"),
        ("GCPBackendPolicy", ("spec", "default", "timeout"), 60, "timeout"),
        ("ScaledObject", ("spec", "minReplicas"), 0, "minReplicas"),
        ("HorizontalPodAutoscaler", ("spec", "metrics", 0, "type"), "Extern", "Extern"),
        ("PodMonitoring", ("spec", "endpoints", 0, "every"), "30s", "every"),
    ],
)
def test_the_api_server_does_refuse_a_mistake(
    restricted: Namespace, kind: str, path: tuple[str | int, ...], value: Any, said: str
) -> None:
    """Else the tests above prove nothing."""
    document: Any = next(each for each in of_all_variants(restricted) if each["kind"] == kind)
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value

    with pytest.raises(StartError, match=said):
        dry_run(restricted, [document])
