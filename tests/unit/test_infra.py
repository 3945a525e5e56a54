"""`infra/` against the part of the Google provider's schema that it uses, and against the facts that stand elsewhere too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from local import composer
from local.terraform import check, schema
from nightshift import __version__
from nightshift.profiles.hardware import GPUS, TPUS
from nightshift.settings import Settings

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
INFRA = ROOT / "infra"
HAND = (ROOT / "k8s/README.md").read_text()
PAGE = (INFRA / "README.md").read_text()


def plain(value: Any) -> Any:
    """What the parser read, without its quotes and marks."""
    if isinstance(value, dict):
        return {plain(name): plain(each) for name, each in value.items() if not name.startswith("__")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.strip('"') if isinstance(value, str) else value


def local(file: str, name: str) -> Any:
    """The value of a local in a file below `infra/`."""
    found = [each[name] for each in check.parsed(INFRA / file)["locals"] if name in each]
    assert len(found) == 1, f"{file} has no single local {name}"
    return plain(found[0])


def test_the_providers_schema_takes_it() -> None:
    assert check.problems(check.load()) == []


@pytest.mark.parametrize(
    ("file", "before", "after", "named"),
    [
        ("modules/storage/main.tf", "uniform_bucket_level_access =", "uniform_access =", "no argument 'uniform_access'"),
        ("modules/storage/main.tf", '"google_storage_bucket" "runs"', '"google_bucket" "runs"', "no such type"),
        ("modules/storage/main.tf", "  location = var.region\n", "", "'location' is missing"),
        ("modules/storage/main.tf", "  soft_delete_policy {", "  soft_delete_policy = {", "'soft_delete_policy' is a block"),
        (
            "modules/network/main.tf",
            "  nat_ip_allocate_option             =",
            "  nat_addresses =",
            "no argument 'nat_addresses'",
        ),
        ("modules/cluster/main.tf", "enable_private_nodes = true", 'enable_private_nodes = "yes"', "is no bool"),
        ("modules/cluster/main.tf", 'dynamic "gce_persistent_disk_csi_driver_config"', 'dynamic "disk"', "no argument 'disk'"),
        ("modules/alloydb/main.tf", "  cluster_id      =", "  name =", "'name' is set by the provider alone"),
        ("modules/pubsub/main.tf", "messages[each.key].id", "messages[each.key].address", "no attribute 'address'"),
    ],
)
def test_it_says_what_the_schema_refuses(tmp_path: Path, file: str, before: str, after: str, named: str) -> None:
    text = (INFRA / file).read_text()
    assert before in text
    target = tmp_path / file
    target.parent.mkdir(parents=True)
    target.write_text(text.replace(before, after, 1))

    problems = check.problems(check.load(), tmp_path)

    assert any(named in problem and file in problem for problem in problems), problems


def test_every_variable_is_used_and_every_one_of_the_root_described() -> None:
    for folder in [INFRA, *sorted((INFRA / "modules").iterdir())]:
        text = "\n".join(file.read_text() for file in folder.glob("*.tf"))
        for name, body in re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL):
            elsewhere = text.replace(body, "")
            assert re.search(rf"\bvar\.{name}\b", elsewhere), f"{folder.name}: nothing uses var.{name}"
            assert folder != INFRA or "description" in body, f"var.{name} has no description"


def test_every_output_of_a_module_is_used() -> None:
    root = "\n".join(file.read_text() for file in INFRA.glob("*.tf"))
    for folder in sorted((INFRA / "modules").iterdir()):
        text = "\n".join(file.read_text() for file in folder.glob("*.tf"))
        for name in set(re.findall(r'^output "(\w+)"', text, re.MULTILINE)) - {"made"}:
            # Of a module that is not always there, the outputs are read in a loop.
            assert re.search(rf"\b(module\.{folder.name}|each)\.{name}\b", root), f"nothing uses module.{folder.name}.{name}"


def test_the_example_sets_what_must_be_set_and_nothing_else() -> None:
    text = (INFRA / "variables.tf").read_text()
    variables = dict(re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.MULTILINE | re.DOTALL))
    example = (INFRA / "terraform.tfvars.example").read_text()
    names = set(re.findall(r"^(?:# )?(\w+) += ", example, re.MULTILINE))

    assert names <= set(variables)
    required = {name for name, body in variables.items() if not re.search(r"^  default ", body, re.MULTILINE)}
    assert required <= set(re.findall(r"^(\w+) += ", example, re.MULTILINE))


def test_machines_are_those_of_the_profiles() -> None:
    expected = {
        **{
            f"gpu-{name}": (gpu.label, gpu.memory, {str(each.accelerators): each.name for each in gpu.machines})
            for name, gpu in GPUS.items()
        },
        **{
            f"tpu-{name}": (
                tpu.label,
                tpu.memory,
                {str(each.machine.accelerators): each.machine.name for each in tpu.slices.values()},
            )
            for name, tpu in TPUS.items()
        },
    }
    table = local("modules/cluster/accelerators.tf", "hardware")
    assert {kind: (each["label"], each["memory"], each["machines"]) for kind, each in table.items()} == expected

    slices = {name: (each.machine.accelerators, each.hosts) for tpu in TPUS.values() for name, each in tpu.slices.items()}
    topologies = local("modules/cluster/accelerators.tf", "topologies")
    assert {name: (each["chips"], each["hosts"]) for name, each in topologies.items()} == slices


def test_images_and_packages_are_those_of_the_release() -> None:
    settings = Settings(bucket="b", project="p")
    tags = {name: local("modules/registry/main.tf", name) for name in ("version", "openai", "openai_cpu", "tpu")}
    assert {
        "version": settings.driver_image.split(":")[1],
        "openai": settings.server_image.split(":")[1],
        "openai_cpu": settings.cpu_server_image.split(":")[1],
        "tpu": settings.tpu_server_image.split(":")[1],
    } == tags
    packages = {f"{name}{version}" for name, version in local("modules/composer/main.tf", "packages").items()}
    assert packages == {f"{composer.PROJECT['name']}=={__version__}", *composer.lacking()}


def test_apis_and_controllers_are_those_of_the_path_by_hand() -> None:
    made = set(re.findall(r'"([a-z]+\.googleapis\.com)"', (INFRA / "modules/apis/main.tf").read_text()))
    enabled = re.findall(r"gcloud services enable (.*?)\n\S", HAND, re.DOTALL)
    assert set(re.findall(r"[a-z]+\.googleapis\.com", " ".join(enabled))) <= made

    resources = yaml.safe_load((INFRA / "kubernetes/kustomization.yaml").read_text())["resources"]
    manifests = [each for each in resources if each.startswith("https:")]
    assert manifests == re.findall(r"kubectl apply --server-side -f (https://\S+)", HAND)
    overlays = [INFRA / "kubernetes" / each for each in resources if not each.startswith("https:")]
    assert [each.resolve() for each in overlays] == [ROOT / "k8s/overlays/gke-gpu-spot"]


HOLDERS = {
    "nodes": "nodes",
    "jobs": "workers",
    "airflow": "Airflow",
    "operators": "you",
    "subscribers": "streams",
    "files": "streams",
    "database": "streams",
    "agent": "Pub/Sub's agent",
    "adapter": "Google's adapter",
}
"""How the names of grants in `infra/` begin -> the account in the table of k8s/README.md."""
OWN = {
    # docs/use/streams.md: of a stream with files as its sink, which the path by hand has not.
    "streams": {"storage.objectCreator", "storage.objectViewer"},
}
"""Roles that the table leaves out."""


def test_roles_are_those_of_the_path_by_hand() -> None:
    made: dict[str, set[str]] = {}
    for module in ("identities", "pubsub"):
        for file in (INFRA / "modules" / module).glob("*.tf"):
            for name, body in re.findall(
                r'^resource "google_\w+_iam_member" "(\w+)" \{\n(.*?)^\}', file.read_text(), re.M | re.S
            ):
                holder = HOLDERS[name.split("_")[0]]
                made.setdefault(holder, set()).update(re.findall(r'"roles/([\w.]+)"', body))

    [table] = re.findall(r"^## Roles\n(.*?)^## ", HAND, re.M | re.S)
    wanted: dict[str, set[str]] = {}
    for account, roles, _, why in re.findall(r"^\| ([^|`]+) \| (`[^|]+) \| ([^|]+) \| ([^|]+) \|$", table, re.M):
        found = [*re.findall(r"`([\w.]+)`", roles), *re.findall(r"`(iam\.workloadIdentityUser)`", why)]
        wanted.setdefault(account, set()).update(found)

    assert {holder: roles - OWN.get(holder, set()) for holder, roles in made.items()} == wanted


def test_the_provider_is_pinned_and_knows_who_pays() -> None:
    """No assertion of OpenTofu sees this."""
    versions = check.parsed(INFRA / "versions.tf")
    [terraform], [provider] = versions["terraform"], versions["provider"]
    [required] = terraform["required_providers"]
    major_and_minor = ".".join(schema.PROVIDER_VERSION.split(".")[:2])
    assert plain(required["google"]) == {"source": "hashicorp/google", "version": f"~> {major_and_minor}"}
    assert plain(terraform["required_version"]) == ">= 1.9"
    assert plain(provider['"google"']) == {
        "project": "${var.project_id}",
        "region": "${var.region}",
        "user_project_override": True,
        "billing_project": "${var.project_id}",
        "default_labels": "${local.labels}",
    }
