"""k8s/README.md, read: its steps, its roles and its files agree with each other, with `k8s/` and with the code.

`tests/integration/cloud` follows it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "k8s/README.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"^### (\d+)\. .*?\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)


def test_steps_are_numbered_and_each_has_a_command() -> None:
    assert [int(number) for number, _ in STEPS] == list(range(1, len(STEPS) + 1))
    assert len(STEPS) > 10
    assert [number for number, text in STEPS if "```bash\n" not in text] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:50])
def test_a_shell_reads_each_block(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_folders_that_the_page_lists_are_those_there_are() -> None:
    listed = set(re.findall(r"^  ([a-z-]+)/ ", PAGE, re.MULTILINE)) | {"gke-tpu-spot", "gke-multihost"}
    found = {path.name for folder in ("components", "overlays") for path in (ROOT / "k8s" / folder).iterdir()}

    assert listed == found


@pytest.mark.parametrize("overlay", ["gke-gpu-spot", "gke-tpu-spot", "gke-multihost"])
def test_every_overlay_has_the_same_names_to_fill_in(overlay: str) -> None:
    data = yaml.safe_load((ROOT / f"k8s/overlays/{overlay}/deployment.yaml").read_text())["data"]

    assert {data[name] for name in ("project", "node", "airflow", "airflowId")} == {
        "CLUSTER_PROJECT",
        "NODE_ACCOUNT",
        "AIRFLOW_ACCOUNT",
        "AIRFLOW_ID",
    }


WORKERS = set(re.findall(r"^\| workers \| `([\w.]+)` \|", PAGE, re.MULTILINE))
AIRFLOW_IN_BIGQUERY = set(re.findall(r"^\| Airflow \| `(bigquery\.\w+)` \|", PAGE, re.MULTILINE))
# What each role holds of what the code could call (IAM's own list of roles and permissions).
STORAGE = {
    "storage.objectViewer": {"get", "list"},
    "storage.objectCreator": {"create"},
    "storage.objectUser": {"get", "list", "create", "delete", "update"},
    "storage.legacyBucketReader": {"list"},
}
CALLS = {
    "get": "get", "get_async": "get", "get_range": "get", "head": "get", "head_async": "get", "list": "list",
    "list_with_delimiter": "list", "put": "create", "put_async": "create", "delete": "delete", "delete_async": "delete",
    "copy": "create", "rename": "delete",
}  # fmt: skip
IN_THE_POD = ("driver", "run", "store.py", "tasks", "spec")
ANOTHER_POD = "model_copy.py"
"""`nightshift render --copy-model` makes a Job for it, with an account of its own that may write models."""


def storage_calls() -> dict[str, set[str]]:
    """Which of obstore's calls a worker's code makes, and where; a put that may replace an object counts as a delete too."""
    found: dict[str, set[str]] = {}
    product = ROOT / "plugins/nightshift"
    paths = [
        path for room in IN_THE_POD for path in ([product / room] if room.endswith(".py") else (product / room).rglob("*.py"))
    ]
    for path in paths:
        if path.name == ANOTHER_POD:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if not isinstance(node.func.value, ast.Name) or node.func.value.id != "obstore":
                continue
            modes = [each.value for each in node.keywords if each.arg == "mode"]
            needs = {CALLS[node.func.attr]}
            if node.func.attr.startswith("put") and [ast.literal_eval(mode) for mode in modes] != ["create"]:
                needs.add("delete")
            for need in needs:
                found.setdefault(need, set()).add(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_workers_may_do_what_their_code_does_and_cannot_overwrite() -> None:
    allowed = set().union(*(STORAGE[role] for role in WORKERS))

    assert set(storage_calls()) == allowed == {"get", "list", "create"}


def test_airflow_may_do_in_bigquery_what_its_code_does() -> None:
    """The client's methods, and the role that has the permission of each."""
    roles = {
        "get_table": "bigquery.dataViewer", "get_dataset": "bigquery.dataViewer", "create_table": "bigquery.dataEditor",
        "delete_table": "bigquery.dataEditor", "load_table_from_uri": "bigquery.jobUser", "query": "bigquery.jobUser",
        "get_job": "bigquery.jobUser", "cancel_job": "bigquery.jobUser", "create_dataset": None,
    }  # fmt: skip
    text = "".join(path.read_text() for path in (ROOT / "plugins/nightshift/warehouse").glob("*.py"))
    called = set(re.findall(r"self\._client\.(\w+)\(", text))

    assert called == set(roles)
    assert {role for role in roles.values() if role} == AIRFLOW_IN_BIGQUERY
    # It creates only its own dataset, if that is missing; the page does.
    assert "bq --location=$REGION mk --force --dataset $PROJECT_ID:$dataset" in PAGE


def test_no_region_or_zone_is_written_into_a_command() -> None:
    _, *rest = BLOCKS

    assert not re.findall(r"\b(?:us|europe|asia)-[a-z]+\d\b|\$REGION-[a-f]\b", "".join(rest))
