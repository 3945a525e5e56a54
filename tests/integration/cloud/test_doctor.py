"""The doctor, asked after k8s/README.md was followed: all is well; and with one step done otherwise, it names what that broke.

The walk names some of it too (`test_walk.py`, `test_stream_walk.py`): the doctor has only what is there, not the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from obstore.store import MemoryStore

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud
from local.google_cloud.shell import Walk
from nightshift.doctor.checks import diagnose
from nightshift.doctor.findings import Ok, Report
from tests.google_deployment import READS_ALL, StateApi
from tests.integration.cloud.edits import in_some, second_project, swap, two_projects, without
from tests.integration.cloud.pages import PROJECT, Changes, night, streams, walked
from tests.unit.doctor.fakes import FakeConnections, StateGoogle, google

pytestmark = [pytest.mark.integration, pytest.mark.gate]

AIRFLOW: Final = f"nightshift-airflow@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore()
    monkeypatch.setattr("nightshift.store.open_store", lambda _, credentials: memory)


def settings_of(walk: Walk) -> dict[str, str]:
    """What Airflow's components have after the walk; a stream's walk has no Airflow, and then what it would be given."""
    environments = list(walk.cloud.state.of(types.ENVIRONMENT).values())
    if environments:
        return {**environments[0]["config"]["softwareConfig"]["envVariables"], "HF_HUB_OFFLINE": "1"}
    [cluster] = walk.cloud.state.of(types.CLUSTER)
    return {
        "NIGHTSHIFT_BUCKET": f"{PROJECT}-nightshift",
        "NIGHTSHIFT_PROJECT": PROJECT,
        "NIGHTSHIFT_LOCATION": "europe-west4",
        "NIGHTSHIFT_RUNTIME": f"gke:{cluster.partition('.com/')[2]}",
        "NIGHTSHIFT_PRIORITY_CLASS": "nightshift-batch",
        "HF_HUB_OFFLINE": "1",
    }


def let_it_ask(cloud: Cloud) -> str:
    """Gives Airflow's account the roles that docs/operate/doctor.md lists, and binds its unique id, as the overlays' kustomize
    does, which the stand-in of kubectl leaves out. Returns the id."""
    state = cloud.state
    for project in state.of(types.PROJECT).values():
        for role in READS_ALL:
            access.add(project, f"roles/{role}", f"serviceAccount:{AIRFLOW}")
    account = cloud.account(AIRFLOW)
    assert account
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in state.of(f"rbac.authorization.k8s.io/{kind}").values():
            binding["subjects"].append({"kind": "User", "name": account["uniqueId"]})
    return str(account["uniqueId"])


def asked(walk: Walk, file: Path) -> Report:
    settings = settings_of(walk)
    user = let_it_ask(walk.cloud)
    bucket = f"https://storage.googleapis.com/storage/v1/b/{settings['NIGHTSHIFT_BUCKET']}"
    well = google().replies
    replies = {key.replace("https://storage.googleapis.com/storage/v1/b/runs", bucket): reply for key, reply in well.items()}
    replies[f"GET {bucket}"] = (200, {"location": "EUROPE-WEST4"})
    replies[f"GET {bucket}/iam"] = (200, {"bindings": []})
    connections = FakeConnections(account=StateGoogle(replies, email=AIRFLOW, state=walk.cloud.state))
    connections.bigquery.where = "europe-west4"
    [cluster] = walk.cloud.state.of(types.CLUSTER)
    connections.api = StateApi(walk.cloud.state, user, cluster)
    return diagnose(settings, lambda _: connections, job_file=file)


def of_night(folder: Path, changes: Changes | None = None) -> Report:
    return asked(walked(folder, night, changes), folder / "dist/composer/dags/jobs/package-embeddings.yaml")


def of_stream(folder: Path, changes: Changes | None = None) -> Report:
    return asked(walked(folder, streams, changes), folder / "streams/package-texts.yaml")


LAYOUTS: Final = [Changes(), Changes(page=two_projects, cloud=second_project)]


def images(report: Report) -> Report:
    """Without what asks a registry: the stand-in's images are not behind HTTP."""
    return Report(tuple(each for each in report.findings if "image" not in each.check))


@pytest.mark.parametrize("changes", LAYOUTS, ids=["one project", "two projects"])
def test_after_the_page_all_is_well_for_a_night(tmp_path: Path, changes: Changes) -> None:
    report = images(of_night(tmp_path, changes))

    assert report.problems == (), report.lines()
    assert any(isinstance(each, Ok) and each.check.startswith("nodes ") for each in report.findings)


@pytest.mark.parametrize("changes", LAYOUTS, ids=["one project", "two projects"])
def test_after_the_page_all_is_well_for_a_stream(tmp_path: Path, changes: Changes) -> None:
    report = images(of_stream(tmp_path, changes))

    assert report.problems == (), report.lines()
    assert any(isinstance(each, Ok) and each.check.startswith("autoscaler ") for each in report.findings)


def again(name: str, value: str) -> Changes:
    """A setting of the bundle over that of the page."""
    return Changes(
        commands=swap(
            "# 5.", f'here composer environments update "$$ENVIRONMENT" --update-env-variables={name}={value}\n\n# 5.'
        )
    )


