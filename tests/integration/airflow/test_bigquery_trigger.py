"""The trigger that waits for BigQuery, with Google's client on Airflow's connection, against the emulator and its outages."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import SetXCom, TaskStatesResult

from nightshift.triggers.bigquery import BigQueryJobsTrigger
from nightshift.triggers.polling import poll
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, BigQueryEmulator, StorageEmulator, start_bigquery

pytestmark = pytest.mark.integration

GIVE_UP_S = 600


def deploy(emulator: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment that uses the emulator."""
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", ANONYMOUS_CONNECTION)
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", emulator.url)
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", PROJECT)
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    assert poll.__kwdefaults__ is not None
    monkeypatch.setitem(poll.__kwdefaults__, "settle_s", 0)


@pytest.fixture
def emulator(bigquery_emulator: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch) -> BigQueryEmulator:
    deploy(bigquery_emulator, monkeypatch)
    return bigquery_emulator


@pytest.fixture
def own_emulator(
    tmp_path: Path, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BigQueryEmulator]:
    """An emulator that the test may kill."""
    emulator = start_bigquery(tmp_path, storage_emulator)
    deploy(emulator, monkeypatch)
    yield emulator
    emulator.kill()


def a_job(emulator: BigQueryEmulator, sql: str = "SELECT 1") -> str:
    job = emulator.client().query(sql, job_id=f"job-{uuid.uuid4().hex}", location="US", job_retry=None)
    job.exception()  # type: ignore[no-untyped-call]
    return str(job.job_id)


async def event(*job_ids: str, seconds: float = GIVE_UP_S) -> dict[str, Any]:
    trigger = BigQueryJobsTrigger(job_ids=job_ids, deadline=time.time() + seconds, poll_interval=0.2)
    (fired,) = [fired.payload async for fired in trigger.run()]
    return dict(fired)


@pytest.mark.gate
async def test_it_fires_when_every_job_is_done(emulator: BigQueryEmulator) -> None:
    jobs = [a_job(emulator), a_job(emulator)]

    told = await event(*jobs)

    assert told["problem"] is None
    assert [(job["job_id"], job["done"], job["error"]) for job in told["jobs"]] == [(job, True, None) for job in jobs]


async def test_a_failed_job_is_an_answer(emulator: BigQueryEmulator) -> None:
    told = await event(a_job(emulator, "SELECT ERROR('no such row')"))

    assert told["problem"] is None
    assert "no such row" in told["jobs"][0]["error"]


async def test_a_job_that_bigquery_does_not_know_is_lost(emulator: BigQueryEmulator) -> None:
    told = await event("never-started")

    assert (told["jobs"][0]["done"], told["jobs"][0]["retryable"]) == (True, True)


@pytest.mark.gate
async def test_an_outage_is_waited_out(own_emulator: BigQueryEmulator) -> None:
    """The emulator is killed before the first question and comes back; its jobs are there again or count as lost."""
    job = a_job(own_emulator)
    own_emulator.kill()

    waiting = asyncio.create_task(event(job))
    await asyncio.sleep(1)
    assert not waiting.done()
    await asyncio.to_thread(own_emulator.start)
    told = await waiting

    assert told["problem"] is None
    assert told["jobs"][0]["job_id"] == job
    assert told["jobs"][0]["done"]


@pytest.mark.gate
async def test_a_person_who_ends_the_task_ends_its_jobs(emulator: BigQueryEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is at work ends at once, without an effect; what is done stays done, and an unknown one is no error.

    Airflow's answer is a stand-in: what it says of tasks that a person ended is tested against its database.
    """
    endless = "SELECT COUNT(*) FROM UNNEST(GENERATE_ARRAY(1, 1000000)) a, UNNEST(GENERATE_ARRAY(1, 1000000)) b WHERE a * b = 7"
    working = emulator.client().query(endless, job_id=f"job-{uuid.uuid4().hex}", location="US", job_retry=None)
    done = a_job(emulator)
    trigger = BigQueryJobsTrigger(job_ids=["never-started", done, str(working.job_id)], deadline=time.time() + GIVE_UP_S)
    ti: Any = SimpleNamespace(dag_id="tickets", task_id="publish", run_id="night", map_index=-1)
    trigger._task_instance = ti
    said: list[Any] = []

    def send(message: Any) -> Any:
        said.append(message)
        return TaskStatesResult(task_states={"night": {"publish": "failed"}})

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=send), raising=False)

    await trigger.on_kill()

    told = await event(done, str(working.job_id))
    assert [job["error"] is None for job in told["jobs"]] == [True, False]
    assert [message.key for message in said if isinstance(message, SetXCom)] == ["error"]
