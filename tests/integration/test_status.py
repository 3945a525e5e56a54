"""`nightshift status` against Cloud Storage: ranges, pages and times as they come over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import obstore
import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.ports import new_port
from nightshift.run.names import canonical_json
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.opening import NoSuchRun
from nightshift.status.explanation import explain
from nightshift.status.overview import RunLook
from nightshift.status.runs import Runs, find
from nightshift.store import open_store
from tests.builders import RUN, WORK, a_chunk, a_plan
from tests.chat_run import a_chat_run
from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


def status(emulator_url: str, bucket: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nightshift.cli", "status", f"gs://{bucket}/{RUN.prefix}", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(PLUGINS), "STORAGE_EMULATOR_HOST": emulator_url}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def bucket(storage_client: StorageClient) -> str:
    name = f"status-{uuid.uuid4().hex[:8]}"
    storage_client.create_bucket(name)
    return name


def test_a_run_of_more_than_a_page(storage_emulator: StorageEmulator, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    store = open_store(f"gs://{bucket}")
    plan = a_plan(2204, 2)
    obstore.put(store, f"{RUN.prefix}/spec.json", b"{}")
    obstore.put(store, f"{RUN.prefix}/plan.json", canonical_json(plan.to_json()))
    for chunk in range(1101):
        obstore.put(store, WORK.chunk_path(chunk), a_chunk(RUN, plan, chunk, dead=[] if chunk else [0]))
    obstore.put(store, WORK.dead_note_path(0, 1), b'{"rejected": 1}')

    done = status(storage_emulator.url, bucket)

    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["rows_done"], said["dead_letters"], said["dead_reasons"]) == (2202, 1, {"rejected": 1})
    assert (said["chunks_committed"], said["chunks_left"], said["state"]) == (1101, 1, "open")
    assert said["rate_rows_per_s"] > 0


def test_everything_that_people_look_at(
    storage_emulator: StorageEmulator, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders, offsets and ranges as they come over HTTP; `tests/unit/test_status_*.py` have the rest."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    store = open_store(f"gs://{bucket}")
    before = a_chat_run(store, partition="2026-11-19", digest="a" * 16, rows=20)
    for number in range(2):
        before.commit(number)
    before.seal()
    endings.record(store, before.run, Ending(endings.PUBLISHED, "2026-11-20T03:00:00+00:00", "scheduled"))
    run = a_chat_run(store)
    for number in range(3):
        run.commit(number, lambda row: None if row == 7 else f"label {row % 2}")
    run.beat("pod-0", 0)
    run.beat("pod-0", 1, rows_answered=60)
    look = RunLook(store, (found := find(store, "tickets")), found.url(bucket))

    page, shown = Runs(store).page(), look.look()

    assert [(each.run, each.state) for each in page.runs] == [(run.run, "open"), (before.run, "published")]
    assert [find(store, text) for text in ("tickets/2026-11-19", "0123")] == [before.run, run.run]
    assert (shown.summary.done, shown.counted, [each.rows for each in shown.workers]) == (30, "of all dead letters", [60])
    assert [each.row["text"] for each in look.dead_letters.page().rows] == ["text of row 7"]
    assert len(look.samples(rows=5).rows) == 5
    both = look.compared()
    assert (both.now.answers, both.earlier and both.earlier.answers) == (29, 20)
    assert explain(store, before.run, key={"id": "13"}).proven


def test_a_bucket_that_is_not_there_has_no_runs(storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)

    with pytest.raises(NoSuchRun, match="There is no bucket"):
        find(open_store("gs://not-there"), "tickets")


@pytest.mark.parametrize("absent", ["run", "bucket"])
def test_what_is_not_there_is_2(storage_emulator: StorageEmulator, bucket: str, absent: str) -> None:
    done = status(storage_emulator.url, bucket if absent == "run" else f"no-{bucket}")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nightshift status: There is no run at gs://")


def test_a_store_out_of_reach_is_75(bucket: str) -> None:
    done = status(f"http://127.0.0.1:{new_port()}", bucket)

    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("nightshift status: the store at http://127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
