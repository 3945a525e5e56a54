"""After a kill and a new start: what was reported stays, what was not is whole or absent, and no client waits for ever."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from google.api_core.exceptions import Conflict, GoogleAPIError
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.bigquery.tests.support import (
    DAY,
    Bucket,
    Warehouse,
    load_config,
    new_job_id,
    parameters,
    parquet_bytes,
    vectors,
)
from local.ports import new_port
from tests.integration.emulators import ROOT, BigQueryEmulator, StorageEmulator, bigquery_at, start_bigquery

pytestmark = pytest.mark.integration

# A query that no machine finishes while the tests run; interrupted in a moment.
NUMBERS = "UNNEST(GENERATE_ARRAY(1, 300000))"
ENDLESS = f"SELECT COUNT(*) FROM {NUMBERS} a, {NUMBERS} b WHERE MOD(a * b, 1000003) = 7"
# After how many seconds under load the process is killed: early ones hit the first statements, late ones anything.
KILL_AFTER_S = (0.05, pytest.param(0.4, marks=pytest.mark.gate), 1.0)


@pytest.fixture
def emulator(tmp_path: Path, storage_emulator: StorageEmulator) -> Iterator[BigQueryEmulator]:
    started = start_bigquery(tmp_path, storage_emulator)
    yield started
    started.kill()


@pytest.fixture
def own_warehouse(emulator: BigQueryEmulator) -> Warehouse:
    warehouse = Warehouse(emulator.client(), "catalog")
    warehouse.client.create_dataset(warehouse.dataset)
    return warehouse


def killed_and_restarted(emulator: BigQueryEmulator) -> None:
    emulator.kill()
    emulator.start()


@pytest.mark.gate
def test_what_was_done_is_still_done(emulator: BigQueryEmulator, own_warehouse: Warehouse) -> None:
    name = own_warehouse.name("t")
    create = f"CREATE TABLE `{name}` PARTITION BY day AS SELECT 'a' AS name, DATE '2026-01-01' AS day"
    own_warehouse.run(create, bigquery.QueryJobConfig(labels={"run": "r1"}), "create")
    own_warehouse.run(f"SELECT name FROM `{name}`", job_id="select")

    killed_and_restarted(emulator)

    create_job, select_job = (own_warehouse.client.get_job(job_id) for job_id in ("create", "select"))
    assert isinstance(select_job, bigquery.QueryJob)
    assert (create_job.state, create_job.error_result, create_job.labels) == ("DONE", None, {"run": "r1"})
    assert [row.values() for row in select_job.result()] == [("a",)]
    assert own_warehouse.client.get_table(name).time_partitioning.field == "day"
    assert own_warehouse.count("t") == 1
    with pytest.raises(Conflict):
        own_warehouse.run("SELECT 1", job_id="select")


@pytest.mark.gate
def test_a_job_that_was_running_ends_with_an_error(emulator: BigQueryEmulator, own_warehouse: Warehouse) -> None:
    own_warehouse.start(ENDLESS, job_id="endless")
    while (state := own_warehouse.client.get_job("endless").state) == "PENDING":
        time.sleep(0.1)
    assert state == "RUNNING"

    killed_and_restarted(emulator)

    job = own_warehouse.client.get_job("endless")
    assert isinstance(job, bigquery.QueryJob)
    assert (job.state, job.error_result["reason"]) == ("DONE", "jobBackendError")
    with pytest.raises(GoogleAPIError, match="new job id"):
        job.result(timeout=600)


class Night:
    """A client that loads a staging table and publishes it in a transaction, over and over, each time with another number."""

    rows = 50

    def __init__(self, warehouse: Warehouse, bucket: Bucket) -> None:
        self.warehouse, self.bucket = warehouse, bucket
        self.started: list[str] = []
        self.published = 0
        self._stop = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(GoogleAPIError, requests.RequestException):
            while not self._stop.is_set():
                self.publish(self.published + 1)

    def stop(self) -> None:
        self._stop.set()

    def publish(self, number: int) -> None:
        table = vectors(0, self.rows).append_column("number", [[number] * self.rows])
        uri = self.bucket.put(f"{number}.parquet", parquet_bytes(table))
        config = load_config(write_disposition="WRITE_TRUNCATE")
        self.warehouse.load_uris("staging", [uri], config, self._job_id())
        target, staging = self.warehouse.name("target"), self.warehouse.name("staging")
        self.warehouse.run(
            f"BEGIN TRANSACTION; DELETE FROM `{target}` WHERE day = @partition; "
            f"INSERT INTO `{target}` (id, number, day) SELECT id, number, @partition FROM `{staging}`; COMMIT TRANSACTION;",
            parameters(partition=DAY),
            self._job_id(),
        )
        self.published = number

    def _job_id(self) -> str:
        self.started.append(new_job_id())
        return self.started[-1]


@pytest.mark.parametrize("kill_after_s", KILL_AFTER_S)
def test_loads_and_transactions_are_whole_or_absent(
    emulator: BigQueryEmulator, own_warehouse: Warehouse, storage_client: StorageClient, kill_after_s: float
) -> None:
    bucket = Bucket(storage_client, f"night-{new_job_id()[-12:]}")
    storage_client.create_bucket(bucket.name)
    own_warehouse.run(f"CREATE TABLE `{own_warehouse.name('target')}` (id INT64, number INT64, day DATE) PARTITION BY day")
    night = Night(replace(own_warehouse, client=emulator.client()), bucket)
    client = threading.Thread(target=night.run)
    client.start()

    time.sleep(kill_after_s)
    night.stop()
    killed_and_restarted(emulator)
    client.join()

    left = [job.job_id for job in own_warehouse.client.list_jobs(state_filter="running")]
    left += [job.job_id for job in own_warehouse.client.list_jobs(state_filter="pending")]
    assert left == []
    content = own_warehouse.rows(f"SELECT number, COUNT(*) FROM `{own_warehouse.name('target')}` GROUP BY number")
    assert content in ([], [(night.published, Night.rows)], [(night.published + 1, Night.rows)])
    assert content != [] or night.published == 0
    with contextlib.suppress(GoogleAPIError):  # the first load may have left no table
        assert own_warehouse.count("staging") == Night.rows
    # And the next night works.
    night.publish(night.published + 2)
    assert own_warehouse.count("target") == Night.rows


@pytest.mark.parametrize("kill_after_s", [0.5, 1.0])
def test_a_first_start_may_be_cut_off(tmp_path: Path, storage_emulator: StorageEmulator, kill_after_s: float) -> None:
    emulator = bigquery_at(tmp_path, storage_emulator)
    with open(emulator.log, "ab") as log:
        cut_off = subprocess.Popen(emulator.command, cwd=ROOT, stdout=log, stderr=log)
    time.sleep(kill_after_s)
    cut_off.kill()
    cut_off.wait()

    emulator.start()
    try:
        assert Warehouse(emulator.client(), "none").rows("SELECT 1") == [(1,)]
    finally:
        emulator.kill()


def test_sigterm_ends_it_at_once_even_while_a_job_runs(emulator: BigQueryEmulator, own_warehouse: Warehouse) -> None:
    own_warehouse.start(ENDLESS)

    assert emulator.stop() == 0


@pytest.mark.parametrize(("option", "code"), [("--port", 3), ("--grpc-port", 1)])
def test_a_taken_port_is_refused(emulator: BigQueryEmulator, tmp_path: Path, option: str, code: int) -> None:
    command = [*emulator.command[:-1], str(tmp_path / "another")]
    for free in {"--port", "--grpc-port"} - {option}:
        command[command.index(free) + 1] = str(new_port())

    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert (second.returncode, "address" in second.stderr.lower()) == (code, True), second.stderr


@pytest.mark.gate
def test_a_second_process_is_refused_on_the_same_folder(emulator: BigQueryEmulator, own_warehouse: Warehouse) -> None:
    second = subprocess.run(emulator.command, cwd=ROOT, capture_output=True, text=True, timeout=600)

    assert second.returncode == 1
    assert "lock" in second.stderr
    assert own_warehouse.rows("SELECT 1") == [(1,)]
