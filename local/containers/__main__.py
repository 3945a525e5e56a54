"""``python3 -m local.containers agent|bucket``: services of docker-compose.yaml that are no program of their own.

agent   runs JobSets as processes of its container; the state folder is where NIGHTSHIFT_RUNTIME says
bucket  makes the bucket NIGHTSHIFT_BUCKET in the storage emulator, unless it exists
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from local.environments import ROOT, environment_dir
from local.stack import stack
from local.stack.parts import node_configuration

PORT: Final = 8001
"""Of the agent's API in its container."""
PASSED_ON: Final = ("NIGHTSHIFT_", "STORAGE_", "BIGQUERY_", "GOOGLE_", "NO_")
"""The variables that the agent's pods get too, by how they begin."""


def agent() -> None:
    """Replaces this process by the agent."""
    state = Path(os.environ["NIGHTSHIFT_RUNTIME"].removeprefix("local:"))
    driver = environment_dir("driver") / "bin"
    env = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    config = state / "agent-config.json"
    node = node_configuration(env, driver, environment_dir("server") / "bin", {})
    # By the name that Airflow's containers know it by.
    config.write_text(json.dumps({**node, "host": "agent", "port": PORT}, indent=1))
    python, package = str(environment_dir("emulators") / "bin" / "python"), {"PYTHONPATH": str(ROOT / "plugins")}
    command = [python, "-m", "local.runtime", "--state", str(state), "--config", str(config)]
    os.execve(python, command, {**os.environ, **package})


def bucket() -> None:
    stack.make_bucket(os.environ["STORAGE_EMULATOR_HOST"], os.environ["NIGHTSHIFT_PROJECT"], os.environ["NIGHTSHIFT_BUCKET"])


if __name__ == "__main__":
    {"agent": agent, "bucket": bucket}[sys.argv[1]]()
