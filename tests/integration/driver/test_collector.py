"""One row's trace in OpenTelemetry's own collector: Airflow's task, the driver, vLLM; and Airflow's metrics of a night."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightshift import exits
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.builders import a_spec
from tests.integration.driver.collector import Collector, Seen, await_condition
from tests.integration.driver.runs import PLUGINS, DriverProcess, prepare
from tests.integration.driver.vllm import MINILM, Vllm
from tests.unit.jobset.test_manifest import containers_of, env_of

pytestmark = pytest.mark.integration

AIRFLOW = {
    "AIRFLOW__TRACES__OTEL_ON": "True",
    "AIRFLOW__METRICS__OTEL_ON": "True",
    "OTEL_TRACES_EXPORTER": "otlp_proto_http",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
}
"""Airflow's own variables for OpenTelemetry over HTTP."""
TASK = """
import uuid
from airflow.sdk._shared.observability.traces import configure_otel, new_dagrun_trace_carrier
from airflow.sdk.configuration import conf
from airflow.sdk.execution_time.task_runner import _make_task_span, flush_spans
from types import SimpleNamespace

configure_otel(conf)
ti = SimpleNamespace(
    context_carrier=new_dagrun_trace_carrier(), task_id="infer", dag_id="texts", run_id="r", try_number=1, map_index=-1
)
with flush_spans(), _make_task_span(SimpleNamespace(ti=ti)):
    from nightshift.operators.infer import _trace_parent

    print(_trace_parent()["TRACEPARENT"], flush=True)
"""
"""What Airflow's task runner does around a task, and what `infer` passes on to its pods there."""
GAUGES = """
from nightshift.jobset.fleet.watch import NightNow
from nightshift.triggers.night_gauges import NightGauges

NightGauges("texts/2026-11-20/0123456789abcdef").seen(NightNow(100, 40, 90.0, 60.0, True, 2, 1, 0.5, 0.75, "USD"))
"""


def in_airflow(program: str, collector: Collector, home: Path) -> str:
    environment = {**os.environ, **AIRFLOW, "PYTHONPATH": str(PLUGINS), "AIRFLOW_HOME": str(home)}
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "airflow"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def test_a_row_is_followed_from_airflows_task_to_the_engine(tmp_path: Path, collector: Collector) -> None:
    prepared = prepare(tmp_path, ["a parser for YAML files", None], **MINILM, dead_letters__tolerate=1)
    parent = in_airflow(TASK, collector, tmp_path / "airflow")
    settings = Settings("b", "p", traces=collector.url, traced_requests=1.0)
    observed = {"TRACEPARENT": parent}
    server, driver = containers_of(
        render(a_spec(**MINILM), prepared.run, prepared.plan, settings, name="night", observed=observed)
    )
    traced = {name: value for name, value in env_of(driver).items() if name.startswith(("OTEL_", "TRACEPARENT"))}
    engine = Vllm(
        a_spec(**MINILM),
        tmp_path / "vllm.log",
        arguments=[each for each in server["args"] if "otlp" in each],
        variables={name: str(value) for name, value in env_of(server).items() if name.startswith("OTEL_")},
    )
    try:
        engine.await_health()
        assert (
            DriverProcess(prepared, engine.url, extra={name: str(value) for name, value in traced.items()}).finish()
            == exits.DONE
        )
        await_condition(lambda: any(each.name == "llm_request" for each in collector.spans()), "vLLM's span has come")
    finally:
        engine.kill()

    trace = parent.split("-")[1]
    ours = [each for each in collector.spans() if each.trace == trace]
    (task,) = named(ours, "worker.infer")
    (request,) = named(ours, "nightshift.request")
    (dead,) = named(ours, "nightshift.row")
    (answer,) = named(ours, "llm_request")
    assert (task.service, request.service) == ("airflow", "nightshift-driver")
    assert (request.parent, dead.parent) == (task.span, task.span) == (parent.split("-")[2],) * 2
    assert answer.parent == request.span
    assert request.attributes["nightshift.row"] == "0"
    assert dead.attributes["nightshift.dead_letter.reason"] == "bad_input"


def named(spans: list[Seen], name: str) -> list[Seen]:
    return [each for each in spans if each.name == name]


def test_what_a_trigger_sends_to_airflows_metrics_arrives(tmp_path: Path, collector: Collector) -> None:
    in_airflow(GAUGES, collector, tmp_path / "airflow")
    await_condition(lambda: len(collector.metrics()) >= 9, "the gauges have come")

    assert collector.metrics() == {
        "airflow.nightshift.night.rows": 100,
        "airflow.nightshift.night.rows_committed": 40,
        "airflow.nightshift.night.forecast_seconds": 90,
        "airflow.nightshift.night.deadline_seconds": 60,
        "airflow.nightshift.night.late": 1,
        "airflow.nightshift.night.workers_wanted": 2,
        "airflow.nightshift.night.workers_running": 1,
        "airflow.nightshift.night.cost": 0.5,
        "airflow.nightshift.night.cost_forecast": 0.75,
    }
