"""The tasks audit and audit_failure: the rows of DAG runs that failed, were repaired, and published, with what they cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift import exits
from nightshift.hooks import warehouse as hook
from nightshift.operators.audit import AuditFailureOperator, AuditOperator
from nightshift.operators.failures import Entry, NightFailed
from nightshift.planner.bills import seal_measured
from nightshift.planner.costs.report import by_job
from nightshift.run.names import RunRef
from nightshift.run.observed import endings, shown
from nightshift.run.observed.endings import Ending
from nightshift.store import StoreUnavailable, list_numbered
from nightshift.triggers.ended import MARKED
from nightshift.warehouse import publications
from nightshift.warehouse.audit import digest
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, Night
from tests.integration.warehouse.test_plan_operator import Planner
from tests.integration.warehouse.test_races import LATER, another_deployment, refused

pytestmark = pytest.mark.integration

TASKS = ("plan", "extract", "infer", "seal", "publish")


class Desk:
    """The tasks of one job, as Airflow would run them: XComs by task and key, and the states of the tasks."""

    def __init__(self, night: Night, prices: Path) -> None:
        self.night = night
        self.settings = replace(night.settings, prices=str(prices))
        self.planner = Planner(night)
        self.xcoms: dict[tuple[str, str], Any] = {}

    def plan(self, dag_run: str, **params: Any) -> RunRef:
        told = self.planner.told(PARTITION, dag_run=dag_run, **params)
        self.xcoms = {("plan", "return_value"): told}
        return RunRef.from_prefix(told["run_prefix"])

    @property
    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = self.xcoms["plan", "return_value"]
        return found

    def fails(self, dag_run: str, task: str, error: str | None = None) -> None:
        """The task audit_failure, after another one has failed for good."""
        if error:
            self.xcoms[task, "error"] = error
        at = TASKS.index(task)
        states = {**dict.fromkeys(TASKS[:at], "success"), task: "failed", **dict.fromkeys(TASKS[at + 1 :], "upstream_failed")}
        self.record(dag_run, states)

    def stopped(self, dag_run: str, task: str, *, at_work: bool = True) -> str:
        """The task audit_failure, after a person has marked the DAG run failed; what it ends with."""
        at = TASKS.index(task)
        states = {**dict.fromkeys(TASKS[:at], "success"), **dict.fromkeys((*TASKS[at:], "audit"), "skipped")}
        for each in TASKS[:at]:
            self.xcoms.setdefault((each, "return_value"), {})
        with pytest.raises(NightFailed) as raised:
            self.record(dag_run, states | ({task: "failed"} if at_work else {}))
        assert raised.value.entry is Entry.STOPPED
        return str(raised.value)

    def record(self, dag_run: str, states: Mapping[str, str]) -> None:
        with DAG("job", schedule=None):
            task = AuditFailureOperator(task_id="audit_failure", spec=self.night.spec.model_dump(mode="json"), tasks=TASKS)
        task.__dict__.update(settings=self.settings, store=self.night.store)
        task.execute(self._context(dag_run, states))

    def compute(self, run: RunRef) -> None:
        """The tasks extract, infer and seal, with a real driver."""
        plan = self.night.extract(run)
        with CannedEngine() as engine:
            prepared = PreparedRun(f"gs://{self.night.settings.bucket}", run, self.night.spec, plan)
            driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_PROFILE": "cpu"})
            assert driver.finish() == exits.DONE, driver.log
        seal_measured(self.night.store, run, self.night.spec, plan)

    def publish(self, dag_run: str) -> None:
        """The tasks publish and audit."""
        self.xcoms["publish", "return_value"] = self.planner.publish(self.told)
        with DAG("job", schedule=None):
            task = AuditOperator(task_id="audit", run_prefix=self.told["run_prefix"], terms=json.dumps(self.told["spec"]))
        task.__dict__.update(settings=self.settings, store=self.night.store)
        task.execute(self._context(dag_run, dict.fromkeys(TASKS, "success")))

    def _context(self, dag_run: str, states: Mapping[str, str]) -> Any:
        ti = SimpleNamespace(
            xcom_pull=lambda task_ids, key="return_value": self.xcoms.get((task_ids, key)),
            get_task_states=lambda dag_id, run_ids: {run_ids[0]: dict(states)} if dag_id == "job" else {},
        )
        began = SimpleNamespace(run_id=dag_run, dag_id="job", start_date=datetime.now(UTC))
        return {"ti": ti, "dag_run": began, "params": {"partition": PARTITION}}

    def endings(self, run: RunRef) -> list[Ending]:
        """All that were recorded, in order."""
        found = []
        for _, path, _ in reversed(list_numbered(self.night.store, run.endings_folder, run.parse_ending)):
            ending = endings._read(bytes(obstore.get(self.night.store, path).bytes()), path)
            assert ending is not None
            found.append(ending)
        return found

    def rows(self) -> list[dict[str, Any]]:
        table = f"{PROJECT}.{self.night.settings.dataset}.audit"
        found = self.night.client.query(f"SELECT * FROM `{table}` ORDER BY failed_at NULLS LAST, published_at").result()
        return [dict(row) for row in found]


@pytest.fixture
def desk(night: Night, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    monkeypatch.setattr(hook, "warehouse_for", lambda _settings, **_: night.warehouse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nmachines: {cpu: {on-demand: 3.6}}\nstorage: {class_a_per_1000: 0, class_b_per_1000: 0}\n")
    tolerant = night.spec.dead_letters.model_copy(update={"tolerate": 5})
    return Desk(replace(night, spec=night.spec.model_copy(update={"dead_letters": tolerant})), prices)


@pytest.mark.gate
def test_the_row_of_a_failed_dag_run_is_about_its_run_and_not_about_a_job_that_was_changed_since(desk: Desk) -> None:
    desk.plan("night")
    before, model = desk.night.spec, desk.night.spec.model
    desk.night = replace(desk.night, spec=before.model_copy(update={"model": model.model_copy(update={"name": "another"})}))

    desk.fails("night", "infer", "JobSet job-1 found no machine")

    (row,) = desk.rows()
    assert row["spec_digest"] == digest(before.semantic())


def test_a_dag_run_that_failed_and_was_repaired_has_both_rows(desk: Desk) -> None:
    run = desk.plan("night")
    for _ in range(2):
        desk.fails("night", "infer", "JobSet job-1 found no machine")
    desk.compute(run)
    desk.publish("night")
    desk.publish("night")
    failed, published = desk.rows()

    assert (failed["state"], failed["failed_task"], failed["error"]) == ("failed", "infer", "JobSet job-1 found no machine")
    assert (failed["run_id"], failed["dag_run_id"], failed["by_dag_run_id"]) == (run.run_id, "night", "night")
    assert (failed["partition_date"], failed["published_at"], failed["predictions"]) == (
        date.fromisoformat(PARTITION),
        None,
        None,
    )
    assert (failed["cost"], failed["machine_seconds"], failed["costs"]) == (0.0, 0.0, None), "nothing had run"
    assert (published["state"], published["failed_task"], published["by_dag_run_id"]) == ("published", None, "night")
    assert published["cost"] == pytest.approx(published["machine_seconds"] * 3.6 / 3600, abs=1e-6)
    assert published["machine_seconds"] > 0
    assert (published["currency"], json.loads(published["costs"])["rungs"][0]["profile"]) == ("EUR", "cpu")
    assert [(each.state, each.task, each.rows_committed) for each in desk.endings(run)] == [
        ("failed", "infer", 0),
        ("published", "", 5),
    ], "a repeat writes no second one"
    opened = datetime.fromisoformat(desk.told["asked_at"])
    assert published["seconds"] == pytest.approx((published["published_at"] - opened).total_seconds())
    assert published["output_tokens"] == 0
    _, total = by_job(desk.night.warehouse.audited(PARTITION, "job"))
    assert (total.runs, total.failed, len(desk.night.warehouse.audited(PARTITION))) == (1, 0, 2)
    assert desk.night.warehouse.audited("2026-12-01") == desk.night.warehouse.audited(PARTITION, "another") == []


def test_what_a_run_that_failed_has_computed_is_priced(desk: Desk) -> None:
    """It was sealed, and could not be published; another DAG run publishes it."""
    run = desk.plan("night")
    desk.compute(run)
    desk.fails("night", "publish")
    desk.plan("repair")
    desk.publish("repair")
    failed, published = desk.rows()

    assert failed["error"].startswith("The task publish ended without saying why")
    assert failed["failed_task"] == "publish"
    assert failed["cost"] == published["cost"] > 0
    assert (published["dag_run_id"], published["by_dag_run_id"]) == ("night", "repair")
    assert by_job(desk.rows())[1].to_json()["cost"] == {"EUR": published["cost"]}, "it was paid for once"


def test_a_row_of_a_failure_is_no_publication(night: Night, storage_client: StorageClient) -> None:
    """Two deployments of one job have runs of the same name, and the audit table stands for publications of releases that kept
    no others. A deployment whose run has failed has published nothing, so it must not replace the other one's rows."""
    night.publish(night.run, night.seal(night.run, ["a", "b"]))
    before = night.shown()
    other = another_deployment(night, storage_client)
    columns = {"run_id": other.run.run_id, "job": "job", "partition_date": PARTITION, "destination": night.destination}
    failure = {"state": "failed", "failed_task": "publish", "by_dag_run_id": "night", "failed_at": LATER}
    other.warehouse.record_audit({**columns, **failure})
    _, ended = refused(other, other.run, other.seal(other.run, ["a", "b"], bias=8.0), LATER)

    assert publications.FOREIGN in str(ended.error)
    assert night.shown() == before


