"""k8s/README.md, followed line by line: all its commands run in one shell, against stand-ins that record how they were called.

The stand-ins know no cloud. What is shown is that the page is a program (its variables are set before they are used, its files
exist), and that its parts agree with each other, with `k8s/` and with the code.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.storage.database import Database
from local.storage.policies import Policies, checked
from nightshift.jobset.manifest.disk import node_disk_gb
from nightshift.profiles import PROFILES, Span, fit
from nightshift.run.names import RunRef
from nightshift.settings import Settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "k8s/README.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STEPS = re.findall(r"^### (\d+)\. .*?\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = ("gcloud", "kubectl", "bq", "docker", "make", "nightshift", "yq")
STAND_IN = """
{name}() {{
  line=$(printf '%s\\t' {name} "$@" | tr '\\n' ' ')
  # In one write: two of a pipe run at once.
  printf '%s\\n' "$line" >> "$CALLS"
  case "$*" in
    *projectNumber*) echo 123456789012 ;;
    *uniqueId*) echo 110000000000000000001 ;;
    *"get-value account"*) echo somebody@example.com ;;
    *--flatten=quotas*) echo PREEMPTIBLE_NVIDIA_L4_GPUS 0 0 ;;
  esac
}}
"""


@dataclass(frozen=True)
class Call:
    """One command of the page, with its variables filled in."""

    program: str
    words: tuple[str, ...]

    def option(self, name: str) -> str | None:
        """The value of ``--name=VALUE`` or ``-n VALUE``; '' for a flag that has none."""
        for number, word in enumerate(self.words):
            if word == name:
                return self.words[number + 1] if name.startswith("-") and len(name) == 2 else ""
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def says(self, *words: str) -> bool:
        return self.words[: len(words)] == words


@dataclass(frozen=True)
class Walk:
    """What following the page did. folder: the copy of the repository in which it ran."""

    calls: tuple[Call, ...]
    folder: Path
    error: str

    def gcloud(self, *words: str) -> list[Call]:
        return [call for call in self.calls if call.program == "gcloud" and call.says(*words)]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT / "k8s", folder / "k8s")
    (folder / "dist/composer").mkdir(parents=True)
    (folder / "dist/composer/commands.txt").touch()
    calls = folder / "calls"
    script = "\n".join(
        [
            "set -eu -o pipefail",
            *(STAND_IN.format(name=name) for name in PROGRAMS),
            *(block.replace("/tmp/", f"{folder}/") for block in BLOCKS),
        ]
    )
    environment = {"PATH": "/usr/bin:/bin", "CALLS": str(calls)}
    done = subprocess.run(["bash"], input=script, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = [line.rstrip("\t").split("\t") for line in calls.read_text().splitlines()]
    return Walk(tuple(Call(program, tuple(words)) for program, *words in lines), folder, f"{done.returncode} {done.stderr}")


def test_steps_are_numbered_and_each_has_a_command() -> None:
    assert [int(number) for number, _ in STEPS] == list(range(1, len(STEPS) + 1))
    assert len(STEPS) > 10
    assert [number for number, text in STEPS if "```bash\n" not in text] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0][:50])
def test_a_shell_reads_each_block(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_runs_from_its_first_line_to_its_last(walk: Walk) -> None:
    """Under ``set -u``: a variable that no step sets ends it."""
    assert walk.error == "0 "
    assert len(walk.calls) > 60
    assert {call.program for call in walk.calls[-3:]} == {"nightshift", "yq", "kubectl"}


def test_a_variable_that_is_not_set_would_end_it() -> None:
    done = subprocess.run(["bash"], input="set -eu\necho $CLUSTER\n", capture_output=True, text=True, check=False, env={})

    assert done.returncode != 0


def test_everything_that_is_applied_from_here_is_here(walk: Walk) -> None:
    applied = [call.option("-k") for call in walk.calls if call.program == "kubectl" and call.option("-k")]

    assert applied == ["k8s/overlays/gke-gpu-spot"]
    overlays = set(re.findall(r"overlay `([\w-]+)`|OVERLAY=([\w-]+)", PAGE))
    for name in {first or second for first, second in overlays}:
        assert (ROOT / "k8s/overlays" / name / "kustomization.yaml").is_file()
    for call in walk.calls:
        if call.program == "docker" and (file := call.option("-f")):
            assert (ROOT / file).is_file()


def test_the_folders_that_the_page_lists_are_those_there_are() -> None:
    listed = set(re.findall(r"^  ([a-z-]+)/ ", PAGE, re.MULTILINE)) | {"gke-tpu-spot", "gke-multihost"}
    found = {path.name for folder in ("components", "overlays") for path in (ROOT / "k8s" / folder).iterdir()}

    assert listed == found


def test_names_are_filled_in_without_a_rest(walk: Walk) -> None:
    data = yaml.safe_load((walk.folder / "k8s/overlays/gke-gpu-spot/deployment.yaml").read_text())["data"]

    assert data == {
        "project": "my-project",
        "node": "nightshift-node@my-project.iam.gserviceaccount.com",
        "airflow": "nightshift-airflow@my-project.iam.gserviceaccount.com",
        "airflowId": "110000000000000000001",
        "imageCache": "nightshift-images",
        "reservation": "nightshift",
    }


@pytest.mark.parametrize("overlay", ["gke-gpu-spot", "gke-tpu-spot", "gke-multihost"])
def test_every_overlay_has_the_same_names_to_fill_in(overlay: str) -> None:
    data = yaml.safe_load((ROOT / f"k8s/overlays/{overlay}/deployment.yaml").read_text())["data"]

    assert {data[name] for name in ("project", "node", "airflow", "airflowId")} == {
        "CLUSTER_PROJECT",
        "NODE_ACCOUNT",
        "AIRFLOW_ACCOUNT",
        "AIRFLOW_ID",
    }


ACCOUNTS = {
    "serviceAccount:nightshift-node@": "nodes",
    "serviceAccount:nightshift-airflow@": "Airflow",
    "principal://": "workers",
    "user:": "you",
}
ROLES = {
    (account, role) for account, role in re.findall(r"^\| (nodes|workers|Airflow|you) \| `([\w.]+)` \|", PAGE, re.MULTILINE)
}


def granted(walk: Walk) -> Iterator[tuple[str, str]]:
    """(account, role) of each grant of the page, those in SQL too."""
    for call in walk.calls:
        member, role = call.option("--member"), call.option("--role")
        if member and role:
            [account] = [name for start, name in ACCOUNTS.items() if member.startswith(start)]
            yield account, role.removeprefix("roles/")
        for role, member in re.findall(r"GRANT `roles/([\w.]+)` ON SCHEMA .* TO '(.*)'", " ".join(call.words)):
            assert member.startswith("serviceAccount:nightshift-airflow@")
            yield "Airflow", role


def test_the_list_of_roles_is_what_is_granted(walk: Walk) -> None:
    assert set(granted(walk)) == ROLES
    assert len(ROLES) == 13


def test_no_grant_is_broader_than_the_list_says(walk: Walk) -> None:
    """Storage by bucket, images by repository, data by dataset: never for a whole project."""
    on_projects = {call.option("--role") for call in walk.gcloud("projects", "add-iam-policy-binding")}

    assert on_projects == {
        "roles/container.defaultNodeServiceAccount",
        "roles/serviceusage.serviceUsageConsumer",
        "roles/composer.worker",
        "roles/bigquery.jobUser",
        "roles/container.clusterViewer",
    }


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


def storage_calls() -> dict[str, set[str]]:
    """Which of obstore's calls a worker's code makes, and where; a put that may replace an object counts as a delete too."""
    found: dict[str, set[str]] = {}
    product = ROOT / "plugins/nightshift"
    paths = [
        path for room in IN_THE_POD for path in ([product / room] if room.endswith(".py") else (product / room).rglob("*.py"))
    ]
    for path in paths:
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
    allowed = set().union(*(STORAGE[role] for account, role in ROLES if account == "workers"))

    assert set(storage_calls()) == allowed == {"get", "list", "create"}


def worker_of(walk: Walk, folder: Path) -> Callable[..., bool]:
    """May the worker of a job do it? By the page's own grants, as the emulator of Cloud Storage reads them."""
    policies = Policies(Database(folder))
    found: list[dict[str, Any]] = []
    for call in walk.gcloud("storage", "buckets", "add-iam-policy-binding"):
        condition = call.option("--condition")
        given = dict(part.split("=", 1) for part in condition.split(",", 1)) if condition else None
        found.append(
            {"role": call.option("--role"), "members": [call.option("--member")]} | ({"condition": given} if given else {})
        )
    policies.set("my-project-nightshift", checked({"version": 3, "bindings": found}, uniform=True))
    (member,) = {member for call in walk.calls if "sa/nightshift-" in (member := str(call.option("--member")))}

    def may(verb: str, name: str | None = None) -> bool:
        return policies.allows(member, f"storage.objects.{verb}", "my-project-nightshift", name)

    return may


