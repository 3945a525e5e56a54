"""A night whose workers are slower than the plan believed, with a real agent, its processes, and the real task and trigger."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from obstore.store import LocalStore

from nightshift.hooks.runtime import runtime_for
from nightshift.jobset.fleet import deadline, forecast, watch
from nightshift.jobset.fleet.memory import FleetMember
from nightshift.jobset.fleet.watch import FleetWatch
from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
from nightshift.jobset.labels import ROLE_LABEL
from nightshift.operators.infer import InferOperator
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import Decision
from nightshift.planner.speed import Basis, Speed
from nightshift.run.names import canonical_json
from nightshift.settings import Settings
from tests.builders import RUN, WORK, a_plan, a_record, a_spec
from tests.integration.runtime.agents import AgentProcess
from tests.integration.runtime.manifests import IMAGE, jobset
from tests.unit.operators.infer_night import a_context

pytestmark = pytest.mark.integration

CHUNKS = 220
DEADLINE_S = 90
WORKER = """
import os, random, sys, time
ledger, chunks, helps = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "helper"
os.makedirs(ledger, exist_ok=True)
while left := [path for chunk in range(chunks) if not os.path.exists(path := f"{ledger}/chunk-{chunk:08d}.parquet")]:
    path = random.choice(left) if helps else left[0]
    time.sleep(0.5)
    open(path, "a").close()
"""
"""Commits a chunk each half second: an owner from the front, a helper anywhere. Alone, the owner takes 110 s."""


class SlowNight(InferOperator):
    """Its pods are real processes of the agent's; what they run is WORKER."""

    deferrable = False
    ledger: Path

    def manifest(self, live: FleetMember, name: str) -> dict[str, Any]:
        real = super().manifest(live, name)
        role = real["metadata"]["labels"][ROLE_LABEL]
        completions = real["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
        command = [sys.executable, "-c", WORKER, str(self.ledger), str(CHUNKS), role]
        return jobset(name, {"name": "driver", "image": IMAGE, "command": command}, job={"completions": completions})


class Recorded(KubernetesRuntime):
    """Remembers what was submitted."""

    submitted: list[int]

    def submit(self, manifest: Mapping[str, Any]) -> str:
        self.submitted.append(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"])
        return super().submit(manifest)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path)
    agent.start()
    yield agent
    agent.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule in seconds instead of minutes."""
    monkeypatch.setattr(watch, "CHECK_S", 0.5)
    monkeypatch.setattr(deadline, "HOLD_S", 2.0)
    monkeypatch.setattr(forecast, "PRIOR_S", 2.0)
    monkeypatch.setattr(forecast, "WINDOW_S", 6.0)
    monkeypatch.setattr("nightshift.triggers.jobset.SETTLE_S", 0)
    monkeypatch.setattr("nightshift.jobset.kubernetes.follow.TICK_S", 0.2)


@pytest.mark.usefixtures("hasty")
def test_a_slow_night_gets_help_and_keeps_its_deadline(
    agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bucket").mkdir()
    store = LocalStore(tmp_path / "bucket")
    spec = a_spec(deadline=f"{DEADLINE_S}s", engine__max_num_seqs=1)
    believed = Speed(10.0, Basis.ESTIMATED, "estimate", 2.0, "the most that the profile allows")
    decision = Decision("cpu", CHUNKS, 1, 1, DEADLINE_S, 73.0, 23.0, 25.0, believed, ())
    plan = {**a_plan(CHUNKS, chunk_rows=1).to_json(), "decision": save_decision(store, RUN, decision)}
    obstore.put(store, RUN.spec_path, a_record(spec))
    obstore.put(store, RUN.plan_path, canonical_json(plan))
    obstore.put(store, f"{RUN.prefix}/{plan['files'][0]['path']}", b"x" * plan["files"][0]["size"])
    monkeypatch.setattr(FleetWatch, "_store", store)
    settings = Settings(bucket="runs", project="acme", runtime=f"local:{agent.state}", workers_max=3, namespace="default")
    for name in ("bucket", "project", "runtime"):
        monkeypatch.setenv(f"NIGHTSHIFT_{name.upper()}", getattr(settings, name))
    runtime = Recorded(runtime_for(settings).api, settings.namespace)
    runtime.submitted = []
    with DAG("job", schedule=None):
        task = SlowNight(task_id="infer", run_prefix=RUN.prefix, terms="")
    task.ledger = tmp_path / "bucket" / WORK.ledger_folder
    task.__dict__.update(settings=settings, store=store, runtime=runtime)

    began = time.monotonic()
    done = task.execute(a_context())
    took_s = time.monotonic() - began

    assert done["jobset"]
    assert took_s < DEADLINE_S
    assert runtime.submitted[0] == 1
    assert 1 <= sum(runtime.submitted[1:]) <= 2, "never more than NIGHTSHIFT_WORKERS_MAX in all"
    assert len(list(task.ledger.iterdir())) == CHUNKS
