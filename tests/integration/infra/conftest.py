"""OpenTofu and the stand-in for Google's provider, for all tests here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from local.environments import ROOT
from local.terraform import build
from local.terraform.build import Tools


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Built once per machine, in five minutes and below all other work. Skips where they cannot be built."""
    if reason := build.obstacle():
        pytest.skip(reason)
    if not build.built():
        command = ["nice", "-n", "19", sys.executable, "-m", "local.terraform", "build"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return build.tools()
