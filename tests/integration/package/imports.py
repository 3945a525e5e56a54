"""Imports the installed wheel in one of the environments, as Airflow starts: with nothing of the checkout on the path."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from local import package
from local.environments import environment_dir

# The packages of the extra `driver` are in these environments too, and must not be needed.
IMPORT_ALL: Final = """
import importlib, json, pkgutil, sys
sys.modules.update(dict.fromkeys(["httptools", "prometheus_client", "uvloop"]))
import nightshift
found = {}
for name in ["nightshift", *(module.name for module in pkgutil.walk_packages(nightshift.__path__, "nightshift."))]:
    if name.split(".")[1:2] in (["driver"], ["batch"], ["stream"], ["batcher"]) or name.endswith("__main__"):
        continue
    if name in ("nightshift.trial.compute", "nightshift.trial.keeper"):
        continue
    found[name] = importlib.import_module(name).__file__
print(json.dumps(found))
"""


def airflow_variables(home: Path) -> dict[str, str]:
    """The environment of a process of Airflow that has nothing but the wheel."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "AIRFLOW_HOME": str(home), "PYTHONPATH": str(package.installed())}


def imported_in(environment: str, home: Path) -> dict[str, str]:
    """File by name of every module of the wheel but what the extra `driver` is for. Fails if one cannot be imported."""
    done = subprocess.run(
        [str(environment_dir(environment) / "bin" / "python"), "-c", IMPORT_ALL],
        env=airflow_variables(home),
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found
