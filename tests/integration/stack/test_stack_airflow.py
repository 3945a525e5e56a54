"""``airflow standalone`` as a part: runs a DAG, waits for its time, makes a backfill, gets well when a component is killed,
leaves no process."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from local.stack import Stack, StackError, shell
from local.stack.airflow import COMPONENTS
from local.stack.folder import Folder
from local.stack.parts import DRIVER_IMAGE
from tests.airflow_cli import airflow
from tests.builders import a_spec
from tests.cluster.runtime import Api
from tests.integration.runtime.manifests import jobset, sh
from tests.integration.stack.support import AIRFLOW_PATIENCE_S, Airflow, wait_until
from tests.unit.triggers.test_night_gauges import a_look
from tests.unit.triggers.test_night_gauges import jobset as watched

pytestmark = pytest.mark.integration

DAG = """
from datetime import timedelta
from airflow.sdk import DAG, task
# As every DAG of the product: an API server that a busy machine keeps waiting too long costs an attempt.
with DAG("chain", schedule=None, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)}):
    @task
    def first():
        return 1
    @task
    def second(number):
        return number + 1
    second(first())
"""
WHERE = """
import nightshift.operators.plan
from airflow.sdk import DAG
with DAG("where", schedule=None, description=nightshift.__file__):
    pass
"""
DAILY = """
from datetime import datetime
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
with DAG("daily", schedule="@daily", start_date=datetime(2024, 1, 1), catchup=False, is_paused_upon_creation=True):
    EmptyOperator(task_id="nothing")
"""
# The task plan without the rest of its work, which needs a warehouse. The schedule is that of every job.
DUE = """
from datetime import datetime
from airflow.sdk import DAG
from nightshift.operators.due_time import nightly
from nightshift.operators.partition import partition_of
from nightshift.operators.plan import PlanOperator
class Due(PlanOperator):
    def execute(self, context):
        self._await_due(context, partition_of(context))
        return datetime.now().astimezone().isoformat()
cron = "{minute} {hour} * * *"
with DAG("due", schedule=nightly(cron), start_date=datetime(2026, 1, 1), catchup=False):
    Due(task_id="plan", spec={{"schedule": cron}})
"""
NAMESPACE = "nightshift"
# The task infer without what comes before its wait: a job whose DAG has an alert for `notify.late`.
NIGHT = """
import time
from airflow.sdk import DAG, BaseOperator
from nightshift.operators.notify import when_late
from nightshift.spec import JobSpec
from nightshift.hooks.runtime import runtime_for
from nightshift.settings import Settings
from nightshift.operators.infer import trigger_for
class Infer(BaseOperator):
    def execute(self, context):
        settings = Settings.from_environment()
        there = runtime_for(settings)
        jobsets = [{{"name": "night", "uid": there.runtime.observe("night").jobset["metadata"]["uid"]}}]
        trigger = trigger_for(there, settings.namespace)(jobsets=jobsets, deadline=time.time() + 3600, look={look})
        self.defer(trigger=trigger, method_name="execute_complete")
    def execute_complete(self, context, event):
        return event["ending"]
with DAG("night", schedule=None, deadline=when_late(JobSpec.model_validate({spec}))):
    Infer(task_id="infer")
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "dags").mkdir()
    (folder / "dags" / "chain.py").write_text(DAG)
    (folder / "dags" / "daily.py").write_text(DAILY)
    (folder / "dags" / "where.py").write_text(WHERE)
    late = a_spec(notify={"late": {"notifier": "nobody"}}).model_dump(mode="json")
    (folder / "dags" / "night.py").write_text(NIGHT.format(spec=late, look=a_look(night=watched())))
    with Stack(folder / "state", parts=("agent", "airflow"), dags=folder / "dags", by_the_clock=True) as stack:
        yield stack
    assert stack.processes() == []


def _run_chain(stack: Stack) -> None:
    api = Airflow(stack)
    api.wait_for_dag("chain")
    run = api("/api/v2/dags/chain/dagRuns", {"logical_date": None})["dag_run_id"]

    def state() -> str:
        return str(api(f"/api/v2/dags/chain/dagRuns/{run}")["state"])

    wait_until(lambda: state() in ("success", "failed"), "the run has ended", AIRFLOW_PATIENCE_S)
    assert state() == "success", _logs(stack)


