"""The doctor's task: it waits in the triggerer, then asks everything, and fails if something is wrong."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from obstore.store import MemoryStore

import nightshift.store
from nightshift import __version__
from nightshift.doctor.findings import Failed, Finding, Ok
from nightshift.hooks import deployment
from nightshift.hooks.deployment import Deployment
from nightshift.operators.doctor import TRIGGERER_LIMIT, DoctorOperator
from nightshift.operators.orphans import orphans
from nightshift.settings import Settings
from nightshift.triggers import night_gauges
from nightshift.triggers.doctor import DoctorTrigger
from tests.google_deployment import healthy
from tests.unit.doctor.fakes import FakeConnections, google, on

pytestmark = pytest.mark.unit

JOBS = Path(__file__).parents[3] / "dags/jobs"
CONTEXT: Any = {}


@pytest.fixture(autouse=True)
def _deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BUCKET": "runs", "PROJECT": "acme", "LOCATION": "EU"}.items():
        monkeypatch.setenv(f"NIGHTSHIFT_{name}", value)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    memory = MemoryStore()
    monkeypatch.setattr("nightshift.store.open_store", lambda _, credentials: memory)


def connected(monkeypatch: pytest.MonkeyPatch, fakes: FakeConnections | None = None) -> None:
    monkeypatch.setattr(deployment, "Deployment", lambda _: fakes or FakeConnections())


def states(report: dict[str, Any]) -> dict[str, str]:
    return {each["check"]: each["state"] for each in report["checks"]}


async def fired() -> dict[str, Any]:
    [event] = [event.payload async for event in DoctorTrigger(seconds=0).run()]
    return dict(event)


def test_it_waits_in_the_triggerer_first() -> None:
    with pytest.raises(TaskDeferred) as caught:
        DoctorOperator(task_id="examine").execute(CONTEXT)

    assert isinstance(caught.value.trigger, DoctorTrigger)
    assert caught.value.timeout == TRIGGERER_LIMIT


async def test_it_goes_on_with_the_triggerers_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch)
    event = await fired()
    assert event == {"version": 1, "nightshift": __version__, "settings": asdict(Settings.from_environment())}

    report = DoctorOperator(task_id="examine").resume_execution("on_triggerer", {"event": event}, CONTEXT)

    assert report["exit_code"] == 0
    assert states(report)["triggerer"] == "ok"
    assert states(report)["query"] == "skipped"


async def test_a_job_is_asked_about_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch)
    task = DoctorOperator(task_id="examine", job="package-embeddings", jobs_folder=str(JOBS))

    report = task.resume_execution("on_triggerer", {"event": await fired()}, CONTEXT)

    assert states(report)["job"] == states(report)["query"] == "ok"


async def test_a_stream_is_asked_about_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    made = healthy(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    connected(monkeypatch, on(made.state))
    streams = made.stream_file.parent
    task = DoctorOperator(task_id="examine", job="texts", jobs_folder=str(JOBS), streams_folder=str(streams))

    report = task.resume_execution("on_triggerer", {"event": await fired()}, CONTEXT)

    assert (states(report)["stream"], states(report)["subscription"], states(report)["gateway"]) == ("ok", "ok", "ok")


async def test_settings_that_the_triggerer_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch)
    monkeypatch.delenv("NIGHTSHIFT_BUCKET")
    event = await fired()
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    assert event["settings"] is None

    with pytest.raises(AirflowFailException, match=r"Not ready for a night: triggerer\."):
        DoctorOperator(task_id="examine").resume_execution("on_triggerer", {"event": event}, CONTEXT)


@pytest.mark.parametrize("error", ["Trigger failure", "Trigger timeout"])
def test_a_triggerer_without_nightshift_hides_nothing_else(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow resumes the task only to let it fail."""
    connected(monkeypatch, FakeConnections(account=google(bucket=404)))
    failed = {"error": error, "traceback": ["ModuleNotFoundError: No module named 'nightshift'"]}

    with pytest.raises(AirflowFailException, match=r"Not ready for a night: triggerer, bucket, "):
        DoctorOperator(task_id="examine").resume_execution("__fail__", failed, CONTEXT)


@pytest.mark.parametrize(("account", "failed"), [({}, False), ({"bucket": 404}, True)])
async def test_how_many_checks_failed_goes_to_airflows_metrics(
    account: dict[str, int], failed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, float] = {}
    monkeypatch.setattr(
        night_gauges, "_stats", lambda: SimpleNamespace(gauge=lambda name, value, tags: sent.update({name: value}))
    )
    connected(monkeypatch, FakeConnections(account=google(**account)))

    with contextlib.suppress(AirflowFailException):
        DoctorOperator(task_id="examine").resume_execution("on_triggerer", {"event": await fired()}, CONTEXT)

    assert list(sent) == ["nightshift.checks.failed"]
    assert bool(sent["nightshift.checks.failed"]) is failed


class TestRunsWhoseJobFileIsGone:
    """They wait for ever in Airflow, which looks at them no more."""

    @pytest.fixture
    def running(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        """DAG runs that are not over, as Airflow counts them."""
        counts: dict[str, int] = {}

        def count(dag_id: str, states: list[str]) -> int:
            assert states == ["queued", "running"]
            return counts.get(dag_id, 0)

        monkeypatch.setattr(RuntimeTaskInstance, "get_dr_count", staticmethod(count))
        return counts

    def found(self, *folders: str) -> list[Finding]:
        store = nightshift.store.open_store("gs://runs", credentials=None)
        for name in folders:
            obstore.put(store, f"{name}/2026-11-20/0123456789abcdef/spec.json", b"{}")
        return orphans(Settings("runs", "acme"), None, JOBS)  # type: ignore[arg-type]

    def test_they_are_told_with_what_to_do(self, running: dict[str, int]) -> None:
        running.update({"renamed": 2, "package-embeddings": 1, "_workers": 1, "over": 0})

        (problem,) = self.found("renamed", "package-embeddings", "_workers/x", "over")

        assert isinstance(problem, Failed)
        assert problem.problem.startswith("not over: 2 DAG runs of renamed, and no good file in ")
        assert problem.fix.startswith("airflow dags delete renamed ")

    def test_none(self, running: dict[str, int]) -> None:
        assert self.found("retired", "package-embeddings") == [Ok("runs without a job file", "none")]

    async def test_the_task_fails_with_them(self, running: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
        connected(monkeypatch)
        self.found("renamed")
        running["renamed"] = 1
        task = DoctorOperator(task_id="examine", jobs_folder=str(JOBS))

        with pytest.raises(AirflowFailException, match="Not ready for a night: runs without a job file"):
            task.resume_execution("on_triggerer", {"event": await fired()}, CONTEXT)


def test_what_airflow_says_of_itself() -> None:
    """The real one of this environment, where nightshift is not installed as a package."""
    seen = Deployment(Settings("runs", "acme")).components()

    assert seen.airflow.startswith("3.")
    assert "apache-airflow-providers-google" in seen.providers