def test_a_workers_rights_end_at_its_own_prefix(walk: Walk, tmp_path: Path) -> None:
    may = worker_of(walk, tmp_path)
    mine, work = RunRef("package-embeddings", "2026-11-20", "0" * 16), "_workers/package-embeddings/2026-11-20/x"

    assert may("create", f"{work}/ledger/chunk-00000000.parquet")
    assert may("list")
    for path in (mine.spec_path, mine.plan_path, f"{mine.inputs_folder}/a.parquet", f"{work}/ledger/chunk-00000000.parquet"):
        assert may("get", path)
    foreign = ("package-embeddings-2", "package", "other")
    others = [f"{folder}{job}/2026-11-20/x" for job in foreign for folder in ("", "_workers/")]
    for path in (
        mine.spec_path,
        mine.plan_path,
        mine.manifest_path,
        mine.pause_path(1),
        "_speeds/a/b.json",
        "_workers",
        *others,
    ):
        assert not may("create", path), path
    for path in ("_speeds/a/b.json", *others):
        assert not may("get", path), path
    for path in (f"{work}/ledger/chunk-00000000.parquet", mine.spec_path):
        assert not may("delete", path)
        assert not may("update", path)


def test_airflow_may_do_in_bigquery_what_its_code_does() -> None:
    """The client's methods, and the role that has the permission of each."""
    roles = {
        "get_table": "bigquery.dataViewer", "get_dataset": "bigquery.dataViewer", "create_table": "bigquery.dataEditor",
        "delete_table": "bigquery.dataEditor", "load_table_from_uri": "bigquery.jobUser", "query": "bigquery.jobUser",
        "get_job": "bigquery.jobUser", "create_dataset": None,
    }  # fmt: skip
    text = "".join(path.read_text() for path in (ROOT / "plugins/nightshift/warehouse").glob("*.py"))
    called = set(re.findall(r"self\._client\.(\w+)\(", text))

    assert called == set(roles)
    assert {role for role in roles.values() if role} == {role for _, role in ROLES if role.startswith("bigquery.")}
    # It creates only its own dataset, if that is missing; the page does.
    assert "bq --location=$REGION mk --force --dataset $PROJECT_ID:$dataset" in PAGE


