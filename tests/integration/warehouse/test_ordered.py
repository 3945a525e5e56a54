"""Rows that are planned in an order: the same rows, with neighbours that share a beginning, whatever is repeated."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import UTC, datetime
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow.parquet as pq
import pytest
import requests
from airflow.sdk import DAG

from nightshift.hooks import warehouse as hook
from nightshift.operators.extract import ExtractOperator
from nightshift.operators.plan import PlanOperator
from nightshift.planner import order as planner_order
from nightshift.run.names import RunRef
from nightshift.run.order import Order
from nightshift.run.plan import Plan, load_plan
from nightshift.spec import JobSpec
from nightshift.warehouse import WarehouseError
from tests.integration.warehouse.conftest import PARTITION, Night

pytestmark = pytest.mark.integration

ROWS = 240
PREFIXES = 12


class Tasks:
    """Executes plan and extract; `log` is what they said."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.log: list[str] = []

    def plan(self, opener: str = "first", **params: Any) -> dict[str, Any]:
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec=self.night.spec.model_dump(mode="json"))
        began = SimpleNamespace(run_id=opener, run_type="manual", start_date=datetime.now(UTC))
        context: Any = {"params": {"partition": PARTITION, **params}, "dag_run": began}
        told: dict[str, Any] = self._ready(task).execute(context)
        return told

    def extract(self, told: dict[str, Any]) -> Plan:
        with DAG("job", schedule=None):
            task = ExtractOperator(
                task_id="extract", run_prefix=told["run_prefix"], terms=json.dumps(told["spec"]), decision=told["decision"]
            )
        context: Any = {}
        self._ready(task).execute(context)
        plan = load_plan(self.night.store, RunRef.from_prefix(told["run_prefix"]))
        assert plan is not None
        return plan

    def planned(self, opener: str = "first", **params: Any) -> Plan:
        return self.extract(self.plan(opener, **params))

    def _ready(self, task: Any) -> Any:
        said = SimpleNamespace(**dict.fromkeys(("info", "warning"), lambda text, *args: self.log.append(text % args)))
        task.__dict__.update(settings=self.night.settings, store=self.night.store, _cached_logger=said)
        return task

    def order_by(self, order: Any) -> None:
        source = self.night.spec.source.model_copy(update={"order": order})
        self.night.spec = self.night.spec.model_copy(update={"source": source})

    def rows(self, plan: Plan) -> list[dict[str, Any]]:
        """In the order of their ordinals."""
        found: list[dict[str, Any]] = []
        run = f"{self.night.spec.job}/{PARTITION}/{plan.run_id}"
        for file in plan.files:
            body = bytes(obstore.get(self.night.store, f"{run}/{file.path}").bytes())
            found += pq.read_table(io.BytesIO(body)).to_pylist()
        return found


