"""The stand-ins refuse what Google refuses, in its words; `tests/integration/cloud` follows a page against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.google_cloud import bq, gcloud, kubectl, kubernetes, nodes, registry
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Machine, Refused, new_project, without_default_network
from local.google_cloud.clusters import name_of
from local.google_cloud.command_line import COMMANDS
from local.google_cloud.gcloud import HANDLERS
from local.google_cloud.state import State

pytestmark = pytest.mark.unit

APIS = "compute container artifactregistry bigquery storage iam composer pubsub alloydb servicenetworking cloudquotas"
CLUSTER = "container clusters create c --location=europe-west4 --workload-pool=p.svc.id.goog"
ACCOUNT = "a@p.iam.gserviceaccount.com"
REPOSITORY = "artifacts repositories create r --location=europe-west4 --repository-format"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """A project `p` with every API."""
    found = Cloud(State(), Machine(tmp_path, project="p"), gcloud.zones_of_europe())
    new_project(found.state, "p", 12)
    run(found, "services enable " + " ".join(f"{api}.googleapis.com" for api in APIS.split()))
    return found


def run(cloud: Cloud, text: str) -> str:
    return gcloud.run(cloud, text.split())


def refused(cloud: Cloud, text: str) -> tuple[str, int]:
    with pytest.raises(Refused) as error:
        run(cloud, text)
    return str(error.value), error.value.code


def test_every_command_that_is_known_does_something() -> None:
    assert set(COMMANDS) == set(HANDLERS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # Word for word what gcloud 578.0.0 printed for these, except for its hints on where help is.
        ("pubsub topics create t --foo", "ERROR: (gcloud.pubsub.topics.create) unrecognized arguments: --foo"),
        (
            "container clusters create x --enable-dns-access=y",
            "ERROR: (gcloud.container.clusters.create) argument --enable-dns-access: ignored explicit argument 'y'",
        ),
        (
            "services vpc-peerings connect",
            "ERROR: (gcloud.services.vpc-peerings.connect) argument --network --ranges: Must be specified.",
        ),
        ("alloydb users create u", "ERROR: (gcloud.alloydb.users.create) argument --cluster --region: Must be specified."),
        (
            "artifacts repositories create r --location=l --repository-format=docker --mode=x",
            (
                "ERROR: (gcloud.artifacts.repositories.create) argument --mode: Invalid choice: 'x'.\nValid choices are "
                "[connector-repository, none, remote-repository, standard-repository, virtual-repository]."
            ),
        ),
        ("projects describe a b", "ERROR: (gcloud.projects.describe) unrecognized arguments: b"),
        (
            "quotas info list --service=s",
            (
                "ERROR: (gcloud) Invalid choice: 'quotas'.\nThis command is available in one or more "
                "alternate release tracks.  Try:\n  gcloud beta quotas"
            ),
        ),
        ("foo bar", "ERROR: (gcloud) Invalid choice: 'foo'."),
    ],
)
def test_a_wrong_command_line_is_refused_as_gcloud_does(cloud: Cloud, text: str, words: str) -> None:
    assert refused(cloud, text) == (words, 2)


def test_an_api_that_is_not_enabled(tmp_path: Path) -> None:
    cloud = Cloud(State(), Machine(tmp_path, project="p"), gcloud.zones_of_europe())
    new_project(cloud.state, "p", 12)

    for command in ("pubsub topics create t", f"{REPOSITORY}=docker", CLUSTER, "compute regions describe europe-west4"):
        text, code = refused(cloud, command)
        assert ("SERVICE_DISABLED" in text, "project 12 before" in text, code) == (True, True, 1)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (f"{REPOSITORY}=docker", f"{REPOSITORY}=python", "ALREADY_EXISTS: the repository already exists"),
        (CLUSTER, CLUSTER, "code=409, message=Already exists: projects/p/locations/europe-west4/clusters/c."),
        ("storage buckets create gs://b", "storage buckets create gs://b", "HTTPError 409"),
        ("pubsub topics create t", "pubsub topics create t", "Resource already exists in the project"),
        ("iam service-accounts create a", "iam service-accounts create a", "already exists within project projects/p"),
    ],
)
def test_a_name_that_exists(cloud: Cloud, first: str, second: str, words: str) -> None:
    run(cloud, first)

    assert words in refused(cloud, second)[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "projects add-iam-policy-binding p --member=serviceAccount:12@cloudbuild.gserviceaccount.com --role=roles/viewer",
            "Service account 12@cloudbuild.gserviceaccount.com does not exist",
        ),
        (
            (
                "projects add-iam-policy-binding p --role=roles/viewer --member=principal://iam.googleapis.com/projects/12/locations/"
                "global/workloadIdentityPools/p.svc.id.goog/subject/ns/n/sa/s"
            ),
            "Identity Pool does not exist (p.svc.id.goog)",
        ),
        (f"{CLUSTER} --service-account={ACCOUNT}", f'The service account "{ACCOUNT}" does not exist'),
        ("container node-pools create n --cluster=c --location=europe-west4", "code=404, message=Not found: projects/p/"),
        ("pubsub subscriptions create s --topic=t", "Resource not found (resource=t)"),
        ("alloydb clusters create d --region=europe-west4 --password=x", "has no connection for private services access"),
        ("storage buckets describe gs://b", "gs://b not found: 404"),
        ("projects describe q", "PERMISSION_DENIED"),
        (f"composer environments create e --location=europe-west4 --service-account={ACCOUNT}", "does not exist"),
        ("beta quotas preferences create --service=s --quota-id=x --preferred-value=1", "Quota x does not exist"),
        (f"{CLUSTER} --monitoring=DCGM", "DCGM need managed Prometheus"),
        (f"{CLUSTER} --monitoring=dcgm --enable-managed-prometheus", "not supported for monitoring"),
        (f"{CLUSTER} --addons=Ingress", "argument --addons: Ingress must be one of"),
        (f"{CLUSTER} --location=mars", 'Location "mars" does not exist'),
    ],
)
def test_what_is_missing(cloud: Cloud, text: str, words: str) -> None:
    assert words in refused(cloud, text)[0]


def test_addons_switch_off_what_they_do_not_name(cloud: Cloud) -> None:
    """And a cluster without the flag has both of gcloud's defaults."""
    run(cloud, f"{CLUSTER} --addons=GcsFuseCsiDriver")
    run(cloud, CLUSTER.replace("create c ", "create d "))
    found = [cloud.state.of(types.CLUSTER)[name_of("p", "europe-west4", each)]["addonsConfig"] for each in "cd"]

    assert found[0]["horizontalPodAutoscaling"] == found[0]["httpLoadBalancing"] == {"disabled": True}
    assert found[1] == {}


