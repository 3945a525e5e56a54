"""The OpenLineage events of a run's tasks, made by Airflow's own provider and written by its client to a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.sdk import DAG
from airflow.utils.state import TaskInstanceState
from obstore.store import MemoryStore
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

from nightshift.operators.extract import ExtractOperator
from nightshift.operators.infer import InferOperator
from nightshift.operators.plan import PlanOperator
from nightshift.operators.publish import PublishOperator
from nightshift.operators.run import RunOperator
from nightshift.operators.seal import SealOperator
from nightshift.run.names import canonical_json
from nightshift.run.plan import save_plan
from nightshift.settings import Settings
from tests.builders import RUN, a_manifest, a_plan, a_record, a_spec

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ("bigquery", "acme.d.t")
INPUTS = ("gs://runs", f"{RUN.prefix}/inputs")
LEDGER = ("gs://runs", f"_workers/{RUN.prefix}")
DESTINATION = ("bigquery", "acme.d.out")
DEAD_LETTERS = ("bigquery", "acme.nightshift.dead_letters")

MANIFEST = a_manifest(rows=8, predictions=7, dead_letters=1)


def a_task(kind: type[RunOperator]) -> RunOperator:
    """A task of a run that is sealed."""
    store = MemoryStore()
    obstore.put(store, f"{RUN.prefix}/spec.json", a_record(a_spec()))
    plan = save_plan(store, RUN, a_plan(rows=8))
    obstore.put(
        store, f"{RUN.prefix}/manifest.json", canonical_json(replace(MANIFEST, plan=plan.uid, opening=plan.opening).to_json())
    )
    with DAG("job", schedule=None):
        task = kind(task_id="task", run_prefix=RUN.prefix, terms="")
    task.__dict__.update(settings=Settings(bucket="runs", project="acme"), store=store)
    return task


EXTRACT = ExtractorManager().extract_metadata  # type: ignore[no-untyped-call]
AIRFLOW_RUN = SimpleNamespace(run_id="manual")


def events(task: RunOperator, folder: Path) -> list[dict[str, Any]]:
    """START and COMPLETE of a task, through extractor, adapter and file."""
    path = folder / "events.jsonl"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(path), append=True)))
    adapter = OpenLineageAdapter(client)
    moment = "2026-11-21T02:00:00+00:00"
    common: dict[str, Any] = {
        "run_id": "01a1f640-bc00-7269-9d5e-f516cde364db",
        "job_name": "job.task",
        "job_description": None,
        "nominal_start_time": None,
        "nominal_end_time": None,
        "owners": None,
        "tags": None,
    }
    adapter.start_task(event_time=moment, task=EXTRACT(AIRFLOW_RUN, task, TaskInstanceState.RUNNING, None), **common)
    task.keep_lineage()
    adapter.complete_task(end_time=moment, task=EXTRACT(AIRFLOW_RUN, task, TaskInstanceState.SUCCESS, None), **common)
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(dataset["namespace"], dataset["name"]) for dataset in datasets]


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [
        (ExtractOperator, [SOURCE], [INPUTS]),
        (InferOperator, [INPUTS], [LEDGER]),
        (PublishOperator, [LEDGER], [DESTINATION, DEAD_LETTERS]),
        (SealOperator, [], []),
    ],
)
def test_a_tasks_events_name_what_it_reads_and_writes(
    kind: type[RunOperator], inputs: list[tuple[str, str]], outputs: list[tuple[str, str]], tmp_path: Path
) -> None:
    told = events(a_task(kind), tmp_path)

    assert [event["eventType"] for event in told] == ["START", "COMPLETE"]
    for event in told:
        assert (names(event["inputs"]), names(event["outputs"])) == (inputs, outputs)
        assert event["run"]["facets"]["nightshift_run"]["runId"] == RUN.run_id


def test_publish_says_how_many_rows_it_wrote(tmp_path: Path) -> None:
    complete = events(a_task(PublishOperator), tmp_path)[-1]

    counts = [output["outputFacets"]["outputStatistics"]["rowCount"] for output in complete["outputs"]]
    assert counts == [MANIFEST.predictions, MANIFEST.dead_letters]


def test_the_failure_of_a_task_names_its_datasets_too() -> None:
    task = a_task(ExtractOperator)
    task.keep_lineage()

    said = EXTRACT(AIRFLOW_RUN, task, TaskInstanceState.FAILED, None)

    assert [(dataset.namespace, dataset.name) for dataset in said.outputs] == [INPUTS]


def test_the_task_plan_has_no_run_to_tell_of_at_its_start() -> None:
    with DAG("job", schedule=None):
        task = PlanOperator(task_id="plan", spec={})

    said = task.get_openlineage_facets_on_start()
    assert said is not None
    assert said.run_facets == {}


def test_lineage_that_cannot_be_made_fails_nothing() -> None:
    task = a_task(ExtractOperator)
    task.run_prefix = "nowhere"

    task.keep_lineage()

    assert task.get_openlineage_facets_on_complete(None) is None


def test_in_a_fork_of_a_process_that_has_used_the_store_the_start_names_nothing(tmp_path: Path) -> None:
    """As in ``airflow dags test``, whose one process runs all tasks, and is forked for each event: it waited for ever."""
    program = f"""
import os, signal, sys
import obstore
from airflow.sdk import DAG
from nightshift.operators.seal import SealOperator
from nightshift.settings import Settings
from nightshift.store import open_store
from tests.builders import RUN, a_record, a_spec
store = open_store("file://{tmp_path}")
body = a_record(a_spec())
obstore.put(store, RUN.spec_path, body)
with DAG("job", schedule=None):
    task = SealOperator(task_id="seal", run_prefix=RUN.prefix, terms="null")
task.__dict__.update(settings=Settings(bucket="runs", project="acme"), store=store)
assert task.get_openlineage_facets_on_start() is not None
del task._frozen
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(0 if task.get_openlineage_facets_on_start() is None else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 127)
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/plugins:{ROOT}"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr[-2000:]
