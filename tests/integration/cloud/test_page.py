"""What k8s/README.md asks for when it is followed: pools, roles, names and settings are those of its lists and of the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.google_cloud.shell import Call, Walk
from local.storage.database import Database
from local.storage.policies import Policies, checked
from nightshift.jobset.manifest.disk import node_disk_gb
from nightshift.profiles import PROFILES, Span, fit
from nightshift.run.names import RunRef
from nightshift.settings import Settings
from tests.integration.cloud.pages import PAGE, ROOT, night, streams, walked

pytestmark = [pytest.mark.integration, pytest.mark.gate]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """To the first night."""
    return walked(tmp_path_factory.mktemp("night"), night)


@pytest.fixture(scope="module")
def of_streams(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """To the first answered message."""
    return walked(tmp_path_factory.mktemp("streams"), streams)


def test_everything_that_is_applied_from_here_is_here(walk: Walk) -> None:
    applied = [call.option("-k") for call in walk.calls if call.program == "kubectl" and call.option("-k")]

    assert applied == ["k8s/overlays/gke-gpu-spot"]
    overlays = set(re.findall(r"overlay `([\w-]+)`|OVERLAY=([\w-]+)", PAGE))
    for name in {first or second for first, second in overlays}:
        assert (ROOT / "k8s/overlays" / name / "kustomization.yaml").is_file()
    for call in walk.calls:
        if call.program == "docker" and (file := call.option("-f")):
            assert (ROOT / file).is_file()


def test_names_are_filled_in_without_a_rest(walk: Walk) -> None:
    data = yaml.safe_load((walk.cloud.machine.folder / "k8s/overlays/gke-gpu-spot/deployment.yaml").read_text())["data"]

    assert data == {
        "project": "my-project",
        "node": "nightshift-node@my-project.iam.gserviceaccount.com",
        "airflow": "nightshift-airflow@my-project.iam.gserviceaccount.com",
        "airflowId": "110000000000000000002",
        "imageCache": "nightshift-images",
        "reservation": "nightshift-nights",
    }


ACCOUNTS = {
    "serviceAccount:nightshift-node@": "nodes",
    "serviceAccount:nightshift-airflow@": "Airflow",
    "serviceAccount:nightshift-stream@": "streams",
    "serviceAccount:service-123456789012@gcp-sa-pubsub.": "Pub/Sub's agent",
    "principal://": "workers",
    "user:": "you",
}
ADAPTER = "/ns/custom-metrics/sa/custom-metrics-stackdriver-adapter"
LINES = re.findall(r"^\| ([^|]*) \| (`[a-z]+\.[\w`, .]+) \|", PAGE, re.MULTILINE)
ROLES = {(account, role) for account, roles in LINES for role in re.findall(r"`([\w.]+)`", roles)}


def granted(walk: Walk) -> Iterator[tuple[str, str]]:
    """(account, role) of each grant of the page and of the bundle, those in SQL too."""
    for call in walk.calls:
        member, role = call.option("--member"), call.option("--role")
        if member and role == "roles/iam.workloadIdentityUser":
            assert member.endswith("[nightshift/package-texts-subscriber]")
        elif member and role:
            accounts = [name for start, name in ACCOUNTS.items() if member.startswith(start)]
            yield "Google's adapter" if member.endswith(ADAPTER) else accounts[0], role.removeprefix("roles/")
        for role, member in re.findall(r"GRANT `roles/([\w.]+)` ON SCHEMA .* TO '(.*)'", " ".join(call.words)):
            assert member.startswith("serviceAccount:nightshift-airflow@")
            yield "Airflow", role


def test_the_list_of_roles_is_what_is_granted(walk: Walk, of_streams: Walk) -> None:
    assert {*granted(walk), *granted(of_streams)} == ROLES
    assert len(ROLES) == 24


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
    # A slice is in one zone; workers of one host are in each that has the machine.
    has = [zone for zone, machines in walk.cloud.zones["europe-west4"].items() if worker.machine.name in machines]
    assert call.option("--node-locations") == ("europe-west4-b" if worker.hosts > 1 else ",".join(has))
    assert len(has) > 1
    assert (call.option("--location-policy") == "ANY") == (worker.hosts == 1)
    if worker.is_tpu:
        assert call.option("--tpu-topology") == (span.topology if worker.hosts > 1 else None)
    else:
        label = worker.node_selector["cloud.google.com/gke-accelerator"]
        wanted = f"type={label},count={worker.machine.accelerators},gpu-driver-version=latest"
        assert call.option("--accelerator") == wanted
    most = call.option("--max-nodes") or call.option("--total-max-nodes")
    assert int(str(most)) >= worker.hosts
    flex = {"--flex-start": "", "--no-enable-autorepair": "", "--reservation-affinity": "none"}
    assert {name: call.option(name) for name in flex} == (flex if profile.endswith("-flex") else dict.fromkeys(flex))
    assert (call.option("--spot") == "") == profile.endswith("-spot")
    assert call.option("--num-nodes") == "0"


def test_every_pool_of_the_page_was_looked_at(walk: Walk) -> None:
    assert set(pools(walk)) == {"l4-spot", "l4-flex", "h100x2-1", "v6e-4x4-1", "v6e-flex"}


def test_images_are_those_of_the_settings(walk: Walk) -> None:
    settings, asked = Settings("b", "p"), [call.words[2] for call in walk.calls if call.says("manifest", "inspect")]

    prefix = "europe-west4-docker.pkg.dev/my-project"
    engines = (settings.server_image, settings.cpu_server_image, settings.tpu_server_image)
    assert asked[1:] == [f"{prefix}/docker-hub/{engine}" for engine in engines]
    assert asked[0] == f"{prefix}/{settings.driver_image}"


def test_composer_gets_settings_that_nightshift_reads(walk: Walk) -> None:
    [create] = walk.gcloud("composer", "environments", "create")
    pairs = [each.split("=", 1) for each in str(create.option("--env-variables")).split(",")]

    settings = Settings.from_environment(dict(pairs))
    assert {f"NIGHTSHIFT_{name.upper()}" for name in Settings.__dataclass_fields__} >= {name for name, _ in pairs}
    assert settings.runtime == "gke:projects/my-project/locations/europe-west4/clusters/nightshift"
    assert settings.bucket == "my-project-nightshift"
    assert create.option("--service-account") == "nightshift-airflow@my-project.iam.gserviceaccount.com"
    assert not [call for call in walk.calls if "plugins" in " ".join(call.words)], (
        "Composer does not give plugins/ to its scheduler"
    )


def test_no_update_sets_what_was_set_at_the_creation(walk: Walk) -> None:
    """Each takes 10 to 30 minutes, and the later one counts."""
    updates = walk.gcloud("composer", "environments", "update")

    assert [call.option("--update-env-variables") for call in updates] == [None]


def test_both_names_of_airflows_account_are_asked_for(walk: Walk) -> None:
    asked = [call.option("--as") for call in walk.calls if call.program == "kubectl" and call.says("auth", "can-i")]

    assert asked == ["nightshift-airflow@my-project.iam.gserviceaccount.com", "110000000000000000002"]


def test_the_commands_of_nightshift_are_its_own(walk: Walk) -> None:
    from nightshift.cli import command_parser

    own = [call.words for call in walk.calls if call.program == "nightshift"]
    assert len(own) == 2
    for words in own:
        options = command_parser().parse_args(list(words))
        assert (walk.cloud.machine.folder / options.file).is_file(), shlex.join(words)
