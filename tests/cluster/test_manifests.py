"""What is rendered, and what k8s/ holds, is accepted by a real API server with the real JobSet and Kueue webhooks.

A server-side dry run of a JobSet makes no pods, so the pod of each template is tried by itself too, in a namespace that
enforces the pod security standard of the overlay for it: "restricted", and "baseline" for TPUs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.cluster import build
from local.cluster.processes import StartError, run
from nightshift.jobset.manifest.model_copy import render_copy
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.profiles import PROFILES, Provisioning, Span, fit
from nightshift.profiles.hardware import Tpu
from nightshift.settings import Settings
from tests.builders import RESERVATIONS, RUN, a_plan, a_spec
from tests.cluster.kube import OURS, Kubernetes, Namespace, await_kinds, require

pytestmark = [pytest.mark.cluster, pytest.mark.gate, pytest.mark.timeout(600)]

K8S = Path(__file__).parents[2] / "k8s"
CRDS = Path(__file__).parent / "crds"
OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir())
STANDARD = "pod-security.kubernetes.io/enforce"
RESTRICTED = f"{STANDARD}=restricted"
PLAN = a_plan(rows=64, workers=2)
BUCKET_MODEL = {"name": "m", "uri": "gs://models/org/m", "revision": "r1"}


@pytest.fixture
def restricted(namespace: Namespace) -> Namespace:
    namespace.cluster.kubectl("label", "namespace", namespace.name, RESTRICTED)
    for account in ("nightshift-worker", "nightshift-job"):
        namespace.kubectl("create", "serviceaccount", account)
    return namespace


def computes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every profile, with the largest engine of one host and, where there are any, of several."""
    for name in PROFILES:
        yield name, {"profile": name}
        if name.startswith("tpu-") and not name.endswith("-flex"):
            yield f"{name} 4x4", {"profile": name, "topology": "4x4"}
        elif name.startswith("gpu-"):
            yield f"{name} x8", {"profile": name, "tensor_parallel": 8}
        if name.startswith(("gpu-h100", "gpu-h200", "gpu-b200")):
            yield f"{name} 2 hosts", {"profile": name, "hosts": 2}


def rendered(namespace: Namespace) -> list[dict[str, Any]]:
    settings = Settings(
        bucket="runs", project="acme", namespace=namespace.name, image_pull_policy="IfNotPresent", reservations=RESERVATIONS
    )
    manifests = []
    for number, (_, compute) in enumerate(computes()):
        # With an account of its own, a job's pods have a container more.
        for queue, weights, account in ((None, "stream", "nightshift-worker"), ("nightly", "mount", "nightshift-{job}")):
            spec = a_spec(compute=compute, model=BUCKET_MODEL, queue=queue, priority=queue and "nightly-low")
            own = replace(settings, weights=weights, service_account=account)
            manifests.append(render(spec, RUN, PLAN, own, name=f"night-{number}-{weights}"))
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


def test_the_job_that_copies_a_model_is_accepted(restricted: Namespace) -> None:
    settings = Settings(bucket="runs", project="acme", namespace=restricted.name)
    documents = render_copy("org/m", "a" * 40, "gs://models", settings)
    [pod] = [{**each["spec"]["template"], "apiVersion": "v1", "kind": "Pod"} for each in documents if each["kind"] == "Job"]
    pod["metadata"] = {**pod["metadata"], "name": "copy"}
    restricted.kubectl("create", "serviceaccount", "nightshift-models")

    assert dry_run(restricted, [*documents, pod]).count("serverside-applied") == 3


def is_tpu(pod: dict[str, Any]) -> bool:
    return "google.com/tpu" in pod["spec"]["initContainers"][-1]["resources"]["requests"]


def test_every_rendered_pod_is_admitted_under_the_standard_of_its_overlay(restricted: Namespace) -> None:
    pods = [pod_of(each) for each in rendered(restricted)]
    on_tpus = [pod for pod in pods if is_tpu(pod)]
    others = [pod for pod in pods if not is_tpu(pod)]

    assert dry_run(restricted, others).count("serverside-applied") == len(others)
    restricted.cluster.kubectl("label", "--overwrite", "namespace", restricted.name, f"{STANDARD}=baseline")
    assert dry_run(restricted, on_tpus).count("serverside-applied") == len(on_tpus) > 0


def test_the_pods_of_tpus_need_the_standard_of_their_overlay(restricted: Namespace) -> None:
    [pod, *_] = [pod for pod in map(pod_of, rendered(restricted)) if is_tpu(pod)]

    with pytest.raises(StartError, match=r"violates PodSecurity.*runAsNonRoot"):
        dry_run(restricted, [pod])