@pytest.fixture
def tasks(night: Night, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    """A partition of shuffled rows that share a few beginnings, with buckets of a few dozen rows."""
    monkeypatch.setattr(hook, "warehouse_for", lambda _settings, **_: night.warehouse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(planner_order, "BUCKET_ROWS", ROWS // 5)
    night.rows(f"DELETE FROM `{night.settings.bucket}.source` WHERE TRUE")
    night.rows(
        f"INSERT INTO `{night.settings.bucket}.source` (name, version, text, day, parts) "
        f"SELECT CONCAT('prefix ', CAST(MOD(x * 7919, {PREFIXES}) AS STRING)), x, REPEAT('y', MOD(x * 31, 50)), "
        f"DATE '{PARTITION}', ['a', CAST(MOD(x, 2) AS STRING)] FROM UNNEST(GENERATE_ARRAY(1, {ROWS})) AS x"
    )
    return Tasks(night)


def runs_of(rows: list[dict[str, Any]], column: str) -> list[Any]:
    """The values of a column, neighbours of one value as one."""
    return [value for value, _ in groupby(rows, key=lambda row: row[column])]


@pytest.mark.gate
def test_rows_of_one_beginning_are_neighbours_and_every_row_is_there_once(tasks: Tasks) -> None:
    plain = tasks.rows(tasks.planned())
    tasks.order_by(("name",))
    plan = tasks.planned("second", fresh=True)
    found = tasks.rows(plan)

    assert Counter(map(repr, found)) == Counter(map(repr, plain))
    assert len(runs_of(plain, "name")) > ROWS // 2
    assert len(runs_of(found, "name")) == PREFIXES
    assert plan.order is not None
    assert (plan.order.columns, plan.order.buckets, plan.order.spread) == (("name",), 5, 1)
    assert plan.reasons[1:3].count("ordered by name (source.order)") == 1
    buckets = [file.path.split("-part-")[1].split("-")[0] for file in plan.files]
    assert buckets == sorted(buckets)
    assert len(set(buckets)) > 1
    for _, group in groupby(found, key=lambda row: row["name"]):
        lengths = [len(row["text"]) for row in group]
        assert lengths == sorted(lengths), "rows of similar length are neighbours"


def test_an_array_is_sorted_as_json_and_few_rows_are_one_bucket(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_order, "BUCKET_ROWS", ROWS)
    tasks.order_by(("parts", "name"))
    plan = tasks.planned()
    rows = tasks.rows(plan)

    assert len(rows) == ROWS
    assert [value[1] for value in runs_of(rows, "parts")] == ["0", "1"]
    assert len(runs_of(rows, "name")) <= 2 * PREFIXES
    assert plan.order is not None
    assert plan.order.buckets == 1


@pytest.mark.gate
def test_a_clear_and_a_changed_order_keep_the_ordinals_of_an_open_run(tasks: Tasks) -> None:
    told = tasks.plan()
    first = tasks.extract(told)
    assert tasks.extract(told) == first
    tasks.order_by(("name",))
    again = tasks.plan("second")

    assert again["run_prefix"] == told["run_prefix"], "the order is no part of a run's name"
    assert (again["decision"], tasks.extract({**again, "decision": told["decision"]})) == (None, first)


def test_an_export_that_was_begun_in_another_order_is_used_and_the_plan_says_so(tasks: Tasks) -> None:
    tasks.order_by(("parts",))
    told = tasks.plan()
    night = tasks.night
    decided = tasks.plan("second")["decision"]
    assert decided == told["decision"]
    order = Order(("parts",), 1, 1)
    run = RunRef.from_prefix(told["run_prefix"])
    night.succeed(night.warehouse.start_extract(night.spec, run, order=order))
    tasks.order_by(("name",))
    plan = tasks.planned("third")

    assert plan.order is not None
    assert plan.order.columns == ("parts",)
    assert "as another DAG run of this run had begun" in plan.order.why


@pytest.mark.gate
@pytest.mark.parametrize("rows_of_a_bucket", [ROWS // 5, ROWS * 2])
def test_what_only_a_plain_export_can_do_falls_back_to_it(
    tasks: Tasks, rows_of_a_bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column without a name: no temporary table takes it, and a plain export calls it f0_."""
    monkeypatch.setattr(planner_order, "BUCKET_ROWS", rows_of_a_bucket)
    source = tasks.night.spec.source
    unnamed = source.model_copy(update={"query": source.query.replace("SELECT ", "SELECT UPPER(name), ", 1)})
    tasks.night.spec = tasks.night.spec.model_copy(update={"source": unnamed})
    tasks.order_by(("name",))

    plan = tasks.extract(tasks.plan())

    assert plan.order is not None
    assert (plan.rows, plan.order.columns) == (ROWS, () if rows_of_a_bucket < ROWS else ("name",))
    assert len({(row["name"], row["version"]) for row in tasks.rows(plan)}) == ROWS


@pytest.mark.gate
def test_rows_that_bigquery_cannot_sort_are_exported_without_an_order(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_order, "BUCKET_ROWS", ROWS)
    url = tasks.night.client._connection.API_BASE_URL
    requests.put(f"{url}/limits/{tasks.night.settings.bucket}", json={"rows_sorted": 10}, timeout=60).raise_for_status()
    tasks.order_by(("name",))
    plan = tasks.planned()

    assert len(tasks.rows(plan)) == ROWS
    assert {file.path.split("-part-")[0] for file in plan.files} == {"inputs/1"}, "the second attempt"
    assert plan.order is not None
    assert (plan.order.columns, plan.order.buckets) == ((), 0)
    assert "BigQuery could not sort these rows" in plan.order.why
    assert any("so the rows are exported without one" in line and "Resources exceeded" in line for line in tasks.log)


def test_rows_that_a_script_exported_are_counted(tasks: Tasks) -> None:
    tasks.order_by(("name",))
    told = tasks.plan()
    night = tasks.night
    order = Order(("name",), 5, 1)
    job = night.warehouse.start_extract(night.spec, RunRef.from_prefix(told["run_prefix"]), order=order)
    night.succeed(job)

    assert night.warehouse.job(job).statistics["exported_rows"] == ROWS
    folder = f"{told['run_prefix']}/inputs"
    gone = max(meta["path"] for page in obstore.list(night.store, folder) for meta in page)
    obstore.delete(night.store, gone)
    with pytest.raises(Exception, match=f"BigQuery exported {ROWS} rows, but the files"):
        tasks.extract(told)


def test_a_column_that_the_query_lacks_is_named_before_the_night(tasks: Tasks) -> None:
    tasks.order_by(("nam",))

    with pytest.raises(WarehouseError, match=r"source.order names the column nam, .* \(did you mean name\?\)"):
        tasks.night.warehouse.check_query(tasks.night.spec, PARTITION)


@pytest.mark.gate
def test_an_order_that_pays_is_found_and_kept(tasks: Tasks) -> None:
    """By counts of real rows, in the statement that counts them anyway."""
    night = tasks.night
    night.rows(f"UPDATE `{night.settings.bucket}.source` SET name = CONCAT(name, REPEAT(' long', 200)) WHERE TRUE")
    prompt = {"task": "completion", "request": {"prompt": "{{ name }} {{ version }} {{ text }}", "max_tokens": 4}}
    night.spec = JobSpec.model_validate({**night.spec.model_dump(mode="json"), **prompt, "engine": {"max_num_seqs": 1}})
    told = tasks.plan()
    plan = tasks.extract(told)

    assert plan.order is not None
    assert (plan.order.columns, plan.order.buckets) == (("name",), 5)
    assert "ordered by name, which should save" in plan.order.why
    assert plan.order.why in told["planned"]
    assert f"in {ROWS} rows" in plan.order.why
    assert len(runs_of(tasks.rows(plan), "name")) == PREFIXES
