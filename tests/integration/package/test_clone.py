"""``.venv/bin/nightshift`` of this clone: each command in the environment that has what it needs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from local.command import OF_EXTRAS
from local.environments import ENVIRONMENTS, environment_dir
from nightshift.cli import COMMANDS, EXTRAS, SUBCOMMANDS

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def nightshift(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p", "AIRFLOW_HOME": str(home)}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
    program = environment_dir("driver") / "bin" / "nightshift"
    return subprocess.run([str(program), *words], env=environment, cwd=home, capture_output=True, text=True, check=False)


def test_every_command_has_an_environment() -> None:
    assert EXTRAS.keys() <= {*COMMANDS, *SUBCOMMANDS}
    assert {OF_EXTRAS[extras] for extras in EXTRAS.values()} <= ENVIRONMENTS.keys()


def test_costs_reach_airflows_connections(tmp_path: Path) -> None:
    done = nightshift(tmp_path, "costs", "--since", "2026-11-20")

    assert (done.returncode, "Traceback" in done.stderr) == (78, False)
    assert "nightshift costs: The connection 'google_cloud_default' gives no credentials" in done.stderr
    assert 'make up, then eval "$(make env)"' in done.stderr


def test_the_doctor_finds_the_package(tmp_path: Path) -> None:
    """Airflow knows plugins and providers by a package's metadata."""
    done = nightshift(tmp_path, "doctor")

    assert done.returncode == 1, "there are no credentials"
    lines = done.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines[1:4]] == ["ok      airflow", "ok      plugin", "ok      provider"]


def test_what_needs_no_extra_stays_in_the_clones_own(tmp_path: Path) -> None:
    done = nightshift(tmp_path, "status", "file:///nowhere/job/2026-11-20/0123456789abcdef")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nightshift status: There is no run at file:///nowhere/job/2026-11-20/0123456789abcdef\n"