@pytest.mark.parametrize("broken", ["plan.json", "manifest.json", "prices"])
def test_a_dag_run_that_failed_has_a_row_though_what_a_run_left_cannot_be_read(desk: Desk, broken: str) -> None:
    """A plan that contradicts itself fails the task extract for good, and would fail this one too."""
    run = desk.plan("night")
    if broken == "prices":
        Path(desk.settings.prices).write_text("currency: usd")
    else:
        obstore.put(desk.night.store, f"{run.prefix}/{broken}", b'{"version": 99}')
    desk.fails("night", "extract", "it cannot be read")
    (row,) = desk.rows()

    assert (row["run_id"], row["failed_task"], row["error"]) == (run.run_id, "extract", "it cannot be read")
    assert (row["cost"], row["machine_seconds"]) == (None, None)


def test_a_task_plan_that_failed_leaves_a_row_without_a_run(desk: Desk) -> None:
    desk.fails("night", "plan", "source.query: table not found")
    (row,) = desk.rows()

    assert (row["job"], row["run_id"], row["failed_task"]) == ("job", None, "plan")
    assert (row["partition_date"], row["error"]) == (date.fromisoformat(PARTITION), "source.query: table not found")
    assert by_job([row])[1].failed == 1
    assert [meta for meta in obstore.list(desk.night.store).collect() if "/endings/" in meta["path"]] == []


