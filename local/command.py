"""``.venv/bin/nightshift``, the command of this clone: each subcommand in the environment that has what it needs.

The clone's own environment has what a driver has, and no Airflow, so that a driver that needs it fails here too
(`local.environments`, which makes this program). ``make up`` makes the environments of the stack: with that of Airflow, `plan`,
`costs`, `doctor`, `pause` and `resume` do all of their work.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from nightshift import cli

ROOT: Final = Path(__file__).resolve().parents[1]
METADATA: Final = ROOT / ".venv" / "metadata"
"""The package's metadata alone: by its entry points Airflow finds the plugin and the provider."""
OF_EXTRAS: Final = {
    "airflow": "airflow",
    "airflow,driver": "airflow",
    "driver": "driver",
    "stream": "stream",
    "driver,stream": "stream",
}
"""The environment that has the extras of a command."""


def main() -> None:
    words = sys.argv[1:]
    # Completion needs a package that Airflow brings.
    extras = "airflow" if "_ARGCOMPLETE" in os.environ else cli.EXTRAS.get(cli.named(words)[1], "driver")
    python = ROOT / ".envs" / OF_EXTRAS[extras] / "bin" / "python"
    if OF_EXTRAS[extras] == "driver" or not python.exists():
        cli.entry()
    path = os.pathsep.join([str(ROOT / "plugins"), str(METADATA), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.execve(python, [str(python), "-m", "nightshift.cli", *words], {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    main()
