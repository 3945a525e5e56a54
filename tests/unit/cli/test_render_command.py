"""``nightshift render`` as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.jobset.labels import PROFILE_LABEL, ROLE_LABEL

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
DEMO = "dags/jobs/package-embeddings.yaml"
STREAM = "streams/package-texts.yaml"
DAY = ("--partition", "2026-11-20")


def nightshift_render(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; sys.path.insert(0, 'plugins'); from nightshift.cli import main; sys.exit(main())"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")}
    command = [sys.executable, "-c", program, "render", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True, check=False)


def rendered(*arguments: str, **environment: str) -> tuple[list[str], dict[str, Any]]:
    """The comments at the top, and the manifest."""
    done = nightshift_render(*arguments, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line.startswith("# ")], yaml.safe_load(done.stdout)


def workers_of(manifest: dict[str, Any]) -> int:
    count: int = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
    return count


def test_without_a_deployment_placeholders_are_named() -> None:
    comments, manifest = rendered(DEMO, *DAY)

    assert "# NIGHTSHIFT_BUCKET is not set here: BUCKET is a placeholder." in comments
    assert any("1,000,000 rows, assumed: pass --rows" in line for line in comments)
    assert manifest["metadata"]["annotations"]["nightshift.dev/run-url"].startswith(
        "gs://BUCKET/package-embeddings/2026-11-20/"
    )
    assert workers_of(manifest) == 2


def test_what_the_disk_is_sized_by_is_said_as_long_as_it_is_a_guess(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / DEMO).read_text())
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    guessed, _ = rendered(str(path), *DAY, "--profile", "gpu-l4")
    job["compute"]["weights_gib"] = 3
    path.write_text(yaml.safe_dump(job))
    stated, manifest = rendered(str(path), *DAY, "--profile", "gpu-l4")

    assert [line for line in guessed if "24 GiB of weights, the most that a worker can hold" in line]
    assert not [line for line in stated if "of weights" in line]
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {"name": "cache", "emptyDir": {"sizeLimit": "11Gi"}} in pod["volumes"]


def test_the_deployment_has_room_for_so_many_workers(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / DEMO).read_text())
    del job["compute"]["workers"]
    job["compute"]["rows_per_worker_per_second"] = 200
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    rows = ("--rows", "10000000")

    assert workers_of(rendered(str(path), *DAY, *rows)[1]) > 3
    assert workers_of(rendered(str(path), *DAY, *rows, NIGHTSHIFT_WORKERS_MAX="3")[1]) == 3


def test_the_deployments_settings_count(tmp_path: Path) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text("metadata: {labels: {team: search}}")
    comments, manifest = rendered(
        DEMO, *DAY, NIGHTSHIFT_BUCKET="lake", NIGHTSHIFT_NAMESPACE="nights", NIGHTSHIFT_POD_PATCH=str(patch)
    )

    assert not [line for line in comments if "stands for" in line]
    assert any(str(patch) in line for line in comments)
    assert manifest["metadata"]["namespace"] == "nights"
    template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "search"


def test_workers_are_planned_from_rows(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / DEMO).read_text())
    del job["compute"]["workers"]
    job["compute"]["rows_per_worker_per_second"] = 200
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    few, many = (workers_of(rendered(str(path), *DAY, "--rows", rows)[1]) for rows in ("100", "1000000"))

    assert few < many


def test_a_stream_is_several_documents() -> None:
    """What they are: test_stream_manifests.py."""
    cluster = "gke:projects/acme/locations/l/clusters/c"
    done = nightshift_render(
        STREAM, "--keda", NIGHTSHIFT_PROJECT="acme", NIGHTSHIFT_NAMESPACE="live", NIGHTSHIFT_RUNTIME=cluster
    )
    assert (done.returncode, done.stderr) == (0, "")
    documents = list(yaml.safe_load_all(done.stdout))

    assert {each["metadata"]["namespace"] for each in documents} == {"live"}
    assert {"Deployment", "ScaledObject", "ConfigMap"} <= {each["kind"] for each in documents}


def test_what_the_command_line_says_wins() -> None:
    _, manifest = rendered(DEMO, *DAY, "--profile", "gpu-l4-spot", "--workers", "7", "--rows", "500")

    assert (workers_of(manifest), manifest["metadata"]["labels"][PROFILE_LABEL]) == (7, "gpu-l4-spot")


def test_a_helper_is_another_jobset_of_the_same_run() -> None:
    (_, owner), (_, helper) = rendered(DEMO, *DAY), rendered(DEMO, *DAY, "--helper", "--profile", "gpu-l4")

    assert owner["metadata"]["name"] != helper["metadata"]["name"]
    assert helper["metadata"]["labels"][ROLE_LABEL] == "helper"
    url = "nightshift.dev/run-url"
    assert owner["metadata"]["annotations"][url] == helper["metadata"]["annotations"][url]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("tests/unit/bad_jobs/compute_topology.yaml", *DAY),
            "compute_topology.yaml:27: compute.topology: tpu-v6e-spot has no",
        ),
        (("absent.yaml", *DAY), "absent.yaml: The file cannot be read"),
        ((DEMO, "--partition", "20 Nov"), "--partition is '20 Nov'. Write a date, for example 2026-11-19."),
        (
            (DEMO, *DAY, "--profile", "gpu-l5"),
            "argument --profile: There is no compute profile 'gpu-l5'. Did you mean 'gpu-l4'?",
        ),
        ((DEMO,), f"{DEMO}: --partition: A run needs a day. Pass, for example, --partition 2026-11-20."),
        ((DEMO, *DAY, "--keda"), f"{DEMO}: --keda: The file describes a nightly job, which has no such option. Leave it out."),
        ((STREAM, *DAY), f"{STREAM}: --partition: The file describes a stream, which has no such option. Leave it out."),
        ((STREAM, "--canary", "absent.yaml"), "absent.yaml: The file cannot be read"),
        (("tests/unit/bad_streams/sink.yaml",), "tests/unit/bad_streams/sink.yaml:11: sink.table:"),
        ((STREAM, "--canary-percent", "101"), "argument --canary-percent: '101' is not a whole number from 0 to 100"),
        ((STREAM, "--gateway", "g"), f"{STREAM}: --gateway: Subscribers have to know its address."),
        ((DEMO, *DAY, "--rows", "0"), "argument --rows: '0' is not a whole number of 1 or more"),
    ],
)
def test_bad_input_is_explained_and_the_code_is_2(arguments: tuple[str, ...], message: str) -> None:
    done = nightshift_render(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_profile_that_the_job_does_not_fit_is_explained(tmp_path: Path) -> None:
    job = yaml.safe_load((ROOT / DEMO).read_text())
    job["compute"] = {"profile": "tpu-v6e-spot", "topology": "4x4"}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    done = nightshift_render(str(path), *DAY, "--profile", "gpu-l4")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{path}: compute.topology: gpu-l4 is a GPU, and only TPUs have a topology. Leave it out, or choose a TPU profile.\n"
    )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NIGHTSHIFT_POD_PATCH": "/absent.yaml"}, "/absent.yaml: The file cannot be read"),
        ({"NIGHTSHIFT_WEIGHTS": "fuse"}, "NIGHTSHIFT_WEIGHTS is 'fuse'. Write stream or mount."),
    ],
)
def test_a_bad_deployment_is_explained(variables: dict[str, str], message: str) -> None:
    done = nightshift_render(DEMO, *DAY, **variables)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
