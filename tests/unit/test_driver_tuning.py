"""The driver takes settings of performance from its environment: those of the job as it is now."""

from __future__ import annotations

import pytest

from nightshift.driver.process import ConfigError, DriverConfig
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTSHIFT_RUN_URL", "gs://b/job/2026-11-20/0123456789abcdef")
    monkeypatch.setenv("ENGINE_URL", "http://127.0.0.1:8000")


def test_the_rendered_job_reaches_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = a_spec()
    now = frozen.under_terms_of(a_spec(engine__max_num_seqs=64, request__timeout="1h", request__rows_per_request=None))
    manifest = render(now, RUN, a_plan(8), Settings("b", "p"), name="n")
    [pod] = [job["template"]["spec"]["template"]["spec"] for job in manifest["spec"]["replicatedJobs"]]
    [value] = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "NIGHTSHIFT_TUNING"]
    monkeypatch.setenv("NIGHTSHIFT_TUNING", value)

    found = frozen.with_tuning(DriverConfig.from_environment().tuning)

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
