"""Standard output of a command holds what the command says, whatever Airflow's import does to Python's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.gate]

LOGGED = """
import logging
import sys
from nightshift.cli import main

code = main(sys.argv[1:])
logging.getLogger("nightshift.driver").warning("an engine was lost")
sys.exit(code)
"""
COMMANDS = {
    "doctor": ["doctor", "--json"],
    "costs": ["costs", "--json"],
}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_logged_after_airflows_import_is_not_on_standard_output(tmp_path: Path, name: str) -> None:
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("NIGHTSHIFT_")},
        "AIRFLOW_HOME": str(tmp_path),
        "NIGHTSHIFT_BUCKET": "b",
        "NIGHTSHIFT_PROJECT": "p",
        "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9",
        "PYTHONPATH": str(ROOT / "plugins"),
    }

    done = subprocess.run(
        [sys.executable, "-c", LOGGED, *COMMANDS[name]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert "an engine was lost" in done.stderr
    if done.stdout:
        assert isinstance(json.loads(done.stdout), dict)