def test_a_failure_whose_ending_cannot_be_written_has_its_row(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise StoreUnavailable("read-only")

    run = desk.plan("night")
    monkeypatch.setattr(endings, "record", refuse)
    desk.fails("night", "infer", "JobSet job-1 found no machine")
    (row,) = desk.rows()

    assert (row["failed_task"], row["error"]) == ("infer", "JobSet job-1 found no machine")
    assert desk.endings(run) == []


def test_another_failure_of_the_same_dag_run_has_a_row_of_its_own(desk: Desk) -> None:
    desk.plan("night")
    desk.fails("night", "extract")
    desk.fails("night", "infer")

    # failed_at is in whole seconds: both may carry the same.
    assert sorted(row["failed_task"] for row in desk.rows()) == ["extract", "infer"]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("at_work", [True, False])
def test_a_dag_run_that_a_person_stopped_has_its_row_and_ends_as_failed(desk: Desk, task: str, at_work: bool) -> None:
    """Its task was at work, or the next one had not begun. That it ends as failed notifies who wants to be."""
    run = None if task == "plan" else desk.plan("night")
    said = desk.stopped("night", task, at_work=at_work)
    (row,) = desk.rows()

    assert said.startswith("A person stopped the night: the DAG run was marked failed before its task")
    assert (row["state"], row["failed_task"], row["error"], row["by_dag_run_id"]) == ("failed", task, said, "night")
    assert row["run_id"] == (run and run.run_id)
    ended = [(each.state, each.task, each.error) for each in desk.endings(run)] if run else []
    assert ended == ([("failed", task, said)] if run else [])


def test_a_task_that_a_person_marked_says_so(desk: Desk) -> None:
    """Its trigger has left the words. The tasks after it could not begin, so the DAG run ends as failed by itself."""
    desk.plan("night")
    desk.fails("night", "infer", MARKED.format("infer"))
    (row,) = desk.rows()

    assert (row["failed_task"], row["error"]) == ("infer", MARKED.format("infer"))


@pytest.mark.parametrize("marked", ["skips itself", "marked successful"])
def test_a_night_that_is_over_for_another_reason_has_no_row(desk: Desk, marked: str) -> None:
    if marked == "skips itself":
        desk.xcoms = {("plan", "skipped"): True}
        states = dict.fromkeys((*TASKS, "audit"), "skipped")
    else:
        desk.plan("night")  # and infer, which was at work, has passed nothing on
        done = {"plan": "success", "extract": "success", "infer": "success"}
        states = {**dict.fromkeys((*TASKS, "audit"), "skipped"), **done}

    with pytest.raises(AirflowSkipException):
        desk.record("night", states)


@pytest.mark.parametrize("state", ["success", "deferred", "running", "queued"])
def test_a_dag_run_that_is_repaired_meanwhile_gets_none(desk: Desk, state: str) -> None:
    with pytest.raises(AirflowSkipException):
        desk.record("night", dict.fromkeys(TASKS, "success") | {"infer": state})


def test_a_publication_is_known_in_the_bucket_before_its_audit_and_whatever_that_does(desk: Desk) -> None:
    run = desk.plan("night")
    desk.compute(run)
    desk.xcoms["publish", "return_value"] = desk.planner.publish(desk.told)
    [published] = desk.endings(run)
    assert (published.state, published.asked_at) == ("published", desk.told["asked_at"])
    assert published.at == desk.xcoms["publish", "return_value"]["published_at"]

    desk.fails("night", "publish", "The night failed after all.")
    found = shown.read(desk.night.store, run)
    assert found is not None
    assert str(shown.places([found])[run.run_id]) == "the table shows it"
    assert [each.state for each in desk.endings(run)] == ["published", "failed"]

    desk.publish("night")
    assert [each.state for each in desk.endings(run)] == ["published", "failed", "published"]
