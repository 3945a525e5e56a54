"""k8s/README.md as a program: its steps, and a clone in which they are followed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final
from unittest import mock

import yaml

from local import composer, package
from local.google_cloud.cloud import Cloud, Machine, Refused, new_project
from local.google_cloud.gcloud import zones_of_europe
from local.google_cloud.shell import Program, Walk, follow, nightshift_environment
from local.google_cloud.state import State

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "k8s/README.md").read_text()
PROJECT: Final = "my-project"
"""The page's own."""
WHEEL: Final = "airflow_provider_nightshift-0.3.0-py3-none-any.whl"
AUTOPILOT: Final = "container clusters create-auto"
Edit = Callable[[str], str]


def blocks(text: str) -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def steps(page: str = PAGE) -> dict[int, str]:
    """The commands of each numbered step, with a Standard cluster."""
    found = re.findall(r"^### (\d+)\. .*?\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    return {int(number): "\n".join(each for each in blocks(text) if AUTOPILOT not in each) for number, text in found}


def autopilot(page: str = PAGE) -> str:
    """The commands of the steps with an Autopilot cluster, which has no node pools and knows only profiles that end in -any."""
    found = re.findall(r"^### (\d+)\. .*?\n(.*?)(?=^##)", page, re.MULTILINE | re.DOTALL)
    kept = [
        each for number, text in found if number != "11" for each in blocks(text) if "container clusters create $" not in each
    ]
    return "\n".join(kept).replace("gpu-l4-spot", "gpu-l4-any")


def streams(page: str = PAGE) -> str:
    """The commands of a stream, with those of the steps that the page says it needs."""
    [section] = re.findall(r"^## Streams\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    needs = re.search(r"needs steps ([\d, to]+\d)", section)
    assert needs is not None
    numbers: list[int] = []
    for each in needs[1].split(", "):
        first, _, last = each.partition(" to ")
        numbers += range(int(first), int(last or first) + 1)
    return "\n".join([*(steps(page)[number] for number in numbers), *blocks(section)])


@cache
def _nightshift(words: tuple[str, ...], file: str, text: str, environment: tuple[tuple[str, str], ...]) -> str:
    """What the real command prints, of a file with this text: many walks ask for the same."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / Path(file).name
        place.write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "nightshift.cli", *(str(place) if each == file else each for each in words)],
            env={**dict(environment), "PYTHONPATH": str(ROOT / "plugins")}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise Refused(done.stderr, done.returncode)
    return done.stdout


def run_nightshift(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    file = next(each for each in words if each.endswith(".yaml"))
    return _nightshift(
        tuple(words), file, (folder / file).read_text(), tuple(sorted(nightshift_environment(variables).items()))
    )


def _yq(walk: Walk, words: Sequence[str], stdin: str) -> str:
    """The page's one expression."""
    assert words == ['.spec.replicatedJobs[0].template.spec.template | .apiVersion="v1" | .kind="Pod" | .metadata.name="try"']
    pod = yaml.safe_load(stdin)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return yaml.safe_dump(pod | {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": "try"}})


def _sleep(walk: Walk, words: Sequence[str], stdin: str) -> str:
    walk.cloud.state.seconds += int(words[0])
    return ""


def maker(commands: Edit) -> Program:
    """`make composer-bundle` with an empty wheel; tests/integration/package builds a real one."""

    def make(walk: Walk, words: Sequence[str], stdin: str) -> str:
        if words[-1] != "composer-bundle":
            raise Refused(f"make: *** No rule to make target '{words[-1]}'.  Stop.", 2)
        folder = walk.cloud.machine.folder
        (folder / WHEEL).touch()
        with mock.patch.object(package, "wheel", return_value=folder / WHEEL):
            composer.bundle(folder / "dist/composer")
        text = Template(commands(composer.COMMANDS.read_text())).substitute(wheel=WHEEL, version="0.3.0")
        (folder / "dist/composer/commands.txt").write_text(text)
        return ""

    return make


def same(text: str) -> str:
    return text


def no_change(cloud: Cloud) -> None:
    pass


@dataclass(frozen=True)
class Changes:
    """What is not as the repository has it: the page itself, the YAML of `k8s/`, the bundle's commands, the jobs, and what
    `nightshift render` prints; and the cloud before the first command."""

    page: Edit = same
    manifests: Edit = same
    commands: Edit = same
    jobs: Edit = same
    rendered: Edit = same
    cloud: Callable[[Cloud], None] = no_change


def walked(folder: Path, script: Callable[[str], str], changes: Changes | None = None) -> Walk:
    """Follows commands in a clone, from an empty project. script: which commands of the page."""
    changes = changes or Changes()
    for each in ("k8s", "dags", "streams", "images"):
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    _edit(folder / "k8s", changes.manifests)
    _edit(folder / "dags/jobs", changes.jobs)
    state = State()
    new_project(state, PROJECT)
    cloud = Cloud(state, Machine(folder), zones_of_europe())
    changes.cloud(cloud)

    def render(text: str, partition: str, variables: dict[str, str]) -> str:
        (folder / "night.yaml").write_text(text)
        words = ("render", "night.yaml", "--partition", partition, "--rows", "1000")
        return changes.rendered(run_nightshift(words, folder, variables))

    def cli(walk: Walk, words: Sequence[str], stdin: str) -> str:
        return changes.rendered(run_nightshift(words, walk.cloud.machine.folder, walk.cloud.machine.variables))

    programs = {"make": maker(changes.commands), "nightshift": cli, "yq": _yq, "sleep": _sleep}
    return follow(Walk(cloud, render, programs), script(changes.page(PAGE)).replace("/tmp/", f"{folder}/"))


def _edit(folder: Path, edit: Edit) -> None:
    if edit is not same:
        for file in folder.rglob("*.yaml"):
            file.write_text(edit(file.read_text()))


def night(page: str) -> str:
    """The commands from an empty project to the first night."""
    return "\n".join(steps(page).values())
