"""`infra/` in OpenTofu, against the whole schema of the Google provider: validated, asserted, applied and destroyed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from local.google_cloud import access
from local.google_cloud import state as cloud
from local.google_cloud.state import full_name
from local.terraform import check
from local.terraform.build import Tools
from local.terraform.state import from_tfstate
from local.terraform.tofu import INFRA, Workspace

pytestmark = pytest.mark.integration


@pytest.fixture
def workspace(tools: Tools, tmp_path: Path) -> Workspace:
    return Workspace.make(tools, tmp_path)


def test_the_whole_schema_takes_it(workspace: Workspace) -> None:
    assert workspace.problems() == []


def test_it_is_formatted(workspace: Workspace) -> None:
    """The mutator, too, reads it line by line."""
    assert workspace.run("fmt", "-check", "-recursive") == ""


def test_what_the_gate_knows_of_the_schema_is_current(tools: Tools) -> None:
    assert check.of_infra(json.loads(tools.schema.read_text())) == check.load(), "python3 -m local.terraform schema"


def test_its_assertions_hold(workspace: Workspace) -> None:
    workspace.run("test")


@pytest.mark.parametrize(
    ("file", "before", "after", "named"),
    [
        ("modules/storage/main.tf", "uniform_bucket_level_access =", "uniform_access =", "Unsupported argument"),
        ("modules/storage/main.tf", '"google_storage_bucket" "runs"', '"google_bucket" "runs"', "Invalid resource type"),
        ("modules/storage/main.tf", "  location = var.region\n", "", "Missing required argument"),
        ("modules/cluster/main.tf", "enable_private_nodes = true", 'enable_private_nodes = "yes"', "Incorrect attribute value"),
        ("modules/cluster/main.tf", "  private_cluster_config {", "  private_cluster {", "Unsupported block type"),
        ("main.tf", "module.storage.bucket", "module.storage.buckets", "Unsupported attribute"),
    ],
)
def test_it_says_what_the_schema_refuses(workspace: Workspace, file: str, before: str, after: str, named: str) -> None:
    text = (workspace.folder / file).read_text()
    assert before in text
    (workspace.folder / file).write_text(text.replace(before, after, 1))

    assert any(named in problem for problem in workspace.problems())


EXAMPLE = (INFRA / "terraform.tfvars.example").read_text()
[EVERYTHING] = re.findall(
    r"^variables \{\n(.*?)^\}", (INFRA / "tests/production.tftest.hcl").read_text(), re.MULTILINE | re.DOTALL
)
"""The variables of the assertions: two projects, a key, streams, a database, every kind of pool."""


@pytest.mark.parametrize("variables", [EXAMPLE, EVERYTHING], ids=["example", "everything"])
def test_it_is_made_once_and_destroyed(workspace: Workspace, variables: str) -> None:
    (workspace.folder / "terraform.tfvars").write_text(variables)

    workspace.run("apply", "-auto-approve")

    # Nothing is left to do: what Google would compute is the same each time.
    workspace.run("plan", "-detailed-exitcode")
    assert len(from_tfstate(workspace.state(), workspace.folder).of(cloud.CLUSTER)) == 1

    workspace.run("destroy", "-auto-approve")

    assert from_tfstate(workspace.state(), workspace.folder).resources == {}


def test_what_is_made_is_what_the_stand_ins_see(workspace: Workspace) -> None:
    (workspace.folder / "terraform.tfvars").write_text(EXAMPLE)
    workspace.run("apply", "-auto-approve")
    tfstate = workspace.state()

    state = from_tfstate(tfstate, workspace.folder)

    cluster = state.get(cloud.CLUSTER, full_name("container", "projects/my-project/locations/europe-west4/clusters/nightshift"))
    assert cluster is not None
    assert cluster["privateClusterConfig"] == {"enablePrivateNodes": True}
    bucket = state.get(cloud.BUCKET, full_name("storage", "my-project-nightshift"))
    number = state.of(cloud.PROJECT)[full_name("cloudresourcemanager", "projects/my-project")]["projectNumber"]
    worker = access.workload("my-project", str(number), "nightshift", "nightshift-product-texts")
    assert access.roles(bucket, worker) == {"storage.objectCreator", "storage.objectViewer"}
    grants = sum(len(each["instances"]) for each in tfstate["resources"] if each["type"].endswith("_iam_member"))
    bound = sum(
        len(binding["members"])
        for objects in state.resources.values()
        for fields in objects.values()
        for binding in fields.get("iamPolicy", {}).get("bindings", [])
    )
    assert bound == grants