def test_a_network_that_an_organization_does_not_make(cloud: Cloud) -> None:
    without_default_network(cloud.state, "p")
    assert 'Network "default" does not exist' in refused(cloud, CLUSTER)[0]

    run(cloud, "compute networks create own --subnet-mode=auto")
    run(cloud, f"{CLUSTER} --network=own")


def test_a_policy_with_conditions_asks_for_one(cloud: Cloud) -> None:
    run(cloud, "storage buckets create gs://b --uniform-bucket-level-access")
    bind = "storage buckets add-iam-policy-binding gs://b --member=user:a@example.com --role=roles/storage.objectViewer"
    run(cloud, f"{bind} --condition=title=own,expression=true")

    assert "Run the command again with `--condition=None`" in refused(cloud, bind)[0]
    run(cloud, f"{bind} --condition=None")


def test_a_cluster_learns_compute_classes_later(cloud: Cloud) -> None:
    run(cloud, CLUSTER)
    assert "localhost:8080 was refused" in kubectl_refused(cloud, "get computeclasses")

    run(cloud, "container clusters get-credentials c --location=europe-west4")
    assert 'doesn\'t have a resource type "computeclasses"' in kubectl_refused(cloud, "get computeclasses")
    wait = "wait --for=create crd/computeclasses.cloud.google.com --timeout"
    assert "timed out" in kubectl_refused(cloud, f"{wait}=5m")
    kubectl.run(cloud, f"{wait}=60m".split(), "")
    assert kubectl.run(cloud, ["get", "computeclasses"], "") == ""