def test_the_standard_of_each_overlay() -> None:
    standards = {}
    for name in OVERLAYS:
        [namespace] = [document for document in overlay(name) if document["kind"] == "Namespace"]
        standards[name] = namespace["metadata"]["labels"][STANDARD]

    assert standards == {name: "baseline" if "tpu" in name else "restricted" for name in OVERLAYS}


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


@pytest.fixture
def vendors_kinds(cluster: Kubernetes) -> None:
    """What only Google's clusters know, so that the API server can judge it here."""
    if not OURS:
        pytest.skip("only a cluster of our own is given new kinds")
    for path in sorted(CRDS.glob("*.yaml")):
        cluster.kubectl("apply", "--server-side", "-f", path)
        await_kinds(cluster, "-f", path)


def overlay(name: str, *, root: Path = K8S) -> list[dict[str, Any]]:
    """What ``kubectl apply -k`` would apply."""
    text = run(build.Programs()["kubectl"] if OURS else "kubectl", "kustomize", root / "overlays" / name)
    return [document for document in yaml.safe_load_all(text) if document]


def moved(documents: list[dict[str, Any]], namespace: str) -> list[dict[str, Any]]:
    """The same in another namespace: a dry run makes none, and tests run beside each other."""
    text = yaml.safe_dump_all(documents)
    return list(yaml.safe_load_all(text.replace("namespace: nightshift\n", f"namespace: {namespace}\n")))


@pytest.mark.parametrize("name", OVERLAYS)
@pytest.mark.usefixtures("vendors_kinds")
def test_every_overlay_is_accepted(restricted: Namespace, name: str) -> None:
    documents = moved(overlay(name), restricted.name)

    said = dry_run(restricted, documents)

    assert said.count("serverside-applied") == len(documents) > 5


@pytest.mark.usefixtures("vendors_kinds")
def test_the_image_cache_is_accepted(restricted: Namespace, tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    path = tmp_path / "k8s/overlays/gke-gpu-spot/kustomization.yaml"
    path.write_text(path.read_text().replace("  # - ../../components/image-cache", "  - ../../components/image-cache"))
    documents = moved(overlay("gke-gpu-spot", root=tmp_path / "k8s"), restricted.name)

    dry_run(restricted, documents)

    classes = [document for document in documents if document["kind"] == "ComputeClass"]
    disks = [each["storage"]["secondaryBootDisks"][0] for document in classes for each in document["spec"]["priorities"]]
    assert len(disks) == sum(len(each["spec"]["priorities"]) for each in classes) > 2 * len(classes)
    assert {(disk["diskImageName"], disk["project"]) for disk in disks} == {("nightshift-images", "CLUSTER_PROJECT")}
    assert all(each["storage"]["bootDiskSize"] > 100 for spec in classes for each in spec["spec"]["priorities"])


@pytest.mark.usefixtures("vendors_kinds")
@pytest.mark.parametrize("cached", [False, True], ids=["alone", "with the image cache"])
def test_compute_classes_try_a_reservation_first(restricted: Namespace, tmp_path: Path, cached: bool) -> None:
    """On the machine that can be reserved, which is the one that is sold on demand, if any is."""
    shutil.copytree(K8S, tmp_path / "k8s")
    names = ("image-cache", "reservations") if cached else ("reservations",)
    for name in ("gke-gpu-spot", "gke-tpu-spot"):
        path = tmp_path / "k8s/overlays" / name / "kustomization.yaml"
        had = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("  #"))
        path.write_text("\n".join([had, *(f"  - ../../components/{each}" for each in names), ""]))
        if "imageCache" not in (data := path.with_name("deployment.yaml")).read_text():
            data.write_text(data.read_text() + "  imageCache: nightshift-images\n")
        documents = moved(overlay(name, root=tmp_path / "k8s"), restricted.name)
        dry_run(restricted, documents)

        classes = {each["metadata"]["name"]: each["spec"]["priorities"] for each in documents if each["kind"] == "ComputeClass"}
        tried = 0
        for profile in PROFILES.values():
            hardware = profile.hardware
            if profile.provisioning is not Provisioning.RESERVATION or hardware is None:
                continue
            spans = (
                [Span(topology=topology) for topology in ("1x1", "2x2", "2x4", "4x4")]
                if isinstance(hardware, Tpu)
                else [Span(tensor_parallel=machine.accelerators) for machine in hardware.machines]
            )
            for span in spans:
                any_ = fit(PROFILES[profile.name.replace("-reservation", "-any")], span)
                machine = fit(profile, span).machine
                if any_.compute_class in classes and machine is not None:
                    first, *others = classes[any_.compute_class]
                    assert first["reservations"] == {"affinity": "Specific", "specific": [{"name": "nightshift-nights"}]}
                    assert first.get("machineType", machine.name) == machine.name
                    assert not first.keys() & {"spot", "flexStart"}
                    assert others
                    assert not any("reservations" in rule for rule in others)
                    assert all(("secondaryBootDisks" in rule["storage"]) == cached for rule in (first, *others))
                    tried += 1
        assert tried == len(classes) > 0


