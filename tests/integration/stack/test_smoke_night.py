"""`make smoke-gcp` as a user runs it, against the emulators and the local runtime: doctor, questions and a whole night."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local import hub
from local.environments import ROOT, environment_dir
from local.smoke.open_questions import OPEN_QUESTIONS
from local.stack import Stack
from tests.integration.emulators import ANONYMOUS, PROJECT

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    hub.ensure()
    with Stack(tmp_path_factory.mktemp("state"), parts=("storage", "bigquery", "agent")) as stack:
        yield stack


def smoke(stack: Stack, **changes: str) -> subprocess.CompletedProcess[str]:
    # The local runtime's engines have the model in their cache, and no hub is asked for it.
    cached = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub.hub_dir())}
    env = {**os.environ, **stack.environment(), **cached, "PYTHONPATH": str(ROOT / "plugins"), **changes}
    command = [
        str(environment_dir("airflow") / "bin" / "python"),
        "-m",
        "local.smoke",
        "--project",
        PROJECT,
        "--profile",
        "cpu",
    ]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=800)


def left(stack: Stack) -> list[str]:
    """Datasets, buckets and objects of smoke tests."""
    env = stack.environment()
    warehouse = bigquery.Client(
        project=PROJECT, credentials=ANONYMOUS, client_options={"api_endpoint": env["BIGQUERY_EMULATOR_HOST"]}
    )
    storage = StorageClient(
        project=PROJECT, credentials=ANONYMOUS, client_options={"api_endpoint": env["STORAGE_EMULATOR_HOST"]}
    )
    names = [each.dataset_id for each in warehouse.list_datasets()] + [each.name for each in storage.list_buckets()]
    return [name for name in names if "smoke" in name] + [blob.name for blob in storage.list_blobs(env["NIGHTSHIFT_BUCKET"])]


def test_a_project_in_which_all_is_well(stack: Stack) -> None:
    done = smoke(stack)

    assert done.returncode == 0, done.stdout + done.stderr
    first, *asked, night = done.stdout.splitlines()[2:]
    assert first.startswith("| Is everything there for a night? | ")
    assert " 0 failed," in first
    assert len(asked) == len(OPEN_QUESTIONS)
    assert night.startswith("| Is a night of 1,000 rows whole? | 1000 rows with 1000 keys in ")
    assert left(stack) == []


def test_a_deployment_with_a_fault_is_named_with_its_fix_and_the_other_lines_are_there(stack: Stack) -> None:
    done = smoke(stack, NIGHTSHIFT_BUCKET="nowhere", NIGHTSHIFT_RUNTIME="")

    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()[2:]
    assert lines[0].endswith("| **other than it should be. Affects: see the doctor's lines** |")
    [bucket] = [line for line in lines if line.startswith("| Doctor: bucket |")]
    assert "Fix: `gcloud storage buckets create gs://nowhere" in bucket
    assert len([line for line in lines if line.endswith("| as documented |")]) == len(OPEN_QUESTIONS)
    assert left(stack) == []
