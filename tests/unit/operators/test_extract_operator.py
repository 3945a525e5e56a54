"""The task extract, after the export: the plan that it makes of the decision."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from obstore.store import MemoryStore

from nightshift.operators.extract import ExtractOperator
from nightshift.planner.decisions import load_decision, save_decision
from nightshift.planner.plan import decide
from nightshift.planner.speed import Known, tokens_of
from nightshift.profiles.limits import Limits
from nightshift.run.plan import ExportedSource, load_plan
from nightshift.settings import Settings
from nightshift.triggers.bigquery import jobs_event
from nightshift.warehouse import JobState
from tests.builders import RUN, a_record, a_spec
from tests.releases import TEXTS, place, releases

pytestmark = pytest.mark.unit

ROWS = 1000
# The deadline of 2 h leaves 4,620 s of work: 462 rows a worker.
SPEC = a_spec(compute__rows_per_worker_per_second=0.1)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """With the run's spec and its exported rows."""
    store = MemoryStore()
    obstore.put(store, RUN.spec_path, a_record(SPEC))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(ROWS), "text": ["x"] * ROWS}), sink)
    obstore.put(store, RUN.export_pattern(1).replace("*", "000000000000"), sink.getvalue())
    # BigQuery, which is asked for nothing but the query's columns by now.
    said = SimpleNamespace(read_source=lambda *_: ExportedSource({"id": "INT64", "text": "STRING"}, ("p.d.t",)))
    monkeypatch.setattr("nightshift.hooks.warehouse.warehouse_for", lambda *_, **__: said)
    return store


def extracted(store: MemoryStore, decision: str, **settings: Any) -> dict[str, Any]:
    with DAG("job", schedule=None):
        task = ExtractOperator(task_id="extract", run_prefix=RUN.prefix, terms="", decision=decision)
    task.__dict__.update(settings=Settings(bucket="runs", project="acme", **settings), store=store)
    return task.build_plan({}, jobs_event([JobState("job-1", True, statistics={"exported_rows": ROWS})]))


def decided(store: MemoryStore, rows: int, **limits: Any) -> str:
    """The path of what the task plan decides for so many counted rows."""
    return save_decision(store, RUN, decide(SPEC, rows, Known(tokens_of(SPEC)), Limits(**limits)))


def test_the_workers_are_those_that_were_decided(store: MemoryStore) -> None:
    """And no others, whatever the deployment has room for by now."""
    path = decided(store, ROWS)

    result = extracted(store, path, workers_max=1)

    plan = load_plan(store, RUN)
    assert plan is not None
    assert (plan.rows, plan.workers, result["workers"], plan.decision) == (ROWS, 3, 3, path)


def test_fewer_rows_than_were_counted_are_computed_by_the_same_workers(store: MemoryStore) -> None:
    extracted(store, decided(store, 1300))

    plan = load_plan(store, RUN)
    assert plan is not None
    assert (plan.rows, plan.workers) == (ROWS, 3)
    assert "1,000 rows exported, but 1,300 had been counted: the workers stay as decided" in plan.reasons


def test_more_rows_than_the_workers_can_compute_in_time_are_refused(store: MemoryStore) -> None:
    """Before any of them starts; the task plan counts again."""
    with pytest.raises(AirflowFailException, match=r"the plan has 1 worker for 400 rows; .* Clear the task 'plan'"):
        extracted(store, decided(store, 400))

    assert load_plan(store, RUN) is None


def test_a_few_more_rows_fit_into_the_decision(store: MemoryStore) -> None:
    extracted(store, decided(store, 990))

    plan = load_plan(store, RUN)
    assert plan is not None
    assert (plan.rows, plan.workers) == (ROWS, 3)


@pytest.mark.parametrize("decision", ["", f"{RUN.prefix}/decisions/0.json"])
def test_without_a_decision_there_is_no_plan(store: MemoryStore, decision: str) -> None:
    with pytest.raises(AirflowFailException, match="Repeat the task 'plan'"):
        extracted(store, decision)


@pytest.mark.parametrize("after_the_export", [False, True])
def test_a_run_that_has_its_plan_is_asked_for_no_decision(store: MemoryStore, after_the_export: bool) -> None:
    """Its plan may also have been written while this task waited for its own export."""
    run = place(releases()[-1], "unfinished", store)
    with DAG("job", schedule=None):
        task = ExtractOperator(task_id="extract", run_prefix=run.prefix, terms="", decision="")
    task.__dict__.update(settings=Settings(bucket="runs", project="acme"), store=store)
    event = jobs_event([JobState("job-1", True, statistics={"exported_rows": len(TEXTS)})])

    result = task.build_plan({}, event) if after_the_export else task.execute({})

    plan = load_plan(store, run)
    assert plan is not None
    assert (result["rows"], result["workers"], plan.decision) == (len(TEXTS), plan.workers, None)


def test_a_decision_that_was_put_there_by_another_is_refused(store: MemoryStore) -> None:
    """Its name can be computed before the task plan has run."""
    path = decided(store, ROWS)
    forged = json.loads(bytes(obstore.get(store, path).bytes())) | {"workers": 9}
    obstore.put(store, path, json.dumps(forged).encode())

    with pytest.raises(AirflowFailException, match="its name is not its digest"):
        extracted(store, path)
    assert load_plan(store, RUN) is None


def test_the_same_decision_is_one_object(store: MemoryStore) -> None:
    """A retry of the task plan writes nothing new; other rows are another decision."""
    first, again, other = decided(store, ROWS), decided(store, ROWS), decided(store, ROWS + 1)

    assert first == again != other
    found = load_decision(store, first)
    assert found == decide(SPEC, ROWS, Known(tokens_of(SPEC)))
