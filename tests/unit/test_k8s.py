"""k8s/ and what is rendered name the same things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.jobset.manifest.constants import ENGINE_PORT, METRICS_PORT
from nightshift.jobset.manifest.render import render
from nightshift.profiles import PROFILES, Profile, Provisioning, Span, WorkerShape, fit, profile_of
from nightshift.profiles.hardware import Gpu, Tpu
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

K8S = Path(__file__).parents[2] / "k8s"
ANY = [profile for profile in PROFILES.values() if profile.provisioning is Provisioning.ANY]
TOPOLOGIES = ("1x1", "2x2", "2x4", "4x4")
"""Of the classes that are there; a larger slice is a copy, as components/compute-classes-tpu says."""


def documents(*folders: str) -> list[dict[str, Any]]:
    paths = sorted(path for folder in folders for path in (K8S / folder).rglob("*.yaml") if path.name != "kustomization.yaml")
    return [document for path in paths for document in yaml.safe_load_all(path.read_text())]


def templates() -> list[dict[str, Any]]:
    """The pods of a worker of one host and of one of two."""
    computes = ({"profile": "cpu"}, {"profile": "gpu-h100", "hosts": 2})
    rendered = [render(a_spec(compute=compute), RUN, a_plan(8), Settings("b", "p"), name="n") for compute in computes]
    return [each["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] for each in rendered]


def spans(profile: Profile) -> list[Span]:
    """Each size that has a class of its own."""
    if isinstance(profile.hardware, Tpu):
        return [Span(topology=topology) for topology in TOPOLOGIES]
    assert isinstance(profile.hardware, Gpu)
    return [Span(tensor_parallel=machine.accelerators) for machine in profile.hardware.machines]


def bought(worker: WorkerShape, how: Provisioning, span: Span) -> WorkerShape:
    family = worker.profile.name.removesuffix(Provisioning.ANY)
    return fit(profile_of(f"{family}{how}"), span)


CLASSES = {
    document["metadata"]["name"]: document["spec"]
    for document in documents("components/compute-classes-gpu", "components/compute-classes-tpu")
}


@pytest.mark.parametrize("profile", ANY, ids=lambda profile: profile.name)
def test_a_compute_class_tries_what_the_other_profiles_are(profile: Profile) -> None:
    for span in spans(profile):
        worker = fit(profile, span)
        assert worker.compute_class is not None
        rules = CLASSES[worker.compute_class]["priorities"]
        assert [("spot" in rule, "flexStart" in rule) for rule in rules] == [(True, False), (False, True), (False, False)]
        for how, rule in zip((Provisioning.SPOT, Provisioning.FLEX_START, Provisioning.ON_DEMAND), rules, strict=True):
            machine = bought(worker, how, span).machine
            assert machine is not None
            if isinstance(profile.hardware, Tpu):
                expected = {"type": profile.hardware.label, "count": worker.accelerators, "topology": worker.topology}
                assert rule["tpu"] == expected
            elif isinstance(profile.hardware, Gpu):
                assert rule["machineType"] == machine.name
                assert (rule["gpu"]["type"], rule["gpu"]["count"]) == (profile.hardware.label, machine.accelerators)


def test_there_is_no_other_compute_class() -> None:
    assert set(CLASSES) == {fit(profile, span).compute_class for profile in ANY for span in spans(profile)}


def test_a_running_worker_is_never_moved_to_a_cheaper_machine() -> None:
    assert {spec["activeMigration"]["optimizeRulePriority"] for spec in CLASSES.values()} == {False}


def test_the_defaults_of_the_settings_are_there() -> None:
    names = {(document["kind"], document["metadata"]["name"]) for document in documents("base")}
    settings = Settings("b", "p")

    assert {("Namespace", settings.namespace), ("ServiceAccount", settings.service_account)} <= names


def test_what_is_monitored_is_what_pods_offer() -> None:
    [monitoring] = documents("components/monitoring")
    rendered = render(a_spec(), RUN, a_plan(8), Settings("b", "p"), name="n")
    template = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    ports = {
        port["name"]: port["containerPort"]
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"])
        for port in container["ports"]
    }

    assert {endpoint["port"] for endpoint in monitoring["spec"]["endpoints"]} == set(ports)
    assert ports == {"engine": ENGINE_PORT, "metrics": METRICS_PORT}
    labels = template["metadata"]["labels"]
    assert monitoring["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {each["from"] for each in monitoring["spec"]["targetLabels"]["fromPod"]} <= set(labels)


def test_only_the_collector_may_call_a_worker() -> None:
    """In the base, so in every cluster: vLLM has no password."""
    assert "network.yaml" in yaml.safe_load((K8S / "base/kustomization.yaml").read_text())["resources"]
    [policy] = [document["spec"] for document in documents("base") if document["kind"] == "NetworkPolicy"]
    [rule] = policy["ingress"]

    assert policy["policyTypes"] == ["Ingress"]
    for template in templates():
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gmp-system"}}}]
    assert {port["port"] for port in rule["ports"]} == {ENGINE_PORT, METRICS_PORT}


def test_hosts_of_a_slice_may_call_each_other_where_slices_are() -> None:
    """Policies add up: what the base does not admit, the component of slices does."""
    [policy] = [document["spec"] for document in documents("components/slice-network")]
    peers = [{"podSelector": policy["podSelector"]}]

    assert policy["ingress"] == [{"from": peers}]
    assert policy["egress"] == [{"to": peers}]
    for template in templates():
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    several = {
        path.parent.name for path in (K8S / "overlays").glob("*/kustomization.yaml") if "slice-network" in path.read_text()
    }
    assert several == {"gke-multihost", "gke-tpu-spot"}


@pytest.mark.parametrize("kind", ["PodMonitoring", "NetworkPolicy", "LocalQueue", "ResourceQuota", "LimitRange"])
def test_everything_is_in_the_one_namespace(kind: str) -> None:
    found = [document["metadata"]["namespace"] for document in documents("components") if document["kind"] == kind]

    assert set(found) == {Settings("b", "p").namespace}


def test_a_flavor_takes_the_pods_of_its_accelerator_and_no_others() -> None:
    """Its taint is one that pods with the accelerator tolerate, and pods without do not."""
    flavors = [document for document in documents("overlays") if document["kind"] == "ResourceFlavor"]
    for flavor in flavors:
        labels, taints = flavor["spec"].get("nodeLabels", {}), flavor["spec"].get("nodeTaints", [])
        assert bool(labels) == bool(taints)
        if labels:
            fitting = [
                worker
                for worker in (fit(profile, Span()) for profile in PROFILES.values())
                if labels.items() <= worker.node_selector.items()
            ]
            assert fitting
            for taint in taints:
                assert all(taint["key"] in {each["key"] for each in worker.tolerations} for worker in fitting)
