"""The task extract, after the export: the plan that it writes."""

from __future__ import annotations

import io
from types import SimpleNamespace

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from obstore.store import MemoryStore

from nightshift.operators.extract import ExtractOperator
from nightshift.run.names import canonical_json
from nightshift.run.plan import ExportedSource, load_plan
from nightshift.settings import Settings
from nightshift.triggers.bigquery import jobs_event
from nightshift.warehouse import JobState
from tests.builders import RUN, a_spec

pytestmark = pytest.mark.unit

ROWS = 1000
# The deadline of 2 h leaves 4,620 s of work: 462 rows a worker.
SPEC = a_spec(compute__rows_per_worker_per_second=0.1)


@pytest.mark.parametrize(("workers_max", "workers"), [(0, 3), (2, 2)])
def test_a_run_gets_no_more_workers_than_the_deployment_has_room_for(
    workers_max: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    obstore.put(store, RUN.spec_path, canonical_json({"spec": SPEC.model_dump(mode="json")}))
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(ROWS), "text": ["x"] * ROWS}), sink)
    obstore.put(store, RUN.export_pattern(1).replace("*", "000000000000"), sink.getvalue())
    # BigQuery, which is asked for nothing but the query's columns by now.
    said = SimpleNamespace(read_source=lambda *_: ExportedSource({"id": "INT64", "text": "STRING"}, ("p.d.t",)))
    monkeypatch.setattr("nightshift.hooks.warehouse.warehouse_for", lambda _: said)
    with DAG("job", schedule=None):
        task = ExtractOperator(task_id="extract", run_prefix=RUN.prefix, terms="")
    task.__dict__.update(settings=Settings(bucket="runs", project="acme", workers_max=workers_max), store=store)

    result = task.build_plan({}, jobs_event([JobState("a", True, statistics={"exported_rows": ROWS})]))

    plan = load_plan(store, RUN)
    assert plan is not None
    assert (plan.rows, plan.workers, result["workers"]) == (ROWS, workers, workers)