def pools(walk: Walk) -> dict[str, Call]:
    return {call.words[3]: call for call in walk.gcloud("container", "node-pools", "create")}


@pytest.mark.parametrize(
    ("pool", "profile", "span"),
    [
        ("l4-spot", "gpu-l4-spot", Span()),
        ("l4-flex", "gpu-l4-flex", Span()),
        ("h100x2-1", "gpu-h100-spot", Span(hosts=2)),
        ("v6e-4x4-1", "tpu-v6e-spot", Span(topology="4x4")),
        ("v6e-flex", "tpu-v6e-flex", Span()),
    ],
)
def test_a_node_pool_is_what_its_profile_asks_for(walk: Walk, pool: str, profile: str, span: Span) -> None:
    call, worker = pools(walk)[pool], fit(PROFILES[profile], span)
    assert worker.machine is not None
    assert f"`{profile}`" in PAGE

    assert call.option("--machine-type") == worker.machine.name
    assert call.option("--disk-size") == str(node_disk_gb(worker.weights_gib_max + 12))
    assert call.option("--service-account") == "nightshift-node@my-project.iam.gserviceaccount.com"
    assert call.option("--node-locations") == "europe-west4-b"
    if worker.is_tpu:
        assert call.option("--tpu-topology") == (span.topology if worker.hosts > 1 else None)
    else:
        label = worker.node_selector["cloud.google.com/gke-accelerator"]
        wanted = f"type={label},count={worker.machine.accelerators},gpu-driver-version=latest"
        assert call.option("--accelerator") == wanted
    most = call.option("--max-nodes") or call.option("--total-max-nodes")
    assert int(str(most)) >= worker.hosts
    flex = {"--flex-start": "", "--no-enable-autorepair": "", "--location-policy": "ANY", "--reservation-affinity": "none"}
    assert {name: call.option(name) for name in flex} == (flex if profile.endswith("-flex") else dict.fromkeys(flex))
    assert (call.option("--spot") == "") == profile.endswith("-spot")
    assert call.option("--num-nodes") == "0"


