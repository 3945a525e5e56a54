"""Jobs as things with a name: made once, found again, kept apart."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from google.api_core.exceptions import BadRequest, Conflict, NotFound
from google.cloud import bigquery

from local.bigquery.tests.support import (
    SCHEMA,
    Bucket,
    Warehouse,
    load_config,
    new_job_id,
    parquet_bytes,
    records,
    vectors,
)
from tests.integration.emulators import BigQueryEmulator

pytestmark = pytest.mark.integration

RACERS, ROUNDS = 8, 15


@pytest.mark.gate
def test_a_query_job_id_is_taken_once(warehouse: Warehouse) -> None:
    job_id = new_job_id()
    warehouse.run("SELECT 1", job_id=job_id)

    with pytest.raises(Conflict):
        warehouse.client.query("SELECT 1", job_id=job_id, job_retry=None)


def test_a_load_under_a_taken_job_id_loads_nothing(warehouse: Warehouse, bucket: Bucket) -> None:
    uri, job_id = bucket.put("a.parquet", parquet_bytes(vectors(0, 20))), new_job_id()
    warehouse.load_uris("t", [uri], load_config(), job_id)

    with pytest.raises(Conflict):
        warehouse.load_uris("t", [uri], load_config(), job_id)

    assert warehouse.count("t") == 20


def test_an_upload_under_a_taken_job_id_loads_nothing(warehouse: Warehouse) -> None:
    job_id, config = new_job_id(), bigquery.LoadJobConfig(schema=SCHEMA)
    warehouse.client.load_table_from_json(records(0, 5), warehouse.name("t"), job_id=job_id, job_config=config).result()

    with pytest.raises(Conflict):
        warehouse.client.load_table_from_json(records(0, 5), warehouse.name("t"), job_id=job_id, job_config=config)

    assert warehouse.count("t") == 5


@pytest.mark.gate
def test_of_racing_submits_of_one_job_id_one_runs(warehouse: Warehouse, bigquery_emulator: BigQueryEmulator) -> None:
    """Straight to the API: the client library would hide the conflict. Several rounds, as one race in four shows the fault."""
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` (n INT64)")
    project = warehouse.client.project
    statuses: list[int] = []
    url = f"{bigquery_emulator.url}/bigquery/v2/projects/{project}/jobs"
    barrier = threading.Barrier(RACERS)

    def submit(job: dict[str, Any]) -> int:
        with requests.Session() as session:
            session.get(bigquery_emulator.health_url)  # connected before the race begins
            barrier.wait()
            return session.post(url, json=job).status_code

    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(ROUNDS):
            query = {"query": f"INSERT INTO `{warehouse.name('t')}` VALUES ({number})", "useLegacySql": False}
            job_id = new_job_id()
            job = {"jobReference": {"projectId": project, "jobId": job_id}, "configuration": {"query": query}}
            statuses += pool.map(submit, [job] * RACERS)
            warehouse.client.get_job(job_id).result()

    assert Counter(statuses) == {200: ROUNDS, 409: ROUNDS * (RACERS - 1)}
    assert warehouse.count("t") == ROUNDS


def test_a_job_is_found_again_with_its_labels_and_times(warehouse: Warehouse) -> None:
    job = warehouse.run("SELECT 1 AS a", bigquery.QueryJobConfig(labels={"run": "r1", "stage": "extract"}), new_job_id())

    found = warehouse.client.get_job(job.job_id)

    assert (found.state, found.labels) == ("DONE", {"run": "r1", "stage": "extract"})
    assert found.created <= found.started <= found.ended
    assert isinstance(found, bigquery.QueryJob)
    assert [row.values() for row in found.result()] == [(1,)]


@pytest.mark.gate
def test_a_failed_job_keeps_its_error(warehouse: Warehouse) -> None:
    job_id = new_job_id()
    with pytest.raises(BadRequest):
        warehouse.run("SELECT ERROR('on purpose')", job_id=job_id)

    found = warehouse.client.get_job(job_id)

    assert found.state == "DONE"
    assert (found.error_result["reason"], found.error_result["message"]) == ("invalidQuery", "on purpose")


@pytest.mark.gate
def test_an_unknown_job_is_not_found(warehouse: Warehouse) -> None:
    with pytest.raises(NotFound):
        warehouse.client.get_job(new_job_id())


@pytest.mark.gate
def test_jobs_are_listed_newest_first(warehouse: Warehouse) -> None:
    oldest_first = [warehouse.run("SELECT 1", job_id=new_job_id()).job_id for _ in range(4)]

    listed = [job.job_id for job in warehouse.client.list_jobs(max_results=50) if job.job_id in oldest_first]

    assert listed == oldest_first[::-1]


def test_a_done_job_may_be_cancelled(warehouse: Warehouse) -> None:
    job = warehouse.run("SELECT 1")

    warehouse.client.cancel_job(job.job_id)

    assert warehouse.client.get_job(job.job_id).error_result is None


@pytest.mark.parametrize("at_work_s", [0.0, 0.05, 1.0])
def test_a_running_job_is_cancelled(warehouse: Warehouse, at_work_s: float) -> None:
    numbers = "UNNEST(GENERATE_ARRAY(1, 100000))"
    endless = f"SELECT COUNT(*) FROM {numbers} a, {numbers} b WHERE MOD(a * b, 1000003) = 7"
    job = warehouse.client.query(endless, job_id=new_job_id(), job_retry=None)
    time.sleep(at_work_s)

    job.cancel()

    with pytest.raises(Exception, match="cancel"):
        job.result(timeout=250)
    assert warehouse.client.get_job(job.job_id).error_result["reason"] == "stopped"
