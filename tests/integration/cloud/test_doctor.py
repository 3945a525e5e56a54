"""The doctor, asked after k8s/README.md was followed: all is well; and with one step done otherwise, it names what that broke.

The walk names some of it too (`test_walk.py`, `test_stream_walk.py`): the doctor has only what is there, not the commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from nightshift.doctor.findings import Ok, Report, Skipped
from tests.integration.cloud.doctor import asked, images
from tests.integration.cloud.edits import in_some, second_project, swap, two_projects, without
from tests.integration.cloud.pages import PROJECT, Changes, Edit, autopilot, night, streams, walked

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def of_night(folder: Path, changes: Changes | None = None) -> Report:
    return asked(walked(folder, night, changes), folder / "dist/composer/dags/jobs/package-embeddings.yaml")


def of_stream(folder: Path, changes: Changes | None = None) -> Report:
    return asked(walked(folder, streams, changes), folder / "streams/package-texts.yaml")


LAYOUTS: Final = [Changes(), Changes(page=two_projects, cloud=second_project)]


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


def test_on_autopilot_all_is_well_too(tmp_path: Path) -> None:
    report = images(asked(walked(tmp_path, autopilot), tmp_path / "dist/composer/dags/jobs/package-embeddings.yaml"))

    assert report.problems == (), report.lines()
    assert Ok("nodes gpu-l4-any", "ComputeClass nightshift-gpu-l4-x1 makes them") in report.findings


@pytest.mark.parametrize(
    ("script", "file", "silent"),
    [
        (night, "dist/composer/dags/jobs/package-embeddings.yaml", {"compute quotas"}),
        (streams, "streams/package-texts.yaml", {"subscription", "alloydb"}),
    ],
    ids=["night", "stream"],
)
def test_with_the_roles_of_the_page_alone_nothing_is_wrong_and_less_is_known(
    tmp_path: Path, script: Edit, file: str, silent: set[str]
) -> None:
    report = images(asked(walked(tmp_path, script), tmp_path / file, roles=()))

    assert report.problems == (), report.lines()
    skipped = {each.check: each.because for each in report.findings if isinstance(each, Skipped)}
    assert all("gcloud projects add-iam-policy-binding" in skipped[check] for check in silent), skipped


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
        "nightshift render streams/package-texts.yaml | kubectl apply --server-side -f -",
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
