"""Files that start runs, in a real Airflow: its triggerer watches a folder of the emulator, and its scheduler makes the runs.

The periods are minutes, which no job may have, so that the test takes five minutes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.stack import Stack, environment
from nightshift.spec import periods
from tests.integration.stack.support import AIRFLOW_PATIENCE_S, Airflow, wait_until

pytestmark = pytest.mark.integration

BUCKET, MINUTE = "uploads", "1m"
# The task plan as far as it finds the period and opens its run; the rest of its work needs a warehouse. The runs of "busy" wait
# for the test, one at a time, while events come in.
DAGS = """
import time
from datetime import timedelta
from pathlib import Path

import obstore
from airflow.sdk import DAG, Param
from nightshift.operators.assets import files_asset
from nightshift.operators.plan import PlanOperator

class Period(PlanOperator):
    def execute(self, context):
        partition = self._partition(context)
        obstore.put(self.store, f"{{self.dag_id}}/{{partition}}/run/spec.json", b"opened")
        while self.dag_id == "busy" and not Path({gate!r}).exists():
            time.sleep(0.5)
        return partition

uploads = files_asset("gs://uploads/texts", every="1m", settle="5s")
for job, most in (("ready", 3), ("busy", 1)):
    with DAG(
        job,
        schedule=[uploads],
        catchup=False,
        max_active_runs=most,
        params={{"partition": Param(None, type=["null", "string"])}},
        default_args={{"retries": 5, "retry_delay": timedelta(seconds=1)}},
    ):
        Period(task_id="plan", spec={{"job": job, "every": "1m", "start_date": "2026-01-01"}}, inlets=[uploads])
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """While it is missing, the runs of "busy" do not end."""
    return tmp_path / "gate"


@pytest.fixture
def stack(tmp_path: Path, gate: Path) -> Iterator[Stack]:
    dags = tmp_path / "dags"
    dags.mkdir()
    with Stack(tmp_path / "state", parts=("storage", "airflow"), dags=dags, by_the_clock=True) as stack:
        storage(stack).create_bucket(BUCKET)
        (dags / "files.py").write_text(DAGS.format(gate=str(gate)))
        yield stack
    assert stack.processes() == []


def storage(stack: Stack) -> Any:
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
    options = {"api_endpoint": stack.environment()["STORAGE_EMULATOR_HOST"]}
    return StorageClient(project=environment.PROJECT, credentials=anonymous, client_options=options)


def appear(stack: Stack, path: str) -> str:
    """Puts an object, not near the border of two periods; the name of its period."""
    while not 8 <= datetime.now(UTC).second <= 45:
        time.sleep(0.5)
    blob = storage(stack).bucket(BUCKET).blob(path)
    blob.upload_from_string(b"a row")
    return periods.holding(blob.time_created, MINUTE)


def await_end(name: str, seconds_before: float = 0) -> None:
    _, end = periods.bounds(name, MINUTE)
    time.sleep(max(0.0, (end - datetime.now(UTC)).total_seconds() - seconds_before))


def fired(airflow: Airflow) -> list[str]:
    """The periods of the asset's events, in their order."""
    try:
        found = airflow("/api/v2/assets/events?limit=100&order_by=timestamp")["asset_events"]
    except HTTPError as error:
        # Airflow 3.3.1 answers 500 while a run of an event has not begun.
        return [str(error)]
    return [event["extra"]["payload"]["partition"] for event in found]


def computed(airflow: Airflow, dag: str) -> list[str]:
    """The periods of the DAG's runs that have succeeded, and whether there are others."""
    runs = airflow(f"/api/v2/dags/{dag}/dagRuns?limit=100")["dag_runs"]
    found = []
    for run in runs:
        path = f"/api/v2/dags/{dag}/dagRuns/{run['dag_run_id']}/taskInstances/plan/xcomEntries/return_value?deserialize=true"
        try:
            found.append(airflow(path)["value"] if run["state"] == "success" else run["state"])
        except HTTPError as error:
            found.append(str(error))
    return sorted(found)


def watching(stack: Stack) -> bool:
    return any("Watching gs://uploads/texts" in log.read_text(errors="replace") for log in stack.state.rglob("*.log"))


def test_each_period_with_files_has_one_run_and_the_others_none(stack: Stack, gate: Path) -> None:
    airflow = Airflow(stack)
    airflow.wait_for_dag("ready")
    airflow.wait_for_dag("busy")
    wait_until(lambda: watching(stack), "the triggerer watches", AIRFLOW_PATIENCE_S)

    first = appear(stack, "texts/a")
    # Airflow takes longer to start than is left until this period would be looked at: the next triggerer makes up for it.
    await_end(first, seconds_before=2)
    os.kill(stack.pids("triggerer")[0], signal.SIGKILL)
    await_end(first)
    second = appear(stack, "texts/b")
    await_end(second)
    empty = periods.after(second, MINUTE)
    storage(stack).bucket(BUCKET).blob("texts/_hidden").upload_from_string(b"a row")
    storage(stack).bucket(BUCKET).blob("texts/nothing").upload_from_string(b"")
    await_end(empty)
    # Of a day that may still get objects: those of older ones are not listed.
    third = appear(stack, f"texts/dt={datetime.now(UTC).date()}/c")
    assert len({first, second, empty, third}) == 4

    wait_until(stack.healthy, "Airflow is well again", AIRFLOW_PATIENCE_S)
    airflow = Airflow(stack)
    wait_until(lambda: fired(airflow) == [first, second, third], "the events are there", AIRFLOW_PATIENCE_S)
    wait_until(lambda: computed(airflow, "ready") == [first, second, third], "the runs have ended", AIRFLOW_PATIENCE_S)
    # Two events came while the first one's run went on; Airflow makes one run for them and forgets the second.
    assert computed(airflow, "busy") == ["running"]
    gate.touch()
    wait_until(
        lambda: computed(airflow, "busy") == [first, second, third], "those of the other are made up for", AIRFLOW_PATIENCE_S
    )
    assert computed(airflow, "ready") == [first, second, third]
    assert fired(airflow) == [first, second, third]
