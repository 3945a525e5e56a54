"""Runs that earlier releases have left (`tests.releases`): this release finds, resumes, seals, publishes and shows them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from obstore.store import ObjectStore

from nightshift import exits
from nightshift.planner.bills import seal_measured
from nightshift.run import chunks
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef, run_digest
from nightshift.run.opening import load_run, open_run
from nightshift.run.plan import Plan, load_plan
from nightshift.run.sealed_objects import check_sealed
from nightshift.spec import JobSpec
from nightshift.warehouse.audit import audit_row
from tests.integration.driver.batches import BatchProcess, ChatServer, answer_to, content_of, read_lines
from tests.integration.driver.canned import CannedEngine, vector_of
from tests.integration.driver.runs import PLUGINS, DriverProcess, PreparedRun
from tests.integration.warehouse.conftest import Night
from tests.releases import FOLDER, JOB, LINES, STATES, TEXTS, place, releases

pytestmark = [pytest.mark.integration]

RUNS = [
    pytest.param(release, state, marks=[pytest.mark.gate] if (release, state) == (releases()[-1], "half") else [])
    for release in releases()
    for state in STATES
]
TUNED = {"max_num_seqs": 64, "max_model_len": 256, "args": {"enforce-eager": True, "seed": 7, "gpu-memory-utilization": 0.8}}
"""The job's engine as it is now: its settings of performance have changed since the runs were opened."""


def job_now(night: Night, **changes: Any) -> JobSpec:
    table = f"{night.spec.destination.table.split('.')[0]}.kept"
    return JobSpec.model_validate(
        {**JOB, "engine": TUNED, "deadline": "9h", "destination": {"table": table, "column": "vector"}, **changes}
    )


def committed(store: ObjectStore, run: RunRef, plan: Plan) -> set[int]:
    """Ordinals of the rows that were saved: committed, or in a partial."""
    work = run.work(plan.uid)
    paths = [str(meta["path"]) for page in store.list(work.prefix) for meta in page]
    saved = [path for path in paths if work.parse_chunk(path) is not None or work.parse_partial(path) is not None]
    tables = [chunks.decode(bytes(store.get(path).bytes()))[0] for path in saved]
    return {ordinal for table in tables for ordinal in table.column("ordinal").to_pylist()}


@pytest.mark.parametrize(("release", "state"), RUNS)
def test_a_run_of_an_earlier_release_is_finished_and_published(night: Night, release: str, state: str) -> None:
    kept, spec, partition = place(release, state, night.store), job_now(night), STATES[state]

    run = open_run(night.store, spec, partition, opened_by="this release")

    assert run == kept
    plan, record = load_plan(night.store, run), load_run(night.store, run)[1]
    assert plan is not None
    assert plan.source is not None
    before = committed(night.store, run, plan)
    assert (state, len(before)) in [("unfinished", 0), ("half", len(before)), ("complete", 48), ("sealed", 48)]
    tuning = {"NIGHTSHIFT_TUNING": json.dumps(spec.tuning())}
    with CannedEngine() as engine:
        prepared = PreparedRun(f"gs://{night.settings.bucket}", run, spec, plan)
        driver = DriverProcess(prepared, engine.url, extra=tuning)
        assert driver.finish() == exits.DONE, driver.log
        texts = [text for ordinal, text in enumerate(TEXTS) if text and ordinal not in before]
        assert sorted(engine.seen) == sorted(texts), "nothing that was saved is computed again"
    sealed = load_manifest(night.store, run)
    assert (sealed is not None) == (state == "sealed")
    manifest = seal_measured(night.store, run, spec, plan)
    assert sealed in (None, manifest)
    check_sealed(night.store, run, manifest)

    night.spec, night.__dict__["source"] = spec, plan.source
    published = night.publish(run, manifest, asked_at=record.opened_at)
    night.warehouse.record_audit(audit_row(spec, run, plan, manifest, published, dag_run_id=record.opened_by))

    assert (manifest.rows, manifest.dead_letters) == (48, 1)
    rows = night.rows(f"SELECT id, vector FROM `{night.destination}` WHERE partition_date = DATE '{partition}' ORDER BY id")
    assert rows == [(number, vector_of(text)) for number, text in enumerate(TEXTS) if text]
    assert status_of(run, night) == {"state": "sealed", "rows_done": 48, "dead_letters": 1}


def status_of(run: RunRef, night: Night) -> dict[str, Any]:
    """What `nightshift status` says."""
    command = [sys.executable, "-m", "nightshift.cli", "status", "--json", run.url(night.settings.bucket)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PLUGINS)}
    environment["STORAGE_EMULATOR_HOST"] = os.environ["STORAGE_EMULATOR_HOST"]
    said = json.loads(subprocess.check_output(command, env=environment, text=True))
    assert said["problems"] == []
    return {"state": said["state"], "rows_done": said["rows_done"], "dead_letters": said["dead_letters"]}


@pytest.mark.parametrize("release", releases())
def test_a_fresh_run_beside_an_earlier_releases_has_the_name_of_this_one(night: Night, release: str) -> None:
    kept, spec, partition = place(release, "sealed", night.store), job_now(night), STATES["sealed"]

    fresh = open_run(night.store, spec, partition, opened_by="a person", fresh=True)

    digest = run_digest(spec.job, partition, spec.semantic())
    assert fresh.digest == digest
    assert fresh != kept
    assert load_run(night.store, fresh)[1].opened_at > load_run(night.store, kept)[1].opened_at
    assert open_run(night.store, spec, partition, opened_by="a person", fresh=True) == fresh
    assert open_run(night.store, spec, partition, opened_by="tomorrow") == fresh
    # The retry of a task that had opened the earlier release's run.
    opener = load_run(night.store, kept)[1].opened_by
    other = job_now(night, source={**JOB["source"], "key": ["text"]})
    assert open_run(night.store, other, partition, opened_by=opener) not in (kept, fresh), "another job finds neither"


@pytest.mark.parametrize("release", releases())
def test_a_batch_of_an_earlier_release_is_finished(tmp_path: Path, release: str) -> None:
    folder = tmp_path / "batch"
    shutil.copytree(FOLDER / release / "batch", folder)
    (ledger,) = folder.glob("out.jsonl.nightshift/batch/lines/*/ledger")
    saved = {int(path.stem[-8:]) for path in ledger.iterdir()}

    with ChatServer() as server:
        batch = BatchProcess("-i", folder / "in.jsonl", "-o", folder / "out.jsonl", "--base-url", server.url)
        assert batch.finish() == 0, batch.said

    assert [content_of(line) for line in read_lines(folder / "out.jsonl")] == [answer_to(text) for text in LINES]
    done = {LINES[chunk * 4 + place] for chunk in saved for place in range(4)}
    assert sorted(server.seen) == sorted(set(LINES) - done), "no saved line is sent again"