def _logs(stack: Stack) -> str:
    """What the tasks have said."""
    files = sorted(stack.state.rglob("dag_id=chain/**/*.log"))
    return "\n".join(f"{file}:\n{file.read_text()[-2000:]}" for file in files)


@pytest.mark.gate
def test_a_run_succeeds_and_writes_its_lineage(stack: Stack) -> None:
    _run_chain(stack)

    def events() -> list[Any]:
        # The last of them may be in the middle of being written.
        lines = (stack.state / "lineage" / "events.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def told() -> bool:
        return {"START", "COMPLETE"} <= {event["eventType"] for event in events() if event["job"]["name"] == "chain.second"}

    # Airflow tells of a task's end when it has ended, and of a DAG run's end as soon as its last task has.
    wait_until(told, "the end of chain.second is told", AIRFLOW_PATIENCE_S)
    assert {event["job"]["namespace"] for event in events()} == {"nightshift-local"}


@pytest.mark.gate
def test_airflow_has_nightshift_as_a_package_and_no_plugins_folder(stack: Stack) -> None:
    """As on Cloud Composer. The API server, the DAG processor, and the command each show what they have found."""
    package = stack.document()["package"]
    api = Airflow(stack)
    api.wait_for_dag("where")

    (plugin,) = [each for each in api("/api/v2/plugins")["plugins"] if each["name"] == "nightshift"]
    assert "EntryPoint(" in plugin["source"]
    providers = api("/api/v2/providers?limit=200")["providers"]
    assert "airflow-provider-nightshift" in [each["package_name"] for each in providers]
    assert api("/api/v2/dags/where/details")["description"] == f"{package}/nightshift/__init__.py"
    for pid in [pid for name in COMPONENTS for pid in stack.pids(name)]:
        variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        assert f"PYTHONPATH={package}" in variables
        assert [each for each in variables if each.startswith("AIRFLOW__CORE__PLUGINS_FOLDER=")] == []
    assert not (stack.state / "airflow" / "plugins").exists()


def test_it_says_no_to_another_environment(stack: Stack) -> None:
    other = Stack(stack.state, parts=("airflow",), dags=Path(stack.document()["dags"]), airflow_environment="composer")
    with pytest.raises(StackError, match="is up with another environment of Airflow"):
        other.up()


@pytest.mark.gate
def test_every_process_of_airflow_carries_the_mark(stack: Stack) -> None:
    session = os.getsid(stack.document()["parts"]["airflow"]["pid"])

    def members() -> set[int]:
        return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _session(entry) == session}

    # Airflow starts and ends processes all the time, and /proc is not read at one moment. So one without a mark is looked at
    # until it has one, as a process that is just beginning will, or is gone.
    unmarked = members()
    assert unmarked

    def every_one_is_marked() -> bool:
        nonlocal unmarked
        unmarked &= members()
        unmarked -= set(stack.pids("airflow"))
        return not unmarked

    wait_until(every_one_is_marked, "the mark of every process of Airflow's session")


def test_a_scheduled_run_waits_in_the_triggerer_until_it_is_due(stack: Stack) -> None:
    """Airflow makes the run of yesterday's partition as soon as it knows the DAG, and its job's cron names a time to come."""
    wait_until(lambda: datetime.now(UTC).time() < time(23, 55), "the day is long enough", 400)
    moment = (datetime.now(UTC) + timedelta(seconds=150)).replace(second=0, microsecond=0)
    dag = DUE.format(minute=moment.minute, hour=moment.hour)
    (Path(stack.document()["dags"]) / "due.py").write_text(dag)
    api = Airflow(stack)
    api.wait_for_dag("due")

    def plan() -> dict[str, Any]:
        found = api("/api/v2/dags/due/dagRuns/~/taskInstances")["task_instances"]
        return dict(found[0]) if found else {}

    wait_until(lambda: plan().get("state") == "deferred", "the task waits", AIRFLOW_PATIENCE_S)
    assert plan()["trigger"]["classpath"].endswith(".DateTimeTrigger")
    assert api("/api/v2/dags/due")["timetable_summary"] == f"{moment.minute} {moment.hour} * * *"

    def run() -> dict[str, Any]:
        (found,) = api("/api/v2/dags/due/dagRuns")["dag_runs"]
        return dict(found)

    wait_until(lambda: run()["state"] in ("success", "failed"), "the run has ended", AIRFLOW_PATIENCE_S)
    assert (run()["run_type"], run()["state"]) == ("scheduled", "success")
    assert plan()["try_number"] == 1
    events = api("/api/v2/eventLogs?dag_id=due&task_id=plan&order_by=id")["event_logs"]
    assert [event["event"] for event in events] == ["running", "deferred", "running", "success"]
    path = f"/api/v2/dags/due/dagRuns/{run()['dag_run_id']}/taskInstances/plan/xcomEntries/return_value?deserialize=true"
    assert datetime.fromisoformat(api(path)["value"]) >= moment


