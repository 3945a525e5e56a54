"""A night of a real Airflow, and its trace in OpenTelemetry's own collector: the task, the driver's requests, the engine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from local.environments import ROOT, python_of
from tests.integration.driver.collector import Collector

pytestmark = pytest.mark.integration


@pytest.mark.timeout(1200)
def test_a_night_is_one_trace_from_the_dag_run_to_the_engine(tmp_path: Path, collector: Collector) -> None:
    command = [str(python_of("airflow")), "-m", "local.demo", "--state", str(tmp_path / "state"), "--partition", "2026-11-20"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'plugins'}:{ROOT}", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    night = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert night.returncode == 0, (night.stdout + night.stderr)[-4000:]

    spans = {each.span: each for each in collector.spans()}
    engine = [each for each in spans.values() if each.name == "llm_request"]
    assert engine, sorted({(each.service, each.name) for each in spans.values()})
    chains = set()
    for each in engine:
        chain = [each]
        while chain[-1].parent in spans:
            chain.append(spans[chain[-1].parent])
        chains.add((len({link.trace for link in chain}), *(f"{link.service} {link.name}" for link in chain[:3])))
        assert chain[-1].parent == "" or chain[-1].name.startswith(("dag_run", "task_run")), chain[-1]

    assert chains == {(1, "vllm llm_request", "nightshift-driver nightshift.request", "airflow worker.infer")}
    # The demo has rows without a text.
    reasons = {each.attributes["nightshift.dead_letter.reason"] for each in spans.values() if each.name == "nightshift.row"}
    assert reasons == {"bad_input"}, [each.attributes for each in spans.values() if each.name == "nightshift.row"]
