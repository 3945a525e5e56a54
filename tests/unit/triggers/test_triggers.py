"""The triggers: every field lives through Airflow's database, also from one release to the next; the local runtime's events."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow._shared.module_loading import import_string
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.triggers.base import BaseTrigger

from nightshift.triggers.bigquery import BigQueryJobsTrigger
from nightshift.triggers.doctor import DoctorTrigger
from nightshift.triggers.files import FilesTrigger
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger
from nightshift.triggers.local import LocalJobSetTrigger

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]

JOBSETS = [{"name": "job-0123456789", "uid": "1b4e28ba"}, {"name": "job-9876543210", "uid": "2fa1d3e3"}]
FOLLOWED: dict[str, Any] = {
    "jobsets": JOBSETS,
    "namespace": "nightly",
    "deadline": 1763700000.5,
    "startup_timeout": 900.0,
    "min_running": 2,
    "disruptions": 5,
    "get_logs": False,
    "owner": "0193e1f2",
    "kill_policy": "suspend",
    "look": {"run": "job/2026-11-20/0123456789abcdef", "rows": 8},
    "before": {"job-0123456789": {"counts": {"worked_s": 17.5}, "pods": []}},
}
TRIGGERS: list[BaseTrigger] = [
    BigQueryJobsTrigger(job_ids=["a", "b"], deadline=1763700000.5, poll_interval=7.5),
    LocalJobSetTrigger(
        jobsets=JOBSETS[:1],
        deadline=1763700000.5,
        owner="0193e1f2",
        get_logs=False,
        poll_interval=7.5,
        look=FOLLOWED["look"],
        before={"job-0123456789": {"counts": {"running": 1, "worked_s": 17.5}}},
    ),
    KubernetesJobSetTrigger(
        **FOLLOWED, kubernetes_conn_id="gpu", config_file="/etc/kube", cluster_context="gpu", in_cluster=True
    ),
    GKEJobSetTrigger(
        **FOLLOWED,
        cluster_url="https://gke.example",
        ssl_ca_cert="YQ==",
        use_dns_endpoint=True,
        gcp_conn_id="gcp",
        impersonation_chain=["one@example", "two@example"],
    ),
    DoctorTrigger(seconds=7.5),
    FilesTrigger(url="gs://shop/texts", every="10m", settle="90s"),
]
OF_OTHER_CLUSTERS = {"kubernetes_conn_id", "config_file", "cluster_context", "in_cluster"}
RELEASES = Path(__file__).parent / "serialized"


def parameters(trigger: type[BaseTrigger]) -> set[str]:
    """What its constructor takes, and those of the triggers that it is made from."""
    found: set[str] = set()
    for each in trigger.__mro__[: trigger.__mro__.index(BaseTrigger)]:
        found |= set(inspect.signature(each).parameters) - {"kwargs"}
    return found


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
class TestSerialization:
    def test_every_parameter_is_kept(self, trigger: BaseTrigger) -> None:
        expected = parameters(type(trigger)) - (OF_OTHER_CLUSTERS if isinstance(trigger, GKEJobSetTrigger) else set())

        assert set(trigger.serialize()[1]) == expected

    def test_none_has_its_default_here(self, trigger: BaseTrigger) -> None:
        """Else a parameter that is forgotten on the way would look kept."""
        for name, parameter in inspect.signature(type(trigger)).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                assert trigger.serialize()[1][name] != parameter.default

    def test_it_is_made_again_as_it_was(self, trigger: BaseTrigger) -> None:
        path, kwargs = trigger.serialize()
        stored = BaseSerialization.deserialize(BaseSerialization.serialize(kwargs))

        again = import_string(path)(**stored)

        assert type(again) is type(trigger)
        assert again.serialize() == trigger.serialize()


class TestReleases:
    """A task that was deferred by one release is resumed by the next: what lies in Airflow's database is a contract."""

    @pytest.mark.parametrize("file", sorted(RELEASES.glob("*.json")), ids=lambda file: file.stem)
    def test_what_a_release_has_stored_can_be_made_again(self, file: Path) -> None:
        for path, kwargs in json.loads(file.read_text()):
            again_path, again = import_string(path)(**kwargs).serialize()

            assert again_path == path
            assert again.items() >= kwargs.items()

    def test_what_is_stored_now_is_written_down(self) -> None:
        """A trigger that is new, or has changed since the last release, is in `unreleased.json`, which a release renames."""
        released = sorted(RELEASES.glob("*.*.*.json"), key=lambda file: [int(part) for part in file.stem.split(".")])
        written: dict[str, Any] = {}
        for file in (*released, *RELEASES.glob("unreleased.json")):
            written |= dict(json.loads(file.read_text()))

        assert dict(trigger.serialize() for trigger in TRIGGERS) == written


def test_a_trigger_brings_no_client_along_before_it_runs() -> None:
    """The triggerer's event loop stands still while modules are imported."""
    code = (
        "import sys, airflow.triggers.base\n"
        "before = set(sys.modules)\n"
        "import nightshift.triggers.jobset, nightshift.triggers.kubernetes_engine, nightshift.triggers.local\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('nightshift')))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.splitlines()[-1] == "[]"
