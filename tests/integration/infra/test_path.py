"""infra/README.md as a program: real OpenTofu makes the infrastructure, and the stand-ins of other commands see its state."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from local.environments import ROOT
from local.google_cloud import state as cloud
from local.google_cloud.cloud import Cloud, Machine, Refused, new_project
from local.google_cloud.count import count
from local.google_cloud.gcloud import zones_of_europe
from local.google_cloud.night import outcomes
from local.google_cloud.shell import Program, Walk, follow
from local.google_cloud.state import State
from local.terraform.build import Tools
from local.terraform.state import from_tfstate
from local.terraform.tofu import Failed, Workspace
from tests.integration.cloud.doctor import asked, images
from tests.integration.cloud.pages import PROJECT, blocks, run_nightshift, steps

pytestmark = pytest.mark.integration

PAGE = (ROOT / "infra/README.md").read_text()
APPLY_S = 2400


def tofu(workspace: Workspace) -> Program:
    """The real program, whose state is brought into the pretended cloud after each change."""
    made: set[tuple[str, str]] = set()

    def run(walk: Walk, words: Sequence[str], stdin: str) -> str:
        chdir, command, *rest = words
        assert chdir == "-chdir=infra"
        if command == "init":
            # There is no registry of providers here: the stand-in is used in place of what it would fetch.
            return ""
        try:
            out = workspace.run(command, *rest, *(["-auto-approve"] if command in ("apply", "destroy") else []))
        except Failed as error:
            raise Refused(str(error)) from error
        if command in ("apply", "destroy"):
            walk.cloud.state.seconds += APPLY_S
            _bring(walk.cloud.state, from_tfstate(workspace.state(), workspace.folder), made)
        return out

    return run


def _bring(state: State, found: State, made: set[tuple[str, str]]) -> None:
    there = {(kind, name) for kind, objects in found.resources.items() for name in objects}
    for kind, name in sorted(made - there, reverse=True):
        if state.get(kind, name) is not None:
            state.remove(kind, name)
    for kind, name in sorted(there):
        before = state.get(kind, name) or {"createdAtSeconds": state.seconds}
        state.put(kind, name, {**before, **found.resources[kind][name]})
    made.clear()
    made.update(there)


def walked(folder: Path, tools: Tools, change: Callable[[Path], None], script: str) -> Walk:
    for each in ("k8s", "dags", "streams", "images"):
        shutil.copytree(ROOT / each, folder / each, ignore=shutil.ignore_patterns("__pycache__"))
    demo = (ROOT / "dags/jobs/package-embeddings.yaml").read_text()
    job = demo.replace("job: package-embeddings", "job: product-texts").replace("profile: cpu", "profile: gpu-l4-spot")
    (folder / "dags/jobs/product-texts.yaml").write_text(job.replace("table: catalog", "table: predictions"))
    workspace = Workspace.make(tools, folder)
    change(workspace.folder)
    state = State()
    new_project(state, PROJECT)

    def render(text: str, partition: str, variables: dict[str, str]) -> str:
        (folder / "night.yaml").write_text(text)
        return run_nightshift(("render", "night.yaml", "--partition", partition, "--rows", "1000"), folder, variables)

    def cli(walk: Walk, words: Sequence[str], stdin: str) -> str:
        return run_nightshift(words, folder, walk.cloud.machine.variables)

    def sleep(walk: Walk, words: Sequence[str], stdin: str) -> str:
        walk.cloud.state.seconds += int(words[0])
        return ""

    programs: dict[str, Program] = {"tofu": tofu(workspace), "nightshift": cli, "sleep": sleep}
    return follow(Walk(Cloud(state, Machine(folder), zones_of_europe()), render, programs), script)


def page() -> str:
    """The page's commands, and the quota that it says to ask for, by the commands of the path by hand."""
    names = f"export PROJECT_ID={PROJECT} CLUSTER_PROJECT={PROJECT} REGION=europe-west4\n"
    commands = "\n".join(blocks(PAGE)).replace(".venv/bin/nightshift", "nightshift")
    return commands.replace("gcloud builds submit", f"{names}{steps()[3]}gcloud builds submit", 1)


def as_it_is(infra: Path) -> None:
    pass


def swap(file: str, before: str, after: str) -> Callable[[Path], None]:
    def change(infra: Path) -> None:
        text = (infra / file).read_text()
        assert before in text
        (infra / file).write_text(text.replace(before, after))

    return change


@pytest.mark.gate
def test_the_path_is_typed_in_twelve_commands() -> None:
    assert count("\n".join(blocks(PAGE))).typed == 12


def test_the_page_leads_to_the_first_night_and_the_first_answer(tmp_path: Path, tools: Tools) -> None:
    walk = walked(tmp_path, tools, as_it_is, page())

    assert walk.code == 0, walk.error
    assert outcomes(walk.cloud.state) == {"night-1": ""}
    assert walk.out.rstrip().endswith('{"severity": "INFO", "answered": 1}')
    for file in ("dags/jobs/product-texts.yaml", "streams/package-texts.yaml"):
        report = images(asked(walk, tmp_path / file))
        assert report.problems == (), report.lines()


def test_destroy_leaves_what_it_did_not_make(tmp_path: Path, tools: Tools) -> None:
    made = page().split("eval ")[0]
    walk = walked(tmp_path, tools, as_it_is, f"{made}\ntofu -chdir=infra destroy")

    assert walk.code == 0, walk.error
    left = {kind: objects for kind, objects in walk.cloud.state.resources.items() if objects}
    assert set(left) <= {cloud.NETWORK, cloud.PROJECT, cloud.QUOTA}, left


@pytest.mark.parametrize(
    ("change", "named", "check"),
    [
        (
            swap("modules/pubsub/main.tf", '"roles/pubsub.publisher"', '"roles/pubsub.viewer"'),
            "may not publish to",
            "Pub/Sub's service agent, publisher",
        ),
        (
            swap(
                "modules/cluster/main.tf",
                "horizontal_pod_autoscaling {\n      disabled = false",
                "horizontal_pod_autoscaling {\n      disabled = true",
            ),
            "HorizontalPodAutoscaling is disabled",
            "add-on HorizontalPodAutoscaling",
        ),
        (
            swap("modules/builds/main.tf", '"roles/artifactregistry.writer"', '"roles/artifactregistry.reader"'),
            'Permission "artifactregistry.repositories.uploadArtifacts" denied',
            None,
        ),
    ],
    ids=["Pub/Sub's agent may not publish", "an add-on is off", "builds may not push"],
)
def test_what_is_wrong_is_seen_on_the_way(
    tmp_path: Path, tools: Tools, change: Callable[[Path], None], named: str, check: str | None
) -> None:
    """check: of the doctor, which names it too, from what is there."""
    waits = (
        "kubectl wait deployment --for=condition=Available --namespace=nightshift --selector=nightshift.dev/job=package-texts\n"
    )
    waits += (
        "kubectl wait hpa --for=condition=ScalingActive --namespace=nightshift --selector=nightshift.dev/job=package-texts\n"
    )
    walk = walked(
        tmp_path, tools, change, re.sub("(?m)^gcloud pubsub topics publish", waits + "gcloud pubsub topics publish", page())
    )

    assert walk.code != 0
    assert named in walk.error
    if check:
        report = images(asked(walk, tmp_path / "streams/package-texts.yaml"))
        assert [each.check for each in report.problems] == [check], report.lines()
