"""With the packages of Cloud Composer's image, as far as its list is known (`requirements/composer.in`)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from local import package
from local.environments import ROOT, environment_dir
from tests.integration.package.imports import imported_in

pytestmark = pytest.mark.integration

# What runs inside Airflow: the rest of the product is the same everywhere.
TESTS = (
    "tests/unit/operators",
    "tests/unit/triggers",
    "tests/unit/dags",
    "tests/unit/doctor",
    "tests/unit/test_package.py",
    "tests/unit/operators/test_lineage.py",
    "tests/unit/jobset/test_shared_client.py",
    "tests/integration/airflow",
)


@pytest.mark.gate
def test_everything_of_the_wheel_that_airflow_needs_can_be_imported(tmp_path: Path) -> None:
    found = imported_in("composer", tmp_path)

    assert {
        "nightshift.plugin",
        "nightshift.operators.kubernetes_engine",
        "nightshift.triggers.kubernetes_engine",
    } <= found.keys()
    assert [name for name, file in found.items() if not file.startswith(str(package.installed()))] == []


def test_the_tests_of_operators_triggers_and_dags_pass() -> None:
    python = environment_dir("composer") / "bin" / "python"
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    # Its own home and its own plugins: `tests/conftest.py` sets them, unless they are inherited from this session's.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}

    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-8000:]
