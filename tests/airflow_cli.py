"""Airflow's own command line against a stack that is up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from local.environments import ROOT, environment_dir


def airflow(environment: Mapping[str, str], *arguments: str) -> None:
    """Runs ``airflow ARGUMENTS`` with the stack's `environment`; fails with what it said when it does not end with 0."""
    done = subprocess.run(
        [str(environment_dir("airflow") / "bin" / "airflow"), *arguments],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"airflow {' '.join(arguments)}: {(done.stdout + done.stderr)[-4000:]}"
