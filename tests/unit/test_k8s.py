"""k8s/ and what is rendered name the same things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.utils.quantity import parse_quantity

from nightshift.jobset.kubernetes import quota
from nightshift.jobset.manifest.constants import ENGINE_PORT, METRICS_PORT
from nightshift.jobset.manifest.disk import node_disk_gb
from nightshift.jobset.manifest.render import render
from nightshift.profiles import (
    PROFILES,
    Profile,
    Provisioning,
    Span,
    WorkerShape,
    fit,
    is_sold,
    misfits,
)
from nightshift.profiles.hardware import Gpu, Tpu
from nightshift.settings import Settings
from nightshift.spec.limits import ENGINES_MAX
from nightshift.spec.profile_names import profile_of
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


BOUGHT: dict[Provisioning, dict[str, Any]] = {
    Provisioning.SPOT: {"spot": True},
    Provisioning.FLEX_START: {"flexStart": {"enabled": True}},
    Provisioning.ON_DEMAND: {},
}
POLICIES = {
    document["metadata"]["name"]: document["spec"] for document in documents("base") if document["kind"] == "NetworkPolicy"
}
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
        family = worker.profile.name.removesuffix(Provisioning.ANY)
        names = {how: f"{family}{how}" for how in BOUGHT if is_sold(profile.hardware, how)}
        tried = [how for how, name in names.items() if not list(misfits(profile_of(name), span))]
        for how, rule in zip(tried, rules, strict=True):
            assert {name: rule[name] for name in ("reservations", "spot", "flexStart") if name in rule} == BOUGHT[how]
            machine = bought(worker, how, span).machine
            assert machine is not None
            if isinstance(profile.hardware, Tpu):
                expected = {"type": profile.hardware.label, "count": worker.accelerators, "topology": worker.topology}
                assert rule["tpu"] == expected
            elif isinstance(profile.hardware, Gpu):
                assert rule["machineType"] == machine.name
                assert rule["gpu"]["driverVersion"] == "latest"
                assert (rule["gpu"]["type"], rule["gpu"]["count"]) == (profile.hardware.label, machine.accelerators)


@pytest.mark.parametrize("profile", ANY, ids=lambda profile: profile.name)
def test_the_disk_of_a_compute_class_has_room_for_as_many_workers_as_fit_on_its_machine(profile: Profile) -> None:
    for span in spans(profile):
        worker = fit(profile, span)
        spec = a_spec(compute={"profile": profile.name, "topology": span.topology, "tensor_parallel": span.tensor_parallel})
        pod = render(spec, RUN, a_plan(8), Settings("b", "p"), name="n")["spec"]["replicatedJobs"][0]["template"]["spec"]
        requested = disk_gib(pod["template"]["spec"])
        for rule in CLASSES[str(worker.compute_class)]["priorities"]:
            count = rule.get("gpu", rule.get("tpu"))["count"]
            assert rule["storage"]["bootDiskSize"] == node_disk_gb(requested, count // worker.accelerators)
            hyperdisk = profile.hardware is not None and profile.hardware.hyperdisk
            assert rule["storage"].get("bootDiskType") == ("hyperdisk-balanced" if hyperdisk else None)


def disk_gib(pod: dict[str, Any]) -> int:
    """What all containers of a pod request."""
    requests = [each["resources"]["requests"]["ephemeral-storage"] for each in (*pod["initContainers"], *pod["containers"])]
    return sum(int(each.removesuffix("Gi")) for each in requests)


@pytest.mark.parametrize(("pod", "pods"), [(12, 1), (36, 1), (92, 8), (652, 1), (4108, 1)])
def test_gke_leaves_pods_the_room_that_they_request(pod: int, pods: int) -> None:
    """Google's "Plan node sizes": eviction begins at 10 %, and the system keeps the least of the three."""
    disk = node_disk_gb(pod, pods)
    allocatable = disk - 0.1 * disk - min(0.5 * disk, 6 + 0.35 * disk, 100)

    assert allocatable >= pod * pods


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
    rendered = render(a_spec(compute__engines=ENGINES_MAX), RUN, a_plan(8), Settings("b", "p"), name="n")
    template = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    ports = {
        port["name"]: port["containerPort"]
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"])
        for port in container["ports"]
    }

    assert {endpoint["port"] for endpoint in monitoring["spec"]["endpoints"]} == set(ports)
    assert (ports["engine"], ports["metrics"]) == (ENGINE_PORT, METRICS_PORT)
    assert {port["port"] for port in POLICIES["workers"]["ingress"][0]["ports"]} == set(ports.values())
    labels = template["metadata"]["labels"]
    assert monitoring["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert {each["from"] for each in monitoring["spec"]["targetLabels"]["fromPod"]} <= set(labels)


def test_only_the_collector_may_call_a_worker() -> None:
    """In the base, so in every cluster: vLLM has no password."""
    assert "network.yaml" in yaml.safe_load((K8S / "base/kustomization.yaml").read_text())["resources"]
    policy = POLICIES["workers"]
    [rule] = policy["ingress"]

    assert policy["policyTypes"] == ["Ingress"]
    for template in templates():
        assert policy["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    collectors = [each["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for each in rule["from"]]
    assert collectors == ["gmp-system", "gke-gmp-system"]
    assert [name for name, spec in POLICIES.items() if spec.get("ingress")] == ["workers"]


def test_no_pod_reaches_what_no_policy_names() -> None:
    assert POLICIES["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert {name for name, spec in POLICIES.items() if spec.get("egress")} == {"names", "metadata-server", "https", "traces"}


def test_every_kind_of_name_server_that_gke_has_can_be_asked() -> None:
    """kube-dns, NodeLocal DNSCache, and Cloud DNS, which the metadata server answers; over UDP, and TCP for long answers."""
    [rule] = POLICIES["names"]["egress"]

    assert rule["to"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}},
        {"ipBlock": {"cidr": "169.254.20.10/32"}},
        {"ipBlock": {"cidr": "169.254.169.254/32"}},
    ]
    assert {(port["protocol"], port["port"]) for port in rule["ports"]} == {("UDP", 53), ("TCP", 53)}


