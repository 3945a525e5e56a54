"""``make bench-gpu`` on the CPU, with real vLLM and tiny models: every step of it that a CPU can show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_models import collect
from local import hub
from local import models as local_models
from local.environments import ROOT, python_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_each_step_reports_what_it_found(tmp_path: Path) -> None:
    llama = local_models.ensure(local_models.TINY_LLAMA).folder
    collect(llama, hub.snapshot(hub.ensure(), hub.REPOSITORY, hub.REVISION), tmp_path / "kit")
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", "--python", str(python_of("server"))]

    done = subprocess.run(
        [*command, "--tokenizers", str(tmp_path / "kit"), "--out", str(tmp_path / "out.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert not [each for each in found if "failed" in each], done.stderr[-2000:]
    assert done.returncode == 0
    sides = {each["side"]: each["rows_per_s"] for each in found if each["step"] in ("embeddings", "chat")}
    assert len(sides) == 6
    assert min(sides.values()) > 0
    assert {each["rows"].split(", ")[1]: each["hits"]["in order"] > 0.3 for each in found if each["step"] == "order"} == {
        "shared beginnings": True,
        "nothing shared": False,
    }
    by = {each["by"]: each for each in found if each["step"] == "interrupted"}
    assert by["SIGKILL"]["exit_code"] == -9
    # Asked to stop, it saves what is finished.
    assert by["SIGTERM"]["exit_code"] == 75
    assert by["SIGTERM"]["answered_twice"] <= by["SIGTERM"]["rows"]
