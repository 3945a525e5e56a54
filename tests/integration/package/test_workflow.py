"""The CI workflow: a program that knows GitHub's rules accepts it, and it calls nothing but make."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from local.cluster.build import GO_PLACE

pytestmark = pytest.mark.integration

WORKFLOW: Final = Path(__file__).parents[3] / ".github/workflows/ci.yaml"
ACTIONLINT: Final = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"


@pytest.mark.gate
def test_every_step_is_a_make_target_or_a_step_of_github() -> None:
    steps = [step for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values() for step in job["steps"]]
    targets = set(re.findall(r"^([a-z-]+):", (WORKFLOW.parents[2] / "Makefile").read_text(), re.MULTILINE))

    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for command in commands:
        match = re.fullmatch(r"make ([a-z-]+)", command)
        assert match, command
        assert match[1] in targets, command
    actions = [step["uses"] for step in steps if "run" not in step]
    assert [each for each in actions if not each.startswith("actions/")] == []


def test_actionlint_accepts_it(tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path=str(GO_PLACE))
    if go is None:
        pytest.skip("there is no 'go', which builds actionlint")

    def lint(text: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "ci.yaml"
        file.write_text(text)
        return subprocess.run([go, "run", ACTIONLINT, str(file)], capture_output=True, text=True, timeout=600, check=False)

    text = WORKFLOW.read_text()
    found = lint(text)
    assert found.returncode == 0, found.stdout + found.stderr
    # It does look: a key that GitHub does not know.
    assert "timeout-minute" in lint(text.replace("timeout-minutes: 90", "timeout-minute: 90")).stdout
