"""Tiers whose tests of `make test` need not run again, because they passed on this machine with the same inputs.

A tier is here only if a program can list everything that decides its outcome. This holds for the simulation: it uses no
process, clock or network, and `tests.simulation.inputs` follows its imports.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from local.environments import ROOT, cache_dir, environment_dir, python_of

INPUTS: Final[Mapping[str, str]] = {"simulation": "tests.simulation.inputs"}
"""Tier -> the module that prints the key of its inputs on its first line, and the inputs after it."""


def key_of(tier: str) -> str | None:
    """The key of a tier's inputs, including the test environment's pins; None for a tier that always runs.

    Also None if its inputs cannot be listed, because one of them cannot be imported: then the tier runs, and says so.
    """
    if tier not in INPUTS:
        return None
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}"}
    command = [str(python_of("test")), "-m", INPUTS[tier]]
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        return None
    return f"{done.stdout.splitlines()[0][:32]}-{environment_dir('test').name}"


def has_passed(tier: str, key: str) -> bool:
    return _mark(tier, key).exists()


def note_passed(tier: str, key: str) -> None:
    mark = _mark(tier, key)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _mark(tier: str, key: str) -> Path:
    return cache_dir() / "passed" / f"{tier}-{key}"
