"""A real driver's spans: sent to a collector, known to the engine, children of Airflow's; and nothing of it if they are off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from nightshift import exits
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.collector import Receiver
from tests.integration.driver.runs import PLUGINS, DriverProcess, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TEXTS: list[str | None] = ["one", None, "three", "four", "refused", "six"]


class Told(CannedEngine):
    """parents: the header traceparent of each request, by the first of its texts. It refuses one text."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[str, str | None] = {}

    async def _embed(self, request: web.Request) -> web.StreamResponse:
        texts = (await request.json())["input"]
        self.parents[texts[0]] = request.headers.get("traceparent")
        if "refused" in texts:
            return web.json_response({"error": {"message": "refused, it said: refused"}}, status=400)
        return await super()._embed(request)


def traced(folder: Path, share: str) -> tuple[Told, Receiver]:
    """A run of single rows, with this share of requests traced."""
    prepared = prepare(folder, TEXTS, request__rows_per_request=1, dead_letters__tolerate=6)
    with Receiver() as receiver, Told() as engine:
        extra = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces",
            "OTEL_TRACES_SAMPLER_ARG": share,
            "TRACEPARENT": f"00-{TRACE}-{TASK}-01",
        }
        assert DriverProcess(prepared, engine.url, extra=extra).finish() == exits.DONE
    return engine, receiver


def test_each_request_is_a_span_between_airflows_and_the_engines(tmp_path: Path) -> None:
    engine, receiver = traced(tmp_path, "1")

    requests = {span.attributes["nightshift.row"]: span for span in receiver.spans if span.name == "nightshift.request"}
    assert sorted(requests) == ["0", "2", "3", "4", "5"], "the row that cannot be rendered is in no request"
    for row, span in requests.items():
        assert (span.service, span.trace, span.parent) == ("nightshift-driver", TRACE, TASK)
        assert engine.parents[str(TEXTS[int(row)])] == f"00-{TRACE}-{span.span}-01"
        assert span.attributes["nightshift.job"] == "job"


def test_with_a_share_of_nothing_dead_letters_are_there_all_the_same(tmp_path: Path) -> None:
    engine, receiver = traced(tmp_path, "0")

    found = {(span.name, span.attributes["nightshift.row"]): span for span in receiver.spans}
    assert found.keys() == {("nightshift.row", "1"), ("nightshift.request", "4")}
    assert {span.attributes["nightshift.dead_letter.reason"] for span in found.values()} == {"bad_input", "rejected"}
    assert found["nightshift.request", "4"].attributes["error.type"] == "refused"
    assert not any("it said" in value for span in found.values() for value in span.attributes.values())
    assert all(str(parent).endswith("-00") for parent in engine.parents.values()), "the engine sends no spans of its own"


def test_a_collector_that_is_not_there_costs_no_row(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, TEXTS, request__rows_per_request=1, dead_letters__tolerate=6)
    extra = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER_ARG": "1"}
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, extra=extra)
        assert driver.finish() == exits.DONE

    assert len(prepared.rows()) == len(TEXTS)


def test_a_share_that_is_none_ends_the_driver(tmp_path: Path) -> None:
    extra = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_SAMPLER_ARG": "some"}
    driver = DriverProcess(prepare(tmp_path, TEXTS), "http://127.0.0.1:9", extra=extra)

    assert driver.finish() == exits.CONFIG
    assert any("OTEL_TRACES_SAMPLER_ARG is 'some'" in str(entry) for entry in driver.log)


@pytest.mark.parametrize("module", ["nightshift.driver.main", "nightshift.stream.command"])
def test_without_traces_nothing_of_opentelemetry_is_imported(module: str) -> None:
    said = f"import sys, {module}; print([name for name in sys.modules if name.startswith('opentelemetry.exporter')])"
    done = subprocess.run(
        [sys.executable, "-c", said], env={"PYTHONPATH": str(PLUGINS)}, text=True, capture_output=True, check=True
    )

    assert done.stdout == "[]\n"