def test_every_pool_of_the_page_was_looked_at(walk: Walk) -> None:
    assert set(pools(walk)) == {"l4-spot", "l4-flex", "h100x2-1", "v6e-4x4-1", "v6e-flex"}


def test_no_region_or_zone_is_written_into_a_command() -> None:
    _, *rest = BLOCKS

    assert not re.findall(r"\b(?:us|europe|asia)-[a-z]+\d\b|\$REGION-[a-f]\b", "".join(rest))


def test_images_are_those_of_the_settings(walk: Walk) -> None:
    settings, asked = Settings("b", "p"), [call.words[2] for call in walk.calls if call.says("manifest", "inspect")]

    prefix = "europe-west4-docker.pkg.dev/my-project"
    engines = (settings.server_image, settings.cpu_server_image, settings.tpu_server_image)
    assert asked[1:] == [f"{prefix}/docker-hub/{engine}" for engine in engines]
    assert asked[0] == f"{prefix}/{settings.driver_image}"


def test_composer_gets_settings_that_nightshift_reads(walk: Walk) -> None:
    [update] = walk.gcloud("composer", "environments", "update")
    pairs = [each.split("=", 1) for each in str(update.option("--update-env-variables")).split(",")]

    settings = Settings.from_environment(dict(pairs))
    assert {f"NIGHTSHIFT_{name.upper()}" for name in Settings.__dataclass_fields__} >= {name for name, _ in pairs}
    assert settings.runtime == "gke:projects/my-project/locations/europe-west4/clusters/nightshift"
    assert settings.bucket == "my-project-nightshift"
    [create] = walk.gcloud("composer", "environments", "create")
    assert create.option("--service-account") == "nightshift-airflow@my-project.iam.gserviceaccount.com"
    assert not [call for call in walk.calls if "plugins" in " ".join(call.words)], (
        "Composer does not give plugins/ to its scheduler"
    )


def test_both_names_of_airflows_account_are_asked_for(walk: Walk) -> None:
    asked = [call.option("--as") for call in walk.calls if call.program == "kubectl" and call.says("auth", "can-i")]

    assert asked == ["nightshift-airflow@my-project.iam.gserviceaccount.com", "110000000000000000001"]


def test_the_commands_of_nightshift_are_its_own(walk: Walk) -> None:
    from nightshift.cli import command_parser

    own = [call.words for call in walk.calls if call.program == "nightshift"]
    assert len(own) == 2
    for words in own:
        options = command_parser().parse_args(list(words))
        assert (ROOT / options.file).is_file(), shlex.join(words)
