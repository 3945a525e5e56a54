"""Only the dead letters again: 100 rows of 10,000 are sent, and the partition is whole whenever somebody looks."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from google.cloud import bigquery

from nightshift import exits
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.seal import SealOperator
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef
from nightshift.run.opening import load_run
from nightshift.run.plan import load_plan
from nightshift.warehouse import WarehouseError
from nightshift.warehouse.audit import audit_row
from tests.integration.driver.canned import Behaviour, CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import Night
from tests.integration.warehouse.test_plan_operator import Planner
from tests.integration.warehouse.test_plan_operator import planner as planner

pytestmark = pytest.mark.integration

DAY = "2026-11-22"


@dataclass
class Job:
    """A job on a day of its own, task by task. sent: texts that the engine of the last run has seen. runs: how many.

    worker: variables of the driver's process.
    """

    night: Night
    planner: Planner
    sent: list[str] = field(default_factory=list)
    runs: int = 0
    worker: dict[str, str] = field(default_factory=dict)

    def fill(self, rows: int, bad: range) -> None:
        """Rows of the day; an engine of `refusing` refuses those in `bad`."""
        table = f"{PROJECT}.{self.night.settings.bucket}.source"
        values = [
            {
                "name": f"row {n:05d}",
                "version": n,
                "text": f"{'bad' if n in bad else 'good'} {n:05d}",
                "day": DAY,
                "parts": [],
            }
            for n in range(rows)
        ]
        config = bigquery.LoadJobConfig(schema=self.night.client.get_table(table).schema)
        self.night.client.load_table_from_json(values, table, job_config=config).result()

    def run(self, behaviour: Behaviour | None = None, *, dag_run: str | None = None, **params: Any) -> dict[str, Any]:
        """plan, extract, infer and seal; what the task plan tells. dag_run: its id, by default a new one."""
        told = self.prepare(dag_run=dag_run, **params)
        self.compute(RunRef.from_prefix(told["run_prefix"]), behaviour)
        self.task(SealOperator, told).execute({})
        return told

    def prepare(self, *, dag_run: str | None = None, **params: Any) -> dict[str, Any]:
        """plan and extract."""
        self.runs += 1
        told = self.planner.told(DAY, dag_run=dag_run or f"run {self.runs}", **params)
        run = RunRef.from_prefix(told["run_prefix"])
        if params.get("redo"):
            assert self.task(ExtractOperator, told, decision=told["decision"]).execute({})["rows"] > 0
        else:
            self.planner.extract(run)
        return told

    def compute(self, run: RunRef, behaviour: Behaviour | None = None) -> None:
        """infer."""
        plan = load_plan(self.night.store, run)
        assert plan is not None
        prepared = PreparedRun(f"gs://{self.night.settings.bucket}", run, self.night.spec, plan)
        with CannedEngine(behaviour) as engine:
            driver = DriverProcess(prepared, engine.url, extra=self.worker)
            assert driver.finish() == exits.DONE, driver.log
            self.sent = engine.seen

    def task(self, kind: type[Any], told: dict[str, Any], **options: Any) -> Any:
        with DAG("job", schedule=None):
            task = kind(task_id="task", run_prefix=told["run_prefix"], terms=json.dumps(told["spec"]), **options)
        quiet = SimpleNamespace(info=lambda *_: None, warning=lambda *_: None)
        task.__dict__.update(settings=self.night.settings, store=self.night.store, _cached_logger=quiet)
        return task

    def shown(self) -> dict[str, int]:
        """Predictions of the day, by run."""
        sql = (
            f"SELECT nightshift_run_id, COUNT(*) FROM `{self.night.destination}` WHERE snapshot_date = DATE '{DAY}' GROUP BY 1"
        )
        return dict(self.night.rows(sql))

    def audit(self, told: dict[str, Any], published: dict[str, Any]) -> dict[str, Any]:
        run = RunRef.from_prefix(told["run_prefix"])
        plan, manifest = load_plan(self.night.store, run), load_manifest(self.night.store, run)
        assert plan is not None
        assert manifest is not None
        record = load_run(self.night.store, run)[1]
        return audit_row(self.night.spec, run, plan, manifest, published, dag_run_id=record.opened_by)


@pytest.fixture
def job(night: Night, planner: Planner) -> Job:
    night.spec = night.spec.model_copy(update={"dead_letters": night.spec.dead_letters.model_copy(update={"tolerate": "50%"})})
    return Job(night, planner)


def refusing(*words: str) -> Behaviour:
    """Refuses a request with a text that begins with one of these words."""

    async def behave(texts: list[str]) -> web.StreamResponse | None:
        if any(text.startswith(words) for text in texts):
            return web.json_response({"error": {"message": "no"}}, status=400)
        return None

    return behave


def failing(*words: str) -> Behaviour:
    """The engine's own error for a request with a text that begins with one of these words."""

    async def behave(texts: list[str]) -> web.StreamResponse | None:
        return web.json_response({"error": "broken"}, status=500) if any(text.startswith(words) for text in texts) else None

    return behave


