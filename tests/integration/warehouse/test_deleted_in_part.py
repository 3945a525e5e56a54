"""A run of which a part was deleted, then its day triggered: the tasks, BigQuery's emulator, and real drivers.

`tests/simulation/deleting.py` says what may come of it, and tries every subset on a bucket in memory.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from google.cloud import bigquery

from nightshift import exits
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.infer import InferOperator
from nightshift.operators.publish import PublishOperator
from nightshift.operators.seal import SealOperator
from nightshift.run.names import RunRef
from nightshift.run.opening import load_run
from nightshift.run.plan import load_plan
from tests.integration.driver.canned import Behaviour, CannedEngine, vector_of
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import Night
from tests.integration.warehouse.test_plan_operator import Planner
from tests.integration.warehouse.test_plan_operator import planner as planner
from tests.integration.warehouse.test_redo_night import refusing

pytestmark = pytest.mark.integration

DAY = "2026-11-22"
ROWS = 12
SEEDS = range(60)
OBJECTS = 11
"""That a night leaves, and one or two marks more on a slow machine."""
TRIGGERS = ("plain", "fresh", "republish", "redo")


@dataclass
class Days:
    """DAG runs of one job and day. runs: how many there were."""

    night: Night
    planner: Planner
    runs: int = 0
    behaviour: Behaviour | None = field(default_factory=lambda: refusing("bad"))

    def fill(self, word: str, first: int, rows: int = ROWS) -> None:
        """Replaces the rows of the day: their texts have this word, and the keys begin with `first`."""
        table = f"{PROJECT}.{self.night.settings.bucket}.source"
        self.night.rows(f"DELETE FROM `{table}` WHERE day = DATE '{DAY}'")
        values = [
            {"name": f"row {n:03d}", "version": n, "text": f"{'bad' if n == 5 else 'good'} {word} {n}", "day": DAY, "parts": []}
            for n in range(first, first + rows)
        ]
        config = bigquery.LoadJobConfig(schema=self.night.client.get_table(table).schema)
        self.night.client.load_table_from_json(values, table, job_config=config).result()

    def trigger(self, **params: Any) -> RunRef:
        """All tasks of a DAG run. Raises AirflowFailException as they do."""
        self.runs += 1
        told = self.planner.told(DAY, dag_run=f"run {self.runs}", **params)
        run = RunRef.from_prefix(told["run_prefix"])
        self._task(ExtractOperator, told, decision=told["decision"] or "").execute({})
        infer = self._task(InferOperator, told)
        infer.__dict__.update(run_jobset=lambda _context: self._work(run), drop_jobsets=lambda _context: None)
        infer.execute({})
        self._task(SealOperator, told).execute({})
        publish = self._task(PublishOperator, told, asked_at=told["asked_at"])
        publish.__dict__["warehouse"] = self.night.warehouse
        publish.execute({"outlet_events": {}, "dag_run": SimpleNamespace(run_id="night")})
        return run

    def _work(self, run: RunRef) -> dict[str, Any]:
        plan = load_plan(self.night.store, run)
        assert plan is not None
        with CannedEngine(self.behaviour) as engine:
            driver = DriverProcess(PreparedRun(f"gs://{self.night.settings.bucket}", run, self.night.spec, plan), engine.url)
            if driver.finish() != exits.DONE:
                raise AirflowFailException(f"the driver has ended: {driver.log}")
        return {"jobset": "job"}

    def _task(self, kind: type[Any], told: dict[str, Any], **options: Any) -> Any:
        with DAG("job", schedule=None):
            task = kind(task_id="task", run_prefix=told["run_prefix"], terms=json.dumps(told["spec"]), **options)
        quiet = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning"), lambda *_: None))
        task.__dict__.update(settings=self.night.settings, store=self.night.store, _cached_logger=quiet)
        return task

    def shown(self) -> dict[str, list[float]]:
        """The vectors of the day, by name; no name stands there twice."""
        sql = f"SELECT name, vector FROM `{self.night.destination}` WHERE snapshot_date = DATE '{DAY}' ORDER BY name"
        rows = self.night.rows(sql)
        found = {name: list(vector) for name, vector in rows}
        assert len(found) == len(rows)
        return found

    def paths(self) -> list[str]:
        """Everything that the job has in the bucket, but for the uids in its names in a fixed order."""
        found = [meta["path"] for page in obstore.list(self.night.store) for meta in page]
        return sorted(path for path in found if not path.startswith("_speeds/"))


def expected(word: str, first: int, *, repaired: bool, rows: int = ROWS) -> dict[str, list[float]]:
    numbers = [n for n in range(first, first + rows) if repaired or n != 5]
    return {f"row {n:03d}": vector_of(f"{'bad' if n == 5 else 'good'} {word} {n}") for n in numbers}


@pytest.fixture
def days(night: Night, planner: Planner) -> Days:
    tolerant = night.spec.dead_letters.model_copy(update={"tolerate": "50%"})
    compute = night.spec.compute.model_copy(update={"workers": 1})
    night.spec = night.spec.model_copy(update={"dead_letters": tolerant, "chunk_rows": 4, "compute": compute})
    return Days(night, planner)


def after(days: Days, gone: Sequence[int], trigger: str) -> None:
    """As `tests.simulation.deleting.after`."""
    days.fill("old", 0)
    first = days.trigger()
    before = days.shown()
    assert before == expected("old", 0, repaired=False)
    paths = days.paths()
    for number in gone:
        obstore.delete(days.night.store, paths[number % len(paths)])
    days.fill("new", 4)
    days.behaviour = None
    asked: dict[str, Any] = {"fresh": True, "republish": first.run_id, "redo": "dead_letters"}
    refusal = ""
    try:
        run = days.trigger(**{name: value for name, value in asked.items() if name == trigger})
    except AirflowFailException as error:
        refusal = str(error)
    if refusal:
        assert trigger != "fresh", refusal
        assert "fresh" in refusal, "it says what to do"
        assert days.shown() == before, "the table stays as it was"
        days.trigger(fresh=True)
        assert days.shown() == expected("new", 4, repaired=True)
        return
    old = [expected("old", 0, repaired=repaired) for repaired in (False, True)]
    new = expected("new", 4, repaired=True)
    if trigger == "redo":
        wanted = [old[1]]
    elif trigger == "fresh" or run != first:
        wanted = [new]
    else:
        # Planned again, if the export was gone, too.
        wanted = old if exported_once(days, run) else [*old, new]
    assert days.shown() in wanted, [paths[number % len(paths)] for number in gone]


def exported_once(days: Days, run: RunRef) -> bool:
    return not any(
        meta["path"].startswith(f"{run.inputs_folder}/1-") for page in obstore.list(days.night.store) for meta in page
    )


@pytest.mark.gate
def test_spec_plan_inputs_and_a_chunk_are_gone(days: Days) -> None:
    """The finding: what is oldest goes first, and the same number of other rows are in the source."""
    days.fill("old", 0)
    first = days.trigger()
    for path in days.paths():
        if path.startswith(first.prefix) or path.endswith("chunk-00000001.parquet"):
            obstore.delete(days.night.store, path)
    days.fill("new", 4)
    days.behaviour = None

    again = days.trigger()

    assert again == first, "everything that Airflow wrote is gone"
    assert load_run(days.night.store, again)[1].opened_by == "run 2"
    assert days.shown() == expected("new", 4, repaired=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_subset_is_gone(days: Days, seed: int) -> None:
    """The first ones: each object alone."""
    rng = random.Random(seed)
    gone = [seed] if seed < OBJECTS else [number for number in range(OBJECTS) if rng.random() < 0.5]

    after(days, gone, rng.choice(TRIGGERS))
