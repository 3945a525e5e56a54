"""`make demo-stream`: real vLLM, real PostgreSQL, two subscribers of which one is killed, and the proof at its end."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from local.environments import ROOT, python_of

pytestmark = pytest.mark.integration


def test_every_message_is_answered_once_and_can_be_found(tmp_path: Path) -> None:
    command = [str(python_of("stream")), "-m", "local.stream_demo", "--state", str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1700)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
    found = re.search(r"published (\d+), answered (\d+), dead letters (\d+), lost 0, twice 0", done.stdout)
    assert found, done.stdout
    published, answered, dead = map(int, found.groups())
    assert answered + dead == published > 100
    assert "kill -9 of a subscriber" in done.stdout
    # The nearest package to a question is one that a person would name, too.
    assert re.search(r"parse yaml\n +0\.\d+  PyYAML ", done.stdout), done.stdout
