"""What a trigger makes of a person's doing: only who ends a task ends its work, and a failed task says that it was a person."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetTaskStates, OKResponse, SetXCom, TaskStatesResult

from nightshift.hooks import warehouse
from nightshift.triggers.bigquery import BigQueryJobsTrigger
from nightshift.triggers.ended import MARKED, ended_by_a_person
from nightshift.warehouse import WarehouseUnavailable

pytestmark = pytest.mark.unit


class Supervisor:
    """Answers as the triggerer's own process does. states: of the tasks, by DAG run."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, str | None]] = {}
        self.kept: list[SetXCom] = []

    def send(self, message: Any) -> Any:
        if isinstance(message, GetTaskStates):
            assert (message.dag_id, message.task_ids, message.run_ids) == ("tickets", ["publish"], ["night"])
            return TaskStatesResult(task_states=self.states)
        assert isinstance(message, SetXCom)
        self.kept.append(message)
        return OKResponse(ok=True)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    found = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", found, raising=False)
    return found


class Client:
    """BigQuery, of which only the cancellation is of interest here."""

    def __init__(self) -> None:
        self.jobs = self
        self.canceled: list[str] = []
        self.away = 0

    def cancel(self, job_ids: list[str]) -> None:
        self.away -= 1
        if self.away >= 0:
            raise WarehouseUnavailable("away")
        self.canceled.extend(job_ids)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    found = Client()
    monkeypatch.setattr(warehouse, "warehouse_for", lambda _: found)
    for name in ("BUCKET", "PROJECT"):
        monkeypatch.setenv(f"NIGHTSHIFT_{name}", "x")
    return found


def a_trigger() -> BigQueryJobsTrigger:
    trigger = BigQueryJobsTrigger(job_ids=["load-0", "publish-0"], deadline=time.time() + 60, poll_interval=0.01)
    ti: Any = SimpleNamespace(dag_id="tickets", task_id="publish", run_id="night", map_index=-1)
    trigger._task_instance = ti
    return trigger


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
async def test_who_ends_a_task_ends_its_jobs(supervisor: Supervisor, client: Client, state: str) -> None:
    supervisor.states = {"night": {"publish": state}}

    await a_trigger().on_kill()

    assert client.canceled == ["load-0", "publish-0"]
    kept = [(each.key, each.task_id, each.run_id, each.value) for each in supervisor.kept]
    assert kept == ([("error", "publish", "night", MARKED.format("publish"))] if state == "failed" else [])


async def test_a_dag_run_that_is_deleted_takes_its_jobs_along(supervisor: Supervisor, client: Client) -> None:
    await a_trigger().on_kill()

    assert client.canceled == ["load-0", "publish-0"]
    assert supervisor.kept == []


@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry"])
async def test_whoever_has_the_task_now_keeps_its_jobs(supervisor: Supervisor, client: Client, state: str | None) -> None:
    """It was cleared and finds them again; or it waits still, in another triggerer."""
    supervisor.states = {"night": {"publish": state}}

    await a_trigger().on_kill()

    assert client.canceled == []
    assert supervisor.kept == []


async def test_they_stay_if_airflow_does_not_say(
    supervisor: Supervisor, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(_: Any) -> Any:
        raise ConnectionError("the API server is away")

    monkeypatch.setattr(supervisor, "send", away)

    await a_trigger().on_kill()

    assert client.canceled == []
    assert "Airflow does not say what has become of the task" in capsys.readouterr().out
    assert not await ended_by_a_person(BigQueryJobsTrigger(job_ids=[], deadline=0)), "a trigger without a task"


async def test_an_outage_of_bigquery_is_waited_out(supervisor: Supervisor, client: Client) -> None:
    supervisor.states, client.away = {"night": {"publish": "failed"}}, 2

    await a_trigger().on_kill()

    assert client.canceled == ["load-0", "publish-0"]
    assert len(supervisor.kept) == 1