def test_a_person_stops_a_night_and_clears_it(stack: Stack) -> None:
    """The stop ends its pods and leaves why; the cleared DAG run, which has an alert for `late`, runs again and ends well."""
    api, jobsets, done = Airflow(stack), Api(stack.state / "runtime" / "kubeconfig"), stack.state / "done"
    manifest = jobset("night", sh(f"while [ ! -e {done} ]; do sleep 0.1; done", image=DRIVER_IMAGE))
    jobsets.create_jobset(NAMESPACE, manifest)
    api.wait_for_dag("night")
    run = f"/api/v2/dags/night/dagRuns/{api('/api/v2/dags/night/dagRuns', {'logical_date': None})['dag_run_id']}"

    def infer() -> Any:
        return api(f"{run}/taskInstances/infer")["state"]

    # What is stopped before the triggerer has begun to wait gets no call of `on_kill`.
    wait_until(lambda: any(stack.state.rglob("dag_id=night/**/*.trigger.*.log")), "its trigger waits", AIRFLOW_PATIENCE_S)
    api(run, {"state": "failed"}, "PATCH")
    wait_until(lambda: jobsets.observe(NAMESPACE, "night").jobset is None, "its JobSet is deleted", AIRFLOW_PATIENCE_S)

    def said() -> list[Any]:
        return [each["key"] for each in api(f"{run}/taskInstances/infer/xcomEntries")["xcom_entries"]]

    wait_until(lambda: said() == ["error"], "the task keeps why it ended", AIRFLOW_PATIENCE_S)
    assert "A person stopped the night" in api(f"{run}/taskInstances/infer/xcomEntries/error?deserialize=true")["value"]

    jobsets.create_jobset(NAMESPACE, manifest)
    api(f"{run}/clear", {"dry_run": False, "only_failed": False})
    wait_until(lambda: infer() == "deferred", "the cleared task waits", AIRFLOW_PATIENCE_S)
    done.touch()
    wait_until(lambda: api(run)["state"] == "success", "the cleared DAG run has ended well", AIRFLOW_PATIENCE_S)


def test_a_backfill_of_a_year_is_made_while_airflow_is_at_work(stack: Stack) -> None:
    # Every day of it is another chance for a component to write between the command's own reading and writing.
    api = Airflow(stack)
    api.wait_for_dag("daily")

    days = ("--from-date", "2024-01-01", "--to-date", "2024-12-31")
    # As in a shell that has evaluated what `make env` prints.
    airflow(shell.variables(Folder.at(stack.state), stack.environment()), "backfill", "create", "--dag-id", "daily", *days)

    assert api("/api/v2/dags/daily/dagRuns?limit=1")["total_entries"] == 366


@pytest.mark.gate
def test_a_killed_component_comes_back(stack: Stack) -> None:
    # The scheduler and the triggerer are killed in the middle of a night, in tests/chaos.
    component = "dag-processor"
    before = {name: stack.pids(name) for name in COMPONENTS}
    assert all(len(pids) == 1 for pids in before.values())
    os.kill(before[component][0], signal.SIGKILL)
    # Not for its health alone: on a busy machine a probe may fail and succeed again before the death is noticed.
    wait_until(lambda: stack.pids(component) not in ([], before[component]), "there is another one", AIRFLOW_PATIENCE_S)
    wait_until(stack.healthy, "Airflow is well again", AIRFLOW_PATIENCE_S)
    assert all(len(stack.pids(name)) == 1 for name in COMPONENTS)
    assert not set(before[component]) & set(stack.pids(component))
    _run_chain(stack)


def _session(process: Path) -> int:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    # A dead process has no environment any more.
    return -1 if fields[0] == "Z" else int(fields[3])
