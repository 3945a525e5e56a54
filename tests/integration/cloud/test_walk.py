"""The path by hand, from an empty project to the first night; and with one thing wrong at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from local.google_cloud.night import outcomes
from tests.integration.cloud.edits import (
    in_some,
    model_in_bucket,
    mounted,
    no_network,
    no_spot_in_one_zone,
    result,
    second_project,
    swap,
    two_projects,
    without,
)
from tests.integration.cloud.pages import Changes, Edit, autopilot, night, steps, walked

pytestmark = [pytest.mark.integration, pytest.mark.gate]

ADVANCE = in_some("  workers: 2\n", "  workers: 16\n")
LEADS: Final = {
    "one project": (night, Changes()),
    "two projects": (night, Changes(page=two_projects, cloud=second_project)),
    "Autopilot": (autopilot, Changes()),
    "one zone without Spot": (night, Changes(cloud=no_spot_in_one_zone)),
    "weights that are mounted": (night, Changes(page=mounted, jobs=model_in_bucket)),
    "as many workers as the quotas were asked for": (night, Changes(jobs=ADVANCE)),
    "a network of one's own": (
        night,
        Changes(
            page=lambda page: swap("export NETWORK=default", "export NETWORK=nightshift")(page).replace(
                "zones g2-standard-8\n",
                "gcloud compute networks create nightshift --project=$CLUSTER_PROJECT --subnet-mode=auto\n",
            ),
            cloud=no_network,
        ),
    ),
    "another overlay": (night, Changes(page=swap("OVERLAY=gke-gpu-spot", "OVERLAY=gke-tpu-spot"))),
}


@pytest.mark.parametrize(("script", "changes"), LEADS.values(), ids=LEADS)
def test_the_page_leads_to_the_first_night(tmp_path: Path, script: Edit, changes: Changes) -> None:
    walk = walked(tmp_path, script, changes)

    assert (walk.code, walk.error) == (0, "")
    assert outcomes(walk.cloud.state) == {"night-1": ""}


SETTINGS_AGAIN = (
    'here composer environments update "$$ENVIRONMENT" --update-env-variables='
    "NIGHTSHIFT_BUCKET=my-runs,NIGHTSHIFT_RUNTIME=gke:projects/my-project/locations/europe-west4/clusters/my-cluster\n\n# 5."
)
CLOUD_BUILD = (
    '--member="serviceAccount:$$(gcloud projects describe "$$PROJECT" --format="value(projectNumber)")'
    '@cloudbuild.gserviceaccount.com"'
)
NIGHTS: Final = {
    "a priority that the autoscaler ignores": (
        Changes(manifests=in_some("value: -10\n", "value: -100\n")),
        "priority -100 (PriorityClass nightshift-batch) is below the cluster autoscaler's cutoff -10",
    ),
    "one name for images and packages": (
        Changes(commands=swap("nightshift-python}", "nightshift}")),
        "upstream repository projects/my-project/locations/europe-west4/repositories/nightshift must have the format PYTHON",
    ),
    "settings of the bundle over those of the page": (
        Changes(commands=swap("# 5.", SETTINGS_AGAIN)),
        "NIGHTSHIFT_RUNTIME=gke:projects/my-project/locations/europe-west4/clusters/my-cluster names no cluster that exists",
    ),
    "names that the bundle does not take from the page": (
        Changes(commands=swap('"$${REGION:?Set it to the region of the environment}"', "europe-west1")),
        "Location europe-west1 is not found",
    ),
    "tools in the system's Python": (
        Changes(commands=swap("upload/bin/pip install --quiet", "python3 -m pip install")),
        "error: externally-managed-environment",
    ),
    "Cloud Build's legacy account": (
        Changes(commands=swap('--member="serviceAccount:$$ACCOUNT"', CLOUD_BUILD)),
        "Service account 123456789012@cloudbuild.gserviceaccount.com does not exist",
    ),
    "no wait for the CRD": (
        Changes(page=without("^kubectl wait --for=create crd.*\n")),
        'no matches for kind "ComputeClass" in version "cloud.google.com/v1"',
    ),
    "a wait that is too short": (
        Changes(page=swap("--timeout=60m", "--timeout=5m")),
        "timed out waiting for the condition on crd/computeclasses.cloud.google.com",
    ),
    "pools in one zone": (
        Changes(page=swap("$(zones g2-standard-8)", "$ZONE"), cloud=no_spot_in_one_zone),
        "pool l4-spot: ZONE_RESOURCE_POOL_EXHAUSTED in europe-west4-b (g2-standard-8, spot)",
    ),
    "no quota of accelerators": (
        Changes(page=without("^ask PREEMPTIBLE-.*\n")),
        "Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded. Limit: 0 in region europe-west4; needed: 2",
    ),
    "no quota of accelerators over all regions": (
        Changes(page=without("^ask GPUS-ALL-.*\n")),
        "Quota 'GPUS_ALL_REGIONS' exceeded",
    ),
    "no quota of addresses": (
        Changes(page=without("^ask IN-USE-.*\n"), jobs=ADVANCE),
        "Quota 'IN_USE_ADDRESSES' exceeded. Limit: 8 in region europe-west4; needed: 19",
    ),
    "no quota of CPUs": (Changes(page=without("^ask CPUS-.*\n"), jobs=ADVANCE), "Quota 'CPUS' exceeded"),
    "no quota of disks": (Changes(page=without("^ask SSD-.*\n"), jobs=ADVANCE), "Quota 'SSD_TOTAL_GB' exceeded"),
    "quotas by a command that only beta has": (
        Changes(page=in_some("gcloud beta quotas", "gcloud quotas")),
        "ERROR: (gcloud) Invalid choice: 'quotas'",
    ),
    "an image for another machine": (
        Changes(page=swap("docker build --platform linux/amd64", "docker build")),
        "driver:0.3.0: exec format error: the image is for arm64",
    ),
    "zones before APIs": (
        Changes(
            page=swap(
                "gcloud config set project $PROJECT_ID\n",
                "gcloud config set project $PROJECT_ID\ngcloud compute machine-types list\n",
            )
        ),
        "compute.googleapis.com has not been used in project 123456789012 before or it is disabled",
    ),
    "no default network": (Changes(cloud=no_network), 'Network "default" does not exist.'),
    "a DAG before Airflow has read it": (
        Changes(commands=without(r"^for TRY in.*\n")),
        "404: the Dag with ID: `nightshift_doctor` was not found",
    ),
    "Airflow by a command that knows no Airflow 3.3": (
        Changes(
            commands=swap("airflow importErrors", 'here composer environments run "$$ENVIRONMENT" dags list-import-errors')
        ),
        'The subcommand "dags" is not supported for Composer environments with Airflow version 3.3.1',
    ),
    "a command of Airflow that gcloud does not pass on": (
        Changes(commands=swap("airflow importErrors", 'here composer environments run "$$ENVIRONMENT" providers list')),
        "Invalid choice: 'providers'",
    ),
    "a filter where gcloud has none": (
        Changes(page=swap("--flatten=bindings", "--flatten=bindings --filter=bindings.role:storage.object")),
        "ERROR: (gcloud.storage.buckets.get-iam-policy) unrecognized arguments: --filter=bindings.role:storage.object",
    ),
    "a mount within the sidecar's own limits": (
        Changes(page=mounted, jobs=model_in_bucket, rendered=in_some("gke-gcsfuse/memory-limit", "gke-gcsfuse/other")),
        "gke-gcsfuse-sidecar is OOMKilled",
    ),
    "a mount without its driver": (
        Changes(page=lambda page: swap(",GcsFuseCsiDriver", "")(mounted(page)), jobs=model_in_bucket),
        "driver name gcsfuse.csi.storage.gke.io not found",
    ),
    "predictions into a dataset that Airflow may only read": (
        Changes(page=swap("; s/table: catalog/table: $TARGET/", "")),
        "lacks roles/bigquery.dataEditor on the dataset catalog",
    ),
    "add-ons without prometheus": (
        Changes(page=swap("--enable-managed-prometheus ", "")),
        "DCGM, DEPLOYMENT, HPA, JOBSET, POD need managed Prometheus",
    ),
}
"""What was wrong once, or nearly: and the words with which the walk names it."""


@pytest.mark.parametrize(("changes", "words"), NIGHTS.values(), ids=NIGHTS)
def test_a_night_does_not_start_with(tmp_path: Path, changes: Changes, words: str) -> None:
    assert words in result(walked(tmp_path, night, changes))


@pytest.mark.parametrize("number", [each for each in steps() if each < len(steps())])
def test_every_step_is_needed(tmp_path: Path, number: int) -> None:
    """Without it, the shell ends at a later one, or the night's pods do not run."""

    def others(page: str) -> str:
        return "\n".join(commands for each, commands in steps(page).items() if each != number)

    assert result(walked(tmp_path, others))
