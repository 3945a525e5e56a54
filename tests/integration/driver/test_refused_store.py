"""A refusal is no outage: real drivers whose account lacks a right end after a while, for good, and say which right, where.

Two minutes are two seconds here. Whatever the engine does, no row is asked for nothing for long.
"""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Final

import pytest
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.cloud.storage import Client as StorageClient

from nightshift import exits
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun, prepare
from tests.integration.emulators import WORKER, StorageEmulator, below, grant

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TEXTS: list[str | None] = [f"text {n}" for n in range(40)]
SOON: Final = (
    "from nightshift.driver import backoff, main\n"
    "from nightshift.run.observed import heartbeats\n"
    "backoff.REFUSED_S, backoff.BACKOFF_MAX_S, heartbeats.LEAST_S = 2.0, 0.2, 0.2\n"
    "main.main()\n"
)
LATE: Final = SOON.replace("= 2.0", "= 60.0")
READS: Final = ("storage.objectViewer", WORKER, None)


@pytest.fixture
def bucket(storage_emulator: StorageEmulator, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    return storage_client.create_bucket(f"runs-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def prepared(tmp_path: Path, bucket: Bucket) -> PreparedRun:
    return prepare(tmp_path, TEXTS, url=f"gs://{bucket.name}")


def writes(bucket: Bucket, prefix: str) -> tuple[str, str, str]:
    return "storage.objectCreator", WORKER, below(bucket.name, prefix)


def driver(prepared: PreparedRun, engine: CannedEngine, program: str = SOON) -> DriverProcess:
    return DriverProcess(prepared, engine.url, extra={"STORAGE_EMULATOR_TOKEN": "worker-token"}, program=program)


def why(process: DriverProcess) -> str:
    assert process.finish() == exits.CONFIG, process.log
    (said,) = [entry["error"] for entry in process.log if entry["message"] == "cannot continue"]
    return str(said)


def lacks_create(said: str, prepared: PreparedRun) -> bool:
    """Whether it names account, right, place and role."""
    account, work = WORKER.partition(":")[2], prepared.run.work(prepared.plan.uid).prefix
    start = f"StoreRefused: {account} does not have storage.objects.create on {prepared.url}/{work}/"
    return said.startswith(start) and "Give this account roles/storage.objectCreator there" in said


def test_it_ends_while_the_engine_still_starts(prepared: PreparedRun, bucket: Bucket) -> None:
    """The first heartbeat needs the right that chunks need. A condition with a letter too few, as it was met."""
    grant(bucket, READS, writes(bucket, "_worker/"))
    with CannedEngine() as engine:
        engine.healthy = False
        said = why(driver(prepared, engine))

    assert lacks_create(said, prepared), said
    assert engine.seen == []


def test_it_ends_while_the_engine_computes(prepared: PreparedRun, bucket: Bucket) -> None:
    """A right that is taken away in the night: what was committed stays."""
    grant(bucket, READS, writes(bucket, "_workers/"))
    asked = threading.Event()

    async def behave(_: list[str]) -> None:
        if not asked.is_set():
            grant(bucket, READS, writes(bucket, "_worker/"))
            asked.set()

    with CannedEngine(behave) as engine:
        assert lacks_create(said := why(driver(prepared, engine)), prepared), said


def test_it_ends_if_it_cannot_read_its_run(prepared: PreparedRun, bucket: Bucket) -> None:
    grant(bucket, writes(bucket, "_workers/"))
    with CannedEngine() as engine:
        said = why(driver(prepared, engine))

    assert f"does not have storage.objects.get on {prepared.url}/{prepared.run.spec_path}" in said
    assert "roles/storage.objectViewer" in said


def test_a_token_that_is_not_accepted_ends_it_too(prepared: PreparedRun, bucket: Bucket) -> None:
    with CannedEngine() as engine:
        process = DriverProcess(prepared, engine.url, extra={"STORAGE_EMULATOR_TOKEN": "of-nobody"}, program=SOON)
        said = why(process)

    assert "Cloud Storage does not accept the credentials of the account" in said
    assert "(401)" in said


@pytest.mark.parametrize("late", [READS, None], ids=["write", "read"])
def test_a_right_that_comes_in_time_costs_nothing(
    prepared: PreparedRun, bucket: Bucket, late: tuple[str, str, None] | None
) -> None:
    """A grant is not known everywhere at once."""
    grant(bucket, late or writes(bucket, "_workers/"))
    with CannedEngine() as engine:
        process = driver(prepared, engine, LATE)
        process.wait_for("started")
        threading.Timer(2.0, grant, (bucket, READS, writes(bucket, "_workers/"))).start()

        assert process.finish() == exits.DONE, process.log