NIGHTS: Final = {
    "a priority that the autoscaler ignores": (
        Changes(manifests=in_some("value: -10\n", "value: -100\n")),
        "priority class",
        "kubectl create priorityclass nightshift-batch --value=-10",
    ),
    "settings of the bundle over those of the page": (
        again("NIGHTSHIFT_RUNTIME", f"gke:projects/{PROJECT}/locations/europe-west4/clusters/my-cluster"),
        "gke cluster",
        f"gcloud container clusters list --project={PROJECT}",
    ),
    "no way in": (Changes(page=swap(" --enable-dns-access", "")), "gke cluster", "--enable-dns-access"),
    "no quota of accelerators": (
        Changes(page=without("^ask PREEMPTIBLE-.*\n")),
        "compute quota PREEMPTIBLE_NVIDIA_L4_GPUS",
        "--quota-id=PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region --dimensions=region=europe-west4",
    ),
    "no quota of accelerators over all regions": (
        Changes(page=without("^ask GPUS-ALL-.*\n")),
        "compute quota GPUS_ALL_REGIONS",
        "--quota-id=GPUS-ALL-REGIONS-per-project --preferred-value",
    ),
}
STREAMS: Final = {
    "add-ons that a flag switches off": (
        Changes(page=swap("HttpLoadBalancing,HorizontalPodAutoscaling,GcePersistentDiskCsiDriver,", "")),
        "add-on HorizontalPodAutoscaling",
        "--update-addons=HorizontalPodAutoscaling=ENABLED",
    ),
    "no policy for dead letters": (
        Changes(page=swap(" --dead-letter-topic=$STREAM-dead --max-delivery-attempts=50", "")),
        "dead-letter policy",
        "--dead-letter-topic=TOPIC --max-delivery-attempts=50",
    ),
    "Pub/Sub may not publish dead letters": (
        Changes(page=without(r"^gcloud pubsub topics add-iam-policy-binding .*--member=\$AGENT.*\n")),
        "Pub/Sub's service agent, publisher",
        "gcp-sa-pubsub.iam.gserviceaccount.com --role=roles/pubsub.publisher",
    ),
    "Pub/Sub may not acknowledge them": (
        Changes(page=without(r"^gcloud pubsub subscriptions add-iam-policy-binding .*--member=\$AGENT.*\n")),
        "Pub/Sub's service agent, subscriber",
        "gcp-sa-pubsub.iam.gserviceaccount.com --role=roles/pubsub.subscriber",
    ),
    "no login by IAM": (
        Changes(page=swap(" \\\n  --database-flags=alloydb.iam_authentication=on", "")),
        "alloydb login",
        "--database-flags=alloydb.iam_authentication=on",
    ),
    "no user of the database": (
        Changes(page=without("^gcloud alloydb users create.*\n")),
        "alloydb login",
        f"gcloud alloydb users create nightshift-stream@{PROJECT}.iam --type=IAM_BASED",
    ),
    "no role of the database": (
        Changes(page=swap("for role in alloydb.client alloydb.databaseUser ", "for role in alloydb.client ")),
        "alloydb login",
        "--role=roles/alloydb.databaseUser",
    ),
    "pods may not act as the account": (
        Changes(page=swap("--role=roles/iam.workloadIdentityUser", "--role=roles/iam.serviceAccountUser")),
        "alloydb login",
        "--role=roles/iam.workloadIdentityUser",
    ),
    "no adapter": (
        Changes(
            page=lambda page: without("^kubectl -n custom-metrics.*\n")(without(r"^kubectl apply .*k8s-stackdriver.*\n")(page))
        ),
        "metrics adapter",
        "kubectl get apiservices",
    ),
    "an adapter without rights": (
        Changes(page=swap("roles/monitoring.viewer", "roles/monitoring.editor")),
        "autoscaler package-texts-subscriber",
        "--role=roles/monitoring.viewer",
    ),
    "a metric of the wrong project": (
        Changes(page=two_projects, cloud=second_project, rendered=without(r"^ *resource\.labels\.project_id: .*\n")),
        "autoscaler package-texts-subscriber",
        "nightshift render STREAM_FILE (package-texts) | kubectl apply --server-side -f -",
    ),
}
"""What was wrong once, or nearly: and the check that names it, with the command that helps."""


@pytest.mark.parametrize(("changes", "check", "fix"), NIGHTS.values(), ids=NIGHTS)
def test_the_doctor_names_what_a_night_would_find(tmp_path: Path, changes: Changes, check: str, fix: str) -> None:
    named(images(of_night(tmp_path, changes)), check, fix)


@pytest.mark.parametrize(("changes", "check", "fix"), STREAMS.values(), ids=STREAMS)
def test_the_doctor_names_what_a_stream_would_find(tmp_path: Path, changes: Changes, check: str, fix: str) -> None:
    named(images(of_stream(tmp_path, changes)), check, fix)


def named(report: Report, check: str, fix: str) -> None:
    assert check in [each.check for each in report.problems], report.lines()
    assert all(fix in each.fix for each in report.problems if each.check == check), report.problems
    # Nothing else is red but what has the same cause.
    assert len(report.problems) <= 2, report.lines()