def kubectl_refused(cloud: Cloud, text: str, stdin: str = "") -> str:
    with pytest.raises(Refused) as error:
        kubectl.run(cloud, text.split(), stdin)
    return str(error.value)


def test_kinds_come_with_their_release(cloud: Cloud) -> None:
    run(cloud, CLUSTER)
    run(cloud, "container clusters get-credentials c --location=europe-west4")
    jobset = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: j, namespace: default}\n"
    apply = "apply --server-side -f"

    assert 'no matches for kind "JobSet"' in kubectl_refused(cloud, f"{apply} -", jobset)
    assert "404" in kubectl_refused(
        cloud, f"{apply} https://github.com/kubernetes-sigs/jobset/releases/latest/download/manifests.yaml"
    )
    assert "unknown flag: --serverside" in kubectl_refused(cloud, "apply --serverside=true -f x")
    kubectl.run(
        cloud, f"{apply} https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml".split(), ""
    )
    kubectl.run(cloud, f"{apply} -".split(), jobset)


def test_pip_outside_an_environment(cloud: Cloud) -> None:
    with pytest.raises(Refused, match="externally-managed-environment"):
        registry.pip(cloud, "", ["install", "twine"])


def test_bq_knows_datasets_by_place(cloud: Cloud) -> None:
    bq.run(cloud, ["--location=EU", "mk", "--dataset", "p:d"])
    grant = "GRANT `roles/bigquery.dataViewer` ON SCHEMA `p.d` TO 'serviceAccount:a@p.iam.gserviceaccount.com'"

    for words, expected in (
        (["--location=EU", "mk", "--dataset", "p:d"], "Dataset 'p:d' already exists"),
        (["--location=US", "query", "--use_legacy_sql=false", grant], "was not found in location US"),
        (["--location=EU", "query", "--use_legacy_sql=false", grant], "does not exist"),
        (["--location=EU", "query", grant], "legacy SQL"),
        (["mk", "--unknown", "p:e"], "Unknown command line flag"),
    ):
        with pytest.raises(Refused, match=expected):
            bq.run(cloud, words)
    bq.run(cloud, ["--location=EU", "mk", "--force", "--dataset", "p:d"])


@pytest.mark.parametrize(
    ("priority", "sold_out", "quota", "words"),
    [
        (-10, False, 4, ""),
        (-11, False, 4, "priority -11 (PriorityClass low) is below the cluster autoscaler's cutoff -10"),
        (-10, True, 4, "ZONE_RESOURCE_POOL_EXHAUSTED in europe-west4-a, europe-west4-b"),
        (-10, False, 0, "Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded. Limit: 0 in region europe-west4; needed: 2"),
    ],
)
def test_the_autoscaler_ignores_low_priorities(cloud: Cloud, priority: int, sold_out: bool, quota: int, words: str) -> None:
    run(cloud, CLUSTER)
    run(
        cloud,
        "container node-pools create l4 --cluster=c --location=europe-west4 --machine-type=g2-standard-8 --spot --num-nodes=0 "
        "--accelerator=type=nvidia-l4,count=1 --enable-autoscaling --total-max-nodes=4 "
        "--node-locations=europe-west4-a,europe-west4-b",
    )
    ask = "beta quotas preferences create --service=compute.googleapis.com"
    run(cloud, f"{ask} --quota-id=GPUS-ALL-REGIONS-per-project --preferred-value=4")
    for metric, value in (
        ("PREEMPTIBLE-NVIDIA-L4-GPUS", quota),
        ("CPUS", 100),
        ("SSD-TOTAL-GB", 2000),
        ("IN-USE-ADDRESSES", 20),
    ):
        limit = f"--quota-id={metric}-per-project-region --preferred-value={value} --dimensions=region=europe-west4"
        run(cloud, f"{ask} {limit}")
    if sold_out:
        cloud.sold_out |= {(zone, "g2-standard-8", "spot") for zone in ("europe-west4-a", "europe-west4-b")}
    name = name_of("p", "europe-west4", "c")
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}, "value": priority}
    kubernetes.apply(cloud, name, [low], dry_run=False)
    selector = {"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-spot": "true"}

    found = nodes.refusal(cloud, name, {"priorityClassName": "low", "nodeSelector": selector}, 2)

    assert words in found if words else found == ""
