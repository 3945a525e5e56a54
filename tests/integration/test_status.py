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
from nightshift.store import open_store
from tests.builders import RUN, WORK, a_chunk, a_plan
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
    obstore.put(store, f"{RUN.prefix}/plan.json", canonical_json(plan.to_json()))
    for chunk in range(1101):
        obstore.put(store, WORK.chunk_path(chunk), a_chunk(RUN, plan, chunk, dead=[] if chunk else [0]))
    obstore.put(store, WORK.chunk_path(1101), b"torn")

    done = status(storage_emulator.url, bucket)

    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["rows_done"], said["rows_bad"], said["dead_reasons"]) == (2202, 2, {"rejected": 1})
    assert (said["chunks_committed"], said["chunks_bad"], said["chunks_left"], said["state"]) == (1101, 1, 0, "complete")
    assert said["rate_rows_per_s"] > 0


@pytest.mark.parametrize("absent", ["run", "bucket"])
def test_what_is_not_there_is_2(storage_emulator: StorageEmulator, bucket: str, absent: str) -> None:
    done = status(storage_emulator.url, bucket if absent == "run" else f"no-{bucket}")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nightshift status: There is no run at gs://")


def test_a_store_out_of_reach_is_75(bucket: str) -> None:
    done = status(f"http://127.0.0.1:{new_port()}", bucket)

    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("nightshift status: the store cannot be read: ")
    assert len(done.stderr.splitlines()) == 1
