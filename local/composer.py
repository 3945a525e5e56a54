"""``python3 -m local.composer``: what Cloud Composer 3 needs of this clone in one folder, and the commands to bring it there.

    dist/composer/airflow_provider_nightshift-VERSION-py3-none-any.whl
    dist/composer/dags/              the DAGs, the job files and the streams, without the demos'
    dist/composer/requirements.txt   the packages that Composer's image lacks, one ``name==version`` a line
    dist/composer/upstreams.json     where the package index of the commands looks first
    dist/composer/commands.txt       the commands, in order, for one bash; they read PROJECT_ID and REGION

Needs no cloud. Standard library only. Exit codes: 0, or 1 if the wheel cannot be built.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from string import Template
from typing import Final

from local import package
from local.environments import REQUIREMENTS, ROOT, SetupError

TARGET: Final = ROOT / "dist" / "composer"
COMMANDS: Final = Path(__file__).with_name("composer_commands.txt")
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEMO: Final = "package-embeddings.yaml"
"""The job that stays behind: the local stack makes its table, and its profile is for machines without accelerators."""
DEMO_STREAM: Final = "package-texts.yaml"
NO_JOB: Final = "One YAML file in this folder is one nightly job. This file only makes the folder exist in a bucket.\n"
OURS: Final = "driver.in"
"""The file with nightshift's own needs: `requirements/airflow.txt` notes beside each pin where it comes from."""


def bundle(target: Path) -> None:
    """Replaces the folder. Raises SetupError."""
    wheel = package.wheel()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(wheel, target)
    shutil.copytree(ROOT / "dags", target / "dags", ignore=shutil.ignore_patterns("__pycache__", DEMO, DEMO_STREAM))
    (target / "dags" / "jobs" / "README.txt").write_text(NO_JOB)
    version = wheel.name.split("-")[1]
    (target / "requirements.txt").write_text("\n".join([f"{PROJECT['name']}=={version}", *lacking()]) + "\n")
    (target / "upstreams.json").write_text(json.dumps(upstreams(), indent=2) + "\n")
    (target / "commands.txt").write_text(Template(COMMANDS.read_text()).substitute(wheel=wheel.name, version=version))


def lacking() -> list[str]:
    """``name==version`` of each package that nightshift needs in Airflow and that no package of Airflow or Google brings.

    The others stay as Composer's image has them: pip leaves what meets the wheel's ranges.
    """
    needed = {re.split(r"[^\w-]", text)[0] for text in PROJECT["dependencies"]}
    pins = re.findall(r"^([\w.-]+==\S+)((?:\n    #.*)*)", (REQUIREMENTS / "airflow.txt").read_text(), re.MULTILINE)
    brought_by = {pin: set(re.findall(r"#(?: via)? +(?:-r )?([\w.-]+)$", notes, re.MULTILINE)) for pin, notes in pins}
    return [pin for pin, packages in brought_by.items() if pin.split("==")[0] in needed and packages == {OURS}]


def upstreams() -> list[dict[str, str | int]]:
    """The policy of the virtual repository: a version that both have comes from ours. `commands.txt` fills in the names."""
    place = "projects/PROJECT/locations/LOCATION/repositories"
    return [
        {"id": "own", "repository": f"{place}/REPOSITORY", "priority": 100},
        {"id": "pypi", "repository": f"{place}/REPOSITORY-pypi", "priority": 10},
    ]


def main() -> int:
    try:
        bundle(TARGET)
    except SetupError as error:
        print(f"[composer] {error}", file=sys.stderr)
        return 1
    jobs = len([*(TARGET / "dags" / "jobs").glob("*.y*ml")])
    place = TARGET.relative_to(ROOT)
    print(f"{place} holds the wheel, the DAGs, {jobs} jobs and requirements.txt. Next: bash {place}/commands.txt")
    if not jobs:
        print("The job of the demo is for the local stack alone. Your own go beside it, into dags/jobs/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
