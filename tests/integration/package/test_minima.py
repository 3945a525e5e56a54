"""The core on the lowest versions that pyproject.toml declares for a driver and a stream, in an environment of their own.

A function that a package got later is otherwise missed where it costs most: after the night was computed, when it is sealed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from local.environments import REQUIREMENTS, ROOT, python_of

pytestmark = [pytest.mark.integration, pytest.mark.gate]

FILES: Final = (
    "driver/test_commits",
    "driver/test_engine",
    "driver/test_feeder",
    "driver/test_work_stealing",
    "planner/test_measured",
    "run/test_inputs",
    "run/test_ledger",
    "run/test_manifest",
    "run/test_partial_rows",
    "run/test_plan",
    "run/test_provenance",
    "run/test_run",
    "run/test_tally",
    "spec/test_sql",
    "stream/test_decoding",
    "stream/test_files",
    "tasks/test_embedding",
    "tasks/test_pooling",
    "tasks/test_templates_values",
    "tasks/test_text",
    "tasks/test_typed",
    "test_store",
)
"""Of tests/unit: rows and chunks, ledger, seal, redo, tasks, the SQL that a job's checks read, streams' messages."""


def test_the_environment_has_the_lowest_versions() -> None:
    """A bound that is raised, or lowered, is followed by `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [Requirement(text) for text in project["dependencies"] + extras["driver"] + extras["stream"]]
    lowest = {each.name: min(Version(s.version) for s in each.specifier if s.operator in (">=", "==")) for each in wanted}

    pinned = dict(re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", (REQUIREMENTS / "lowest.txt").read_text(), re.MULTILINE))

    assert {name: Version(pinned[name]).release[: len(low.release)] for name, low in lowest.items()} == {
        name: low.release for name, low in lowest.items()
    }


def test_the_core_works_on_the_lowest_versions() -> None:
    files = [f"tests/unit/{name}.py" for name in FILES]
    command = [str(python_of("lowest")), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", *files]

    done = subprocess.run(command, cwd=ROOT, env={**os.environ}, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-5000:]
