"""How traces reach the pods: by the deployment's settings, in OpenTelemetry's own variables; not at all if they are off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.jobset.labels import SPEC_HASH_ANNOTATION
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings, SettingsError
from nightshift.stream.manifests.render import render as render_stream
from tests.builders import RUN, a_plan, a_spec
from tests.stream_manifests import PLAIN, an_order
from tests.unit.jobset.test_manifest import ONE_HOST, SETTINGS, SLICES, containers_of, env_of

pytestmark = pytest.mark.unit

URL = "http://opentelemetry-collector.gke-managed-otel.svc.cluster.local:4318"
OFF, ON = SETTINGS, replace(SETTINGS, traces=URL, traced_requests=0.25)


def rendered(settings: Settings, **changes: Any) -> dict[str, Any]:
    return render(a_spec(**changes), RUN, a_plan(64, workers=4), settings, name="night")


@pytest.mark.parametrize("compute", [*ONE_HOST.values(), *SLICES.values()], ids=str)
def test_every_shape_of_worker_sends_its_spans(compute: dict[str, Any]) -> None:
    server, driver = containers_of(rendered(ON, compute=compute))

    assert server["args"].count(f"--otlp-traces-endpoint={URL}/v1/traces") == 1
    assert env_of(server)["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert env_of(driver)["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == f"{URL}/v1/traces"
    assert env_of(driver)["OTEL_TRACES_SAMPLER_ARG"] == "0.25"


def test_a_streams_subscribers_and_servers_send_them_too() -> None:
    objects = {each["metadata"]["name"]: each for each in render_stream(an_order(PLAIN, ON)) if each["kind"] == "Deployment"}
    containers = {name: each["spec"]["template"]["spec"]["containers"][0] for name, each in objects.items()}

    assert len(containers) == 2
    for name, container in containers.items():
        names = {each["name"] for each in container["env"]}
        assert ("OTEL_TRACES_SAMPLER_ARG" in names) is name.endswith("subscriber"), name
        assert any("otlp-traces-endpoint" in each for each in container.get("args", [])) is name.endswith("server"), name


def test_without_the_setting_nothing_is_said_of_traces() -> None:
    said = str([rendered(OFF), *render_stream(an_order(PLAIN, OFF))]).lower()

    assert "otel" not in said
    assert "otlp" not in said


def test_the_jobsets_hash_does_not_know_of_them() -> None:
    found = [rendered(settings)["metadata"]["annotations"][SPEC_HASH_ANNOTATION] for settings in (OFF, ON)]

    assert found[0] == found[1]


@pytest.mark.parametrize("traces", [URL, "https://collector.acme.example", "http://10.0.0.7:4318/"])
def test_the_collectors_url_is_taken(traces: str) -> None:
    found = Settings.from_environment({"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p", "NIGHTSHIFT_TRACES": traces})

    assert found.traces == traces
    assert found.traced_requests == 0.001


@pytest.mark.parametrize("traces", ["collector:4318", "grpc://collector:4317", f"{URL}/v1/traces", "http://a b"])
def test_what_is_no_such_url_is_refused(traces: str) -> None:
    with pytest.raises(SettingsError, match="NIGHTSHIFT_TRACES"):
        Settings.from_environment({"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p", "NIGHTSHIFT_TRACES": traces})


@pytest.mark.parametrize("share", ["2", "-1", "nan", "few"])
def test_what_is_no_share_is_refused(share: str) -> None:
    variables = {"NIGHTSHIFT_BUCKET": "b", "NIGHTSHIFT_PROJECT": "p", "NIGHTSHIFT_TRACED_REQUESTS": share}
    with pytest.raises(SettingsError, match="NIGHTSHIFT_TRACED_REQUESTS"):
        Settings.from_environment(variables)
