"""The driver takes its configuration from the environment that the manifest renders."""

from __future__ import annotations

from typing import Any

import pytest

from nightshift.driver.environment import ConfigError, DriverConfig
from nightshift.driver.health import ENGINE_BUDGET_S
from nightshift.driver.run_metrics import Night
from nightshift.jobset.labels import JOB_INDEX_LABEL, SPEC_HASH_ANNOTATION
from nightshift.jobset.manifest.constants import METRICS_PORT
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec
from tests.unit.jobset.test_manifest import containers_of, env_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_RUN_URL", "gs://b/job/2026-11-20/0123456789abcdef")
    monkeypatch.setenv("ENGINE_URL", "http://127.0.0.1:8000")


def configured(monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], index: int, **order: Any) -> DriverConfig:
    """Of a pod whose fields are these, with this completion index."""
    rendered = render(plan=a_plan(8), run=RUN, settings=Settings("bucket", "p"), name="night", **order)
    _, driver = containers_of(rendered)
    values = {"JOB_COMPLETION_INDEX": str(index)}
    for name, given in env_of(driver).items():
        value = given if isinstance(given, str) else fields[given["fieldRef"]["fieldPath"]]
        for earlier in values:
            value = value.replace(f"$({earlier})", values[earlier])
        values[name] = value
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return DriverConfig.from_environment()


POD = {"metadata.name": "night-worker-0-2-x", "spec.nodeName": "node-7"}


@pytest.mark.parametrize(("role", "home"), [("owner", 2), ("helper", None)])
def test_each_variable_of_the_manifest_is_one_that_the_driver_reads(
    monkeypatch: pytest.MonkeyPatch, role: str, home: int | None
) -> None:
    spec = a_spec(compute__profile="gpu-l4-spot", dead_letters__tolerate=3)

    found = configured(monkeypatch, POD, 2, spec=spec, role=role)

    assert (found.role, found.index, found.worker, found.bystander) == (role, home, 2, False)
    assert (found.run_url, found.engine_urls) == (RUN.url("bucket"), ("http://127.0.0.1:8000",))
    assert (found.model_root, found.model_revision, found.dead_letters) == ("org/m", "r1", 3)
    assert (found.metrics_port, found.profile) == (METRICS_PORT, "gpu-l4-spot")
    assert (found.pod, found.node, found.engine_wait_s) == (POD["metadata.name"], "node-7", ENGINE_BUDGET_S)


def test_several_engines_are_named_by_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_URL", "http://127.0.0.1:8000, http://127.0.0.1:8001")

    assert DriverConfig.from_environment().engine_urls == ("http://127.0.0.1:8000", "http://127.0.0.1:8001")


@pytest.mark.parametrize(
    ("value", "said"),
    [("http://a,", "between two commas"), (",", "between two commas"), ("http://a,http://b,http://a", "twice")],
)
def test_a_list_of_engines_that_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    monkeypatch.setenv("ENGINE_URL", value)

    with pytest.raises(ConfigError, match=said):
        DriverConfig.from_environment()


def test_of_a_slice_the_job_is_the_worker_and_the_index_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_ = {**POD, f"metadata.labels['{JOB_INDEX_LABEL}']": "5"}
    spec = a_spec(compute={"profile": "tpu-v6e-spot", "topology": "4x4"})

    hosts = [configured(monkeypatch, slice_, host, spec=spec) for host in (0, 3)]

    assert [(each.index, each.worker, each.bystander) for each in hosts] == [(5, 5, False), (5, 5, True)]
    assert hosts[0].engine_wait_s > ENGINE_BUDGET_S


def test_the_rendered_job_reaches_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = a_spec()
    now = frozen.under_terms_of(a_spec(engine__max_num_seqs=64, request__timeout="1h", request__rows_per_request=None))

    found = frozen.with_tuning(configured(monkeypatch, POD, 0, spec=now).tuning)

    assert (found.engine, found.request) == (now.engine, now.request)
    assert found.rows_per_request == 64


@pytest.mark.parametrize("value", ["", "{}"])
def test_without_it_the_frozen_values_stay(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_TUNING", value)

    assert a_spec().with_tuning(DriverConfig.from_environment().tuning) == a_spec()


@pytest.mark.parametrize("value", ["{", "[]", '{"engine": 7}', "7"])
def test_without_sense_it_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_TUNING", value)

    with pytest.raises(ConfigError, match="NIGHTSHIFT_TUNING is "):
        DriverConfig.from_environment()


NIGHT = '{"deadline": 1764288000.5, "price": 13.62, "currency": "USD"}'


def test_what_only_airflow_knows_of_the_night_reaches_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    found = configured(monkeypatch, POD, 0, spec=a_spec(), observed={"NIGHTSHIFT_NIGHT": NIGHT})

    assert found.night == Night(deadline=1764288000.5, price=13.62, currency="USD")


@pytest.mark.parametrize("value", ["", "{}", '{"of_a_later_release": 1}'])
def test_a_night_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NIGHT", value)

    assert DriverConfig.from_environment().night == Night()


@pytest.mark.parametrize("value", ["[]", "{", '{"deadline": "soon"}', '{"price": -1}', '{"currency": 3}', '{"price": NaN}'])
def test_a_night_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NIGHTSHIFT_NIGHT", value)

    with pytest.raises(ConfigError, match="NIGHTSHIFT_NIGHT"):
        DriverConfig.from_environment()


def test_what_only_observes_is_not_in_the_manifests_hash() -> None:
    def hashed(observed: dict[str, str]) -> str:
        rendered = render(a_spec(), RUN, a_plan(8), Settings("bucket", "p"), name="night", observed=observed)
        return str(rendered["metadata"]["annotations"][SPEC_HASH_ANNOTATION])

    assert hashed({"NIGHTSHIFT_NIGHT": NIGHT, "TRACEPARENT": "00-1-2-01"}) == hashed({})
    assert hashed({"NIGHTSHIFT_ROLE": "helper"}) != hashed({})
