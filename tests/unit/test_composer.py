"""What `make composer-bundle` writes, held against itself: no cloud is asked."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from local import composer, package
from nightshift import __version__
from nightshift.spec import load_all

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"airflow_provider_nightshift-{__version__}-py3-none-any.whl"
MADE = {"pip.conf", "upstreams-filled.json"}
"""Files that the commands write themselves."""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With an empty wheel: `tests/integration/package` builds a real one."""
    (tmp_path / WHEEL).touch()
    monkeypatch.setattr(package, "wheel", lambda: tmp_path / WHEEL)
    target = tmp_path / "composer"
    composer.bundle(target)
    return target


def shell(bundle: Path) -> str:
    """The commands without comments, each on one line."""
    text = (bundle / "commands.txt").read_text().replace("\\\n", " ")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def test_it_holds_the_wheel_the_dags_and_the_jobs(bundle: Path) -> None:
    names = {str(file.relative_to(bundle)) for file in bundle.rglob("*") if file.is_file()}

    assert {
        WHEEL,
        "commands.txt",
        "requirements.txt",
        "upstreams.json",
        "dags/batch_inference.py",
        "dags/broken_jobs.py",
        "dags/nightshift_doctor.py",
        "dags/nightshift_pause.py",
    } <= names
    jobs = {file.name for file in (ROOT / "dags" / "jobs").iterdir()} - {composer.DEMO} | {"README.txt"}
    assert {name.removeprefix("dags/jobs/") for name in names if name.startswith("dags/jobs/")} == jobs
    assert [name for name in names if "plugins" in name or "__pycache__" in name] == []


def test_without_a_job_the_dag_files_still_can_be_read(bundle: Path) -> None:
    """A bucket has no empty folders."""
    assert composer.DEMO in {file.name for file in (ROOT / "dags" / "jobs").iterdir()}
    for job in (bundle / "dags" / "jobs").glob("*.yaml"):
        job.unlink()

    assert load_all(bundle / "dags" / "jobs") == ({}, {})


def test_it_replaces_the_one_before(bundle: Path) -> None:
    (bundle / "dags" / "old.py").touch()

    composer.bundle(bundle)

    assert not (bundle / "dags" / "old.py").exists()


def test_each_requirement_is_a_name_and_a_version(bundle: Path) -> None:
    """Composer refuses `name @ file://...`."""
    lines = (bundle / "requirements.txt").read_text().splitlines()

    assert lines[0] == f"airflow-provider-nightshift=={__version__}"
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][\w.]*", line)] == []


def test_the_requirements_are_what_airflow_does_not_bring(bundle: Path) -> None:
    names = {Requirement(line).name for line in (bundle / "requirements.txt").read_text().splitlines()}

    assert names == {"airflow-provider-nightshift", "jsonschema-rs", "obstore", "orjson", "sqlglot"}


def test_the_versions_are_those_of_the_tests() -> None:
    from tests.unit.test_package import pins

    assert {Requirement(line).name: Version(line.split("==")[1]) for line in composer.lacking()}.items() <= pins(
        "airflow.txt"
    ).items()


def test_the_commands_name_only_files_that_are_there(bundle: Path) -> None:
    named = set(re.findall(r"(?<![\w./%-])([\w-]+(?:[.-][\w-]+)*\.(?:whl|txt|json|conf))\b", shell(bundle)))

    assert named - MADE == {WHEEL, "requirements.txt", "upstreams.json"}
    assert [name for name in named - MADE if not (bundle / name).is_file()] == []
    assert "rsync --recursive dags " in shell(bundle)


def test_a_shell_reads_the_commands_and_finds_every_variable_set(bundle: Path) -> None:
    subprocess.run(["bash", "-n", "commands.txt"], cwd=bundle, check=True)
    used = set(re.findall(r"\$\{?([A-Z]+)", shell(bundle)))
    first_set = set(re.findall(r"^([A-Z]+)\+?=", shell(bundle), re.MULTILINE)) | set(
        re.findall(r"for ([A-Z]+) in", shell(bundle))
    )

    assert used - first_set == {"REGION"}
    # `tests/integration/cloud` runs them with the page's variables; without one, the first line that needs it says so.
    done = subprocess.run(
        ["bash", "commands.txt"], cwd=bundle, check=False, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert (done.returncode, "PROJECT_ID: Set it to" in done.stderr) == (1, True)


def test_the_settings_are_not_set_a_second_time(bundle: Path) -> None:
    """k8s/README.md creates the environment with them; placeholders here once replaced them."""
    assert "env-variables" not in shell(bundle)


def test_a_version_that_both_indexes_have_comes_from_ours(bundle: Path) -> None:
    """PyPI has a package of this name that is another."""
    own, pypi = json.loads((bundle / "upstreams.json").read_text())

    assert own["repository"].endswith("/REPOSITORY")
    assert own["priority"] > pypi["priority"]
    program = re.search(r'sed -e "([^"]+)"', shell(bundle))
    assert program
    script = program[1].replace("$PROJECT", "acme").replace("$LOCATION", "eu").replace("$REPOSITORY", "wheels")
    filled = subprocess.run(["sed", "-e", script, "upstreams.json"], cwd=bundle, check=True, capture_output=True, text=True)
    assert [each["repository"] for each in json.loads(filled.stdout)] == [
        "projects/acme/locations/eu/repositories/wheels",
        "projects/acme/locations/eu/repositories/wheels-pypi",
    ]
    assert "index-url" in shell(bundle)
    assert "extra-index-url" not in shell(bundle)