class Reader(threading.Thread):
    """Counts the predictions of the day, again and again."""

    def __init__(self, job: Job) -> None:
        super().__init__(daemon=True)
        self.seen: list[int] = []
        self._job = job
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            self.seen.append(sum(self._job.shown().values()))
            time.sleep(0.01)

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def test_a_hundred_dead_letters_of_ten_thousand_rows(job: Job) -> None:
    job.fill(10_000, bad=range(3_000, 3_100))
    first = job.run(refusing("bad"))
    job.planner.publish(first)
    assert job.shown() == {first["run_id"]: 9_900}

    with Reader(job) as reader:
        second = job.run(redo="dead_letters")
        published = job.planner.publish(second)
        seen = len(reader.seen)
        while len(reader.seen) < seen + 3:
            assert reader.is_alive()
            time.sleep(0.01)

    assert sorted(job.sent) == [f"bad {n:05d}" for n in range(3_000, 3_100)], "these rows, each once"
    assert set(reader.seen) == {9_900, 10_000}, "whole at every instant"
    assert job.shown() == {first["run_id"]: 9_900, second["run_id"]: 100}
    names = job.night.rows(f"SELECT COUNT(DISTINCT name), COUNT(DISTINCT version) FROM `{job.night.destination}`")
    assert names == [(10_000, 10_000)]
    assert job.night.dead_letters() == []
    assert {name: published[name] for name in ("rows", "predictions", "dead_letters")} == {
        "rows": 10_000,
        "predictions": 10_000,
        "dead_letters": 0,
    }
    row = job.audit(second, published)
    job.night.warehouse.record_audit(row)
    assert (row["completes"], row["input_rows"], row["dead_letters"]) == (first["run_id"], 10_000, 0)
    assert job.night.tables() == {"audit", "dead_letters", "publications"}


def test_what_is_still_dead_is_redone_again_and_shown_again_by_its_id(job: Job) -> None:
    job.fill(40, bad=range(5, 15))
    first = job.run(refusing("bad"))
    job.planner.publish(first)
    second = job.run(refusing("bad 00005", "bad 00006", "bad 00007"), redo="dead_letters")
    job.planner.publish(second)
    assert job.shown() == {first["run_id"]: 30, second["run_id"]: 7}
    assert [row[2] for row in job.night.dead_letters()] == [second["run_id"]] * 3
    before = sorted(job.night.shown(DAY)), job.night.dead_letters()

    third = job.planner.told(DAY, dag_run="third", redo="dead_letters")
    assert third["rows"] == 3
    again = job.planner.told(DAY, dag_run="again", republish=first["run_id"])
    job.planner.publish(again)
    assert job.shown() == {first["run_id"]: 30}
    with pytest.raises(AirflowFailException, match=f"shows run {first['run_id']}"):
        job.planner.publish(second)  # A retry of what was replaced since.
    job.planner.publish(job.planner.told(DAY, dag_run="once more", republish=second["run_id"]))

    assert (sorted(job.night.shown(DAY)), job.night.dead_letters()) == before


