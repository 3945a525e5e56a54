"""The demo's patience with a stack whose parts die, and its choice of the DAG run to follow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import requests
from obstore.store import MemoryStore

from local.demo import night
from local.demo.airflow_api import AirflowApi
from local.stack import StackDown
from nightshift.store import StoreUnavailable

pytestmark = pytest.mark.unit

DAY = "2026-11-20"
BEGAN = datetime(2026, 11, 21, 9, tzinfo=UTC)
BEFORE, AFTER = "2026-11-21T08:59:59Z", "2026-11-21T09:00:01.5Z"


def refused(status: int) -> requests.HTTPError:
    reply = requests.Response()
    reply.status_code = status
    return requests.HTTPError("no", response=reply)


class Airflow(AirflowApi):
    """Answers from a list of DAG runs; each of `troubles` is raised once before."""

    def __init__(self, runs: list[dict[str, Any]], troubles: list[Exception] | None = None) -> None:
        super().__init__("http://127.0.0.1:1", "admin", "no")
        self.triggered: list[dict[str, Any]] = []
        self._runs = runs
        self._troubles = troubles or []

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._troubles:
            raise self._troubles.pop(0)
        if method == "POST":
            self.triggered.append(body or {})
            self._runs.append({"dag_run_id": (body or {})["dag_run_id"], "state": "failed"})
            return {}
        if path.endswith("limit=100"):
            return {"dag_runs": list(self._runs)}
        return {"task_instances": []} if path.endswith("taskInstances") else {"state": "failed"}


def spend(airflow: Airflow, *, fresh: bool = False, up: bool = True) -> None:
    def still_up() -> None:
        if not up:
            raise StackDown("no stack is up")

    night.spend(airflow, MemoryStore(), "job", DAY, fresh=fresh, since=BEGAN, say=lambda _: None, still_up=still_up)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "POLL_S", 0.0)


@pytest.mark.parametrize(
    ("run", "fresh", "followed"),
    [
        ({"state": "running", "conf": {"partition": DAY}}, False, True),
        ({"state": "queued", "conf": {"partition": DAY, "fresh": True}}, False, True),
        ({"state": "running", "conf": {"partition": DAY, "fresh": True}}, True, True),
        ({"state": "running", "conf": {"partition": DAY, "fresh": False}}, True, False),
        ({"state": "running", "conf": {"partition": "2026-11-19"}}, False, False),
        ({"state": "success", "end_date": BEFORE, "conf": {"partition": DAY}}, False, False),
        ({"state": "success", "end_date": AFTER, "conf": {"partition": DAY}}, False, True),
        ({"state": "success", "end_date": AFTER, "conf": {"partition": DAY}}, True, False),
        ({"state": "failed", "end_date": AFTER, "conf": {"partition": DAY}}, False, False),
        ({"state": "running", "conf": None}, False, False),
    ],
)
def test_an_interrupted_night_is_gone_on_with(run: dict[str, Any], fresh: bool, followed: bool) -> None:
    airflow = Airflow([{"dag_run_id": "earlier", **run}])

    with pytest.raises(night.NightFailed, match="the DAG run failed"):
        spend(airflow, fresh=fresh)

    assert [body["conf"] for body in airflow.triggered] == ([] if followed else [{"partition": DAY, "fresh": fresh}])


@pytest.mark.parametrize(
    "trouble", [requests.ConnectionError("away"), StoreUnavailable("away"), ConnectionResetError("away"), refused(503)]
)
def test_a_part_that_comes_back_is_waited_for(trouble: Exception) -> None:
    airflow = Airflow([], [trouble] * 3)

    with pytest.raises(night.NightFailed, match="the DAG run failed"):
        spend(airflow)
    assert len(airflow.triggered) == 1


def test_a_stack_that_was_stopped_is_not_waited_for() -> None:
    with pytest.raises(StackDown):
        spend(Airflow([], [requests.ConnectionError("away")]), up=False)


def test_a_refusal_is_not_repeated() -> None:
    with pytest.raises(requests.HTTPError):
        spend(Airflow([], [refused(400)]))


def test_a_part_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(night, "UNREACHABLE_S", 0.0)

    with pytest.raises(night.NightFailed, match="has not answered"):
        spend(Airflow([], [requests.ConnectionError("away")] * 1000))