def test_https_reaches_no_private_address() -> None:
    [rule] = POLICIES["https"]["egress"]
    [peer] = rule["to"]

    assert rule["ports"] == [{"protocol": "TCP", "port": 443}]
    assert "169.254.0.0/16" in peer["ipBlock"]["except"]
    assert "10.0.0.0/8" in peer["ipBlock"]["except"]


def test_a_queue_covers_every_resource_that_pods_request() -> None:
    """Kueue never admits what a queue does not cover."""
    queues = [document for document in documents("overlays") if document["kind"] == "ClusterQueue"]
    assert len(queues) == 4
    for queue in queues:
        [group] = queue["spec"]["resourceGroups"]
        covered = set(group["coveredResources"])
        assert {"cpu", "memory", "ephemeral-storage"} <= covered
        assert all({each["name"] for each in flavor["resources"]} == covered for flavor in group["flavors"])
    for template in templates():
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
            assert set(container["resources"]["requests"]) <= {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu"}


def test_only_the_tpus_overlay_admits_root() -> None:
    [namespace] = [document for document in documents("base") if document["kind"] == "Namespace"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    lowered = {path.parent.name for path in (K8S / "overlays").glob("*/kustomization.yaml") if "tpu-pods" in path.read_text()}

    assert lowered == {"gke-tpu-spot"}


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


WORKERS = [
    fit(profile, span)
    for profile in PROFILES.values()
    for span in (spans(profile) if profile.hardware else [Span()])
    if not list(misfits(profile, span))
]


@pytest.mark.parametrize("overlay", ["gke-gpu-spot", "gke-multihost", "gke-tpu-spot"])
def test_no_flavor_puts_another_selector_beside_a_compute_class(overlay: str) -> None:
    """Kueue writes the labels of the flavor that it chooses into the pods."""
    found = documents(f"overlays/{overlay}")
    flavors = {document["metadata"]["name"]: document for document in found if document["kind"] == "ResourceFlavor"}
    [queue] = [document for document in found if document["kind"] == "ClusterQueue"]
    [group] = queue["spec"]["resourceGroups"]
    admitted = 0
    for worker in WORKERS:
        pod = {**worker.requests, "ephemeral-storage": "1Gi"}
        demand = quota.Demand(
            {name: parse_quantity(value) for name, value in pod.items()}, worker.node_selector, tuple(worker.tolerations)
        )
        try:
            if quota.refusal(demand, queue, flavors):
                continue
        except quota.Unknown:
            continue
        for each in quota._suitable(group, demand.requests, demand, flavors):  # Kueue tries the next one if a quota is used up.
            selectors = {**worker.node_selector, **flavors[each["name"]]["spec"].get("nodeLabels", {})}
            if "cloud.google.com/compute-class" in selectors:
                assert selectors == worker.node_selector == {"cloud.google.com/compute-class": worker.compute_class}
                admitted += 1
            else:
                assert not worker.compute_class
    assert admitted


def test_a_flavor_takes_the_pods_of_its_accelerator_and_no_others() -> None:
    """Its taint is one that pods with the accelerator tolerate, and pods without do not."""
    flavors = [document for document in documents("overlays") if document["kind"] == "ResourceFlavor"]
    for flavor in flavors:
        labels, taints = flavor["spec"].get("nodeLabels", {}), flavor["spec"].get("nodeTaints", [])
        assert bool(labels) == bool(taints)
        if labels:
            fitting = [worker for worker in WORKERS if labels.items() <= worker.node_selector.items()]
            assert fitting
            for taint in taints:
                assert all(taint["key"] in {each["key"] for each in worker.tolerations} for worker in fitting)


AUTOSCALER_CUTOFF = -10
"""The cluster autoscaler's default of ``--expendable-pods-priority-cutoff``, which nobody can set on GKE: pods below it do not
cause scale up (kubernetes/autoscaler, cluster-autoscaler/FAQ.md, "How does Cluster Autoscaler work with Pod Priority and
Preemption?")."""


@pytest.mark.parametrize("overlay", sorted(path.name for path in (K8S / "overlays").iterdir()))
def test_the_autoscaler_makes_nodes_for_pods_of_a_night(overlay: str) -> None:
    """Of each overlay, whichever components it has. A class above 0 would not give way to services."""
    [path] = (K8S / "overlays" / overlay).glob("kustomization.yaml")
    folders = [(path.parent / each).resolve() for each in yaml.safe_load(path.read_text()).get("components", ())]
    classes = [
        each for folder in folders for each in documents(str(folder.relative_to(K8S))) if each["kind"] == "PriorityClass"
    ]

    assert [each["metadata"]["name"] for each in classes] == ["nightshift-batch"]
    assert [each["value"] for each in classes if not AUTOSCALER_CUTOFF <= each["value"] < 0] == []
