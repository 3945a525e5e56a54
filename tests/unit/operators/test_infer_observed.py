"""What the task infer tells its pods for metrics and traces: what only Airflow knows, and nothing that makes another JobSet."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from nightshift.jobset.fleet.memory import FleetMember
from nightshift.jobset.identity import spec_hash
from nightshift.operators.infer import InferOperator
from tests.builders import RUN, a_record, a_spec
from tests.unit.jobset.test_manifest import containers_of, env_of
from tests.unit.operators.infer_night import Night

pytestmark = pytest.mark.unit

SPAN = SpanContext(0xA, 0xB, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
PARENT = f"00-{0xA:032x}-{0xB:016x}-01"


def waiting(night: Night, **changes: Any) -> InferOperator:
    """The task of a job with these changes, which waits for its JobSet."""
    obstore.put(night.store, f"{RUN.prefix}/spec.json", a_record(a_spec(**changes)))
    night.execute()
    task = night.task()
    task._context = night.context
    return task


def variables(task: InferOperator, profile: str = "") -> dict[str, Any]:
    """Of the driver."""
    return env_of(containers_of(task.manifest(FleetMember(1, profile), "night"))[1])


def test_the_deadline_of_all_attempts_reaches_the_drivers(night: Night) -> None:
    said = json.loads(variables(waiting(night, deadline="2h"))["NIGHTSHIFT_NIGHT"])

    assert said == {"deadline": pytest.approx(time.time() + 2 * 3600, abs=60)}, "a share of a machine has no price"


def test_so_does_the_price_of_the_machines_of_each_jobsets_own_profile(night: Night) -> None:
    task = waiting(night, compute={"profile": "gpu-l4-spot", "fallback": ["gpu-l4"]})
    spot, on_demand = (json.loads(variables(task, profile)["NIGHTSHIFT_NIGHT"]) for profile in ("gpu-l4-spot", "gpu-l4"))

    assert (spot["currency"], on_demand["currency"]) == ("USD", "USD")
    assert 0 < spot["price"] < on_demand["price"]


def test_a_file_of_prices_that_cannot_be_read_costs_only_the_costs(night: Night, tmp_path: Path) -> None:
    night.settings = replace(night.settings, prices=str(tmp_path / "none.yaml"))
    said = json.loads(variables(waiting(night, compute={"profile": "gpu-l4-spot"}))["NIGHTSHIFT_NIGHT"])

    assert said.keys() == {"deadline"}


def test_another_deadline_is_no_other_jobset(night: Night) -> None:
    """A cleared task has a new one, and adopts its JobSet."""
    task = waiting(night)
    before = task.manifest(FleetMember(1), "night")
    night.clear()
    task._in_time(task.remembered())
    task._memory().save(replace(task.remembered(), deadline=1.0))
    after = task.manifest(FleetMember(1), "night")

    assert before != after
    assert spec_hash(before) == spec_hash(after)


@pytest.mark.parametrize(("traces", "told"), [("", None), ("http://collector:4318", PARENT)])
def test_pods_continue_airflows_trace_if_they_are_traced(night: Night, traces: str, told: str | None) -> None:
    night.settings = replace(night.settings, traces=traces)
    task = waiting(night)
    with trace.use_span(NonRecordingSpan(SPAN)):
        assert variables(task).get("TRACEPARENT") == told


def test_without_a_trace_of_airflows_they_have_no_parent(night: Night) -> None:
    night.settings = replace(night.settings, traces="http://collector:4318")

    assert "TRACEPARENT" not in variables(waiting(night))