@pytest.mark.usefixtures("vendors_kinds")
def test_the_alerts_are_accepted(restricted: Namespace, tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    path = tmp_path / "k8s/overlays/gke-gpu-spot/kustomization.yaml"
    path.write_text(path.read_text() + "  - ../../components/alert-rules\n")
    [rules] = [each for each in overlay("gke-gpu-spot", root=tmp_path / "k8s") if each["kind"] == "GlobalRules"]

    assert "serverside-applied" in dry_run(restricted, [rules])
    rules["spec"]["groups"][0]["rules"][0]["summary"] = "x"
    with pytest.raises(StartError, match="summary"):
        dry_run(restricted, [rules])


def test_what_airflow_may_do_is_in_every_overlay() -> None:
    for name in OVERLAYS:
        [role] = [document for document in overlay(name) if document["kind"] == "Role"]
        assert role["metadata"]["name"] == "nightshift-airflow"
        assert not [rule for rule in role["rules"] if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]


def test_airflows_account_is_bound_by_its_address_and_by_its_unique_id(tmp_path: Path) -> None:
    """Its id looks like a number, and a subject's name must be a text."""
    shutil.copytree(K8S, tmp_path / "k8s")
    gke = [name for name in OVERLAYS if name.startswith("gke-")]
    for name in gke:
        path = tmp_path / "k8s/overlays" / name / "deployment.yaml"
        path.write_text(path.read_text().replace("AIRFLOW_ID", "110000000000000000001"))
        documents = overlay(name, root=tmp_path / "k8s")
        for kind in ("RoleBinding", "ClusterRoleBinding"):
            bindings = [document for document in documents if document["kind"] == kind]
            assert bindings
            for binding in bindings:
                assert [(each["kind"], each["name"]) for each in binding["subjects"]] == [
                    ("ServiceAccount", "nightshift-airflow"),
                    ("User", "AIRFLOW_ACCOUNT"),
                    ("User", "110000000000000000001"),
                ]
    assert len(gke) == 3


def test_nodes_of_compute_classes_run_as_their_own_account() -> None:
    for name in OVERLAYS:
        classes = [document["spec"] for document in overlay(name) if document["kind"] == "ComputeClass"]
        assert {spec["nodePoolConfig"]["serviceAccount"] for spec in classes} <= {"NODE_ACCOUNT"}
        assert bool(classes) == name.startswith("gke-")


@pytest.fixture
def queue(restricted: Namespace) -> Iterator[str]:
    """The GPU overlay's cluster queue, for one namespace; its name is that of the namespace."""
    require(restricted.cluster, "clusterqueues.kueue.x-k8s.io")
    documents = list(yaml.safe_load_all((K8S / "overlays/gke-gpu-spot/cluster-queue.yaml").read_text()))
    documents += list(yaml.safe_load_all((K8S / "components/queues/queue.yaml").read_text()))
    text = yaml.safe_dump_all(documents)
    for flavor in ("nvidia-l4", *(f"gpu-l4-x{count}-any" for count in (1, 2, 4, 8)), "no-accelerator"):
        text = text.replace(f"name: {flavor}\n", f"name: {restricted.name}-{flavor}\n")
    text = text.replace(": nightshift\n", f": {restricted.name}\n")
    restricted.cluster.kubectl("apply", "--server-side", "-f", "-", text=text)
    yield restricted.name
    restricted.cluster.kubectl("delete", "--wait=false", "-f", "-", text=text)


@pytest.mark.parametrize(
    ("profile", "flavor"),
    [("cpu", "no-accelerator"), ("gpu-l4", "nvidia-l4"), ("gpu-l4-spot", "nvidia-l4"), ("gpu-l4-any", "gpu-l4-x1-any")],
)
def test_the_queue_admits_a_run_to_the_quota_of_its_accelerator(
    restricted: Namespace, queue: str, profile: str, flavor: str
) -> None:
    settings = Settings(bucket="runs", project="acme", namespace=restricted.name)
    spec = a_spec(compute__profile=profile, queue="nightly")
    restricted.create(render(spec, RUN, PLAN, settings, name="night"))

    def admitted() -> Any:
        return [each["status"]["admission"] for each in restricted.get("workloads") if each.get("status", {}).get("admission")]

    [admission] = restricted.wait_until("admission", admitted)
    [pods] = admission["podSetAssignments"]
    assert set(pods["flavors"].values()) == {f"{queue}-{flavor}"}