def test_rows_that_all_fail_again_are_dead_letters_still(job: Job) -> None:
    """More of them than an engine is trusted with that answers nobody: a row of the earlier run shows that it answers."""
    job.fill(40, bad=range(5, 17))
    first = job.run(failing("bad"))
    job.planner.publish(first)

    second = job.run(failing("bad"), redo="dead_letters")
    job.planner.publish(second)

    assert job.shown() == {first["run_id"]: 28}
    dead = job.night.rows(f"SELECT run_id, reason FROM `{PROJECT}.{job.night.settings.dataset}.dead_letters`")
    assert dead == [(second["run_id"], "engine_error")] * 12


def test_a_partition_without_dead_letters_is_skipped(job: Job) -> None:
    job.fill(4, bad=range(0))
    told = job.run()
    job.planner.publish(told)

    with pytest.raises(AirflowSkipException, match="there is nothing to compute again"):
        job.planner.told(DAY, dag_run="redo", redo="dead_letters")


def test_a_day_that_shows_nothing_is_refused(job: Job) -> None:
    with pytest.raises(AirflowFailException, match="shows no run of job"):
        job.planner.told(DAY, redo="dead_letters")


def test_a_publication_that_stops_in_the_middle_changes_nothing(job: Job) -> None:
    """What was staged is not what was sealed: the transaction never begins, and the next try is whole."""
    job.fill(40, bad=range(5, 15))
    first = job.run(refusing("bad"))
    job.planner.publish(first)
    second = job.run(redo="dead_letters")
    run = RunRef.from_prefix(second["run_prefix"])
    manifest = load_manifest(job.night.store, run)
    earlier = load_manifest(job.night.store, RunRef.from_prefix(first["run_prefix"]))
    assert manifest is not None
    assert earlier is not None
    lie = replace(manifest, earlier=(replace(earlier, predictions=29),))
    job.night.staged(run, lie, asked_at=second["asked_at"])
    failed = job.night.finished(job.night.replace_partition(run, lie, asked_at=second["asked_at"]))

    assert "number of staged predictions differs" in str(failed.error)
    assert job.shown() == {first["run_id"]: 30}
    with pytest.raises(WarehouseError, match="does not show run"):
        job.night.verify(run, replace(manifest, earlier=(earlier,)), asked_at=second["asked_at"])
    job.planner.publish(second)
    assert job.shown() == {first["run_id"]: 30, second["run_id"]: 10}


def test_a_redo_does_not_replace_what_was_published_since_the_run_that_it_completes(job: Job) -> None:
    """A fresh run was under way. The redo was asked for later, but of it the partition shows nothing any more."""
    job.fill(40, bad=range(5, 15))
    first = job.run(refusing("bad"))
    job.planner.publish(first)
    fresh = job.run(refusing("bad 00005"), fresh=True)
    second = job.run(refusing("bad"), redo="dead_letters")
    job.planner.publish(fresh)

    with pytest.raises(AirflowFailException, match=f"shows run {fresh['run_id']}.* a redo of run {first['run_id']}"):
        job.planner.publish(second)
    assert job.shown() == {fresh["run_id"]: 39}
    with pytest.raises(AirflowFailException, match="trigger the DAG with redo"):
        job.planner.told(DAY, dag_run="the next night")
    job.planner.publish(job.planner.told(DAY, dag_run="a person", republish=second["run_id"]))

    assert job.shown() == {first["run_id"]: 30}, "a person may ask for it"


def test_a_redo_is_shown_in_another_table_which_stays_its_jobs_own(job: Job) -> None:
    """The table that the job has by now has never shown the run that the redo completes."""
    job.fill(10, bad=range(3))
    first = job.run(refusing("bad"))
    job.planner.publish(first)
    second = job.run(refusing("bad 00000"), redo="dead_letters")
    job.planner.publish(second)
    moved = job.night.spec.destination.model_copy(update={"table": f"{job.night.settings.bucket}.moved"})
    job.night.spec = job.night.spec.model_copy(update={"destination": moved})

    job.planner.publish(job.planner.told(DAY, dag_run="moved", republish=second["run_id"]))
    assert job.shown() == {first["run_id"]: 7, second["run_id"]: 2}
    third = job.run(redo="dead_letters")
    job.planner.publish(third)

    assert job.shown() == {first["run_id"]: 7, second["run_id"]: 2, third["run_id"]: 1}
