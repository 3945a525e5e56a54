"""A stack of the test's own, a night on it that a test may disturb, and what the night must have come to."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from local.demo.airflow_api import AirflowApi
from local.environments import ROOT
from local.stack import Stack, StackDown
from nightshift.run.ledger import Ledger
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan, load_plan
from nightshift.store import ObjectStorage, open_store
from tests.airflow_cli import airflow

PARTITION = "2026-11-20"
ENVIRONMENTS = ("airflow", "driver", "emulators", "server")
PATIENCE_S = 1200.0


def own_dags(folder: Path, *jobs: Path) -> Path:
    """A DAG folder with the product's two DAG files and other jobs."""
    (folder / "jobs").mkdir(parents=True)
    for file in (ROOT / "dags").glob("*.py"):
        shutil.copy(file, folder)
    for job in jobs:
        shutil.copy(job, folder / "jobs" / f"{job.parent.name}-{job.name}")
    return folder


def wait_until(what: str, holds: Callable[[], Any], patience_s: float = PATIENCE_S, *, pause_s: float = 0.5) -> Any:
    """Asks until the answer is true; returns it. Outages of what is asked are waited out. pause_s: between two questions."""
    deadline = time.monotonic() + patience_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if answer := holds():
                return answer
        except (requests.RequestException, OSError, StackDown) as error:
            last = error
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not happen within {patience_s:.0f} s (last error: {last})")


class Night:
    """One partition of one job on a stack that is up."""

    def __init__(self, stack: Stack, job: str) -> None:
        self.stack = stack
        self.job = job
        self.environment = stack.environment()
        os.environ.update(self.environment)
        self.client = bigquery.Client(project="local", credentials=AnonymousCredentials())  # type: ignore[no-untyped-call]
        self.store = open_store("gs://nightshift")
        login = stack.airflow()
        self.api = AirflowApi(login["url"], login["user"], login["password"])

    def airflow(self, *arguments: str) -> None:
        """Airflow's own command line."""
        airflow(self.environment, *arguments)

    def trigger(self, run_id: str, **conf: Any) -> None:
        self.airflow("dags", "trigger", self.job, "--run-id", run_id, "--conf", json.dumps(conf))

    def state(self, run_id: str) -> str:
        return str(self.api.dag_run(self.job, run_id)["state"])

    def task_states(self, run_id: str) -> dict[str, str]:
        return {name: task["state"] for name, task in self.api.task_instances(self.job, run_id).items()}

    def finish(self, run_id: str) -> None:
        state = wait_until("the end of the DAG run", lambda: self.ended(run_id))
        assert state == "success", self.task_states(run_id)

    def ended(self, run_id: str) -> str | None:
        state = self.state(run_id)
        return state if state in ("success", "failed") else None

    def run_of(self, run_id: str) -> RunRef:
        said = wait_until("the run's name", lambda: self.api.xcom(self.job, run_id, "plan"))
        return RunRef.from_prefix(said["run_prefix"])

    def plan_of(self, run: RunRef) -> Plan:
        plan: Plan = wait_until("the plan", lambda: load_plan(self.store, run))
        return plan

    async def committed(self, run: RunRef, plan: Plan) -> int:
        return len(await Ledger(ObjectStorage(self.store), run, plan).committed())

    def query(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self.client.query(sql).result()]


def live_pods(stack: Stack) -> dict[str, dict[str, Any]]:
    """The pods that run now, with the process ids of their containers."""
    found: dict[str, dict[str, Any]] = {}
    for file in (stack.state / "runtime" / "jobsets").glob("*/pods.json"):
        found |= json.loads(file.read_text())
    return found


def kill_container(stack: Stack, container: str) -> int:
    """SIGKILL to a container's main process; its pid."""

    def running() -> int | None:
        pids = [pod["pids"][container] for pod in live_pods(stack).values() if pod["pids"].get(container)]
        return int(pids[0]) if pids else None

    pid: int = wait_until(f"a running {container}", running)
    os.kill(pid, signal.SIGKILL)
    return pid


def process_of(stack: Stack, name: str) -> int | None:
    """The process ID of a part or of one of Airflow's components; None if it is not running."""
    if part := stack.document()["parts"].get(name):
        pid: int | None = part["pid"]
        return pid
    return next(iter(stack.pids(name)), None)


def kill_part(stack: Stack, name: str) -> int:
    """SIGKILL to the main process of a part, or of one of Airflow's components; its pid."""
    pid: int = wait_until(f"a process of {name}", lambda: process_of(stack, name))
    os.kill(pid, signal.SIGKILL)
    return pid


def strays(state: Path) -> list[str]:
    """Command lines of every living process that belongs to the stack in `state`, found by its mark or by its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked = f"={state}".encode() in (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command and (marked or str(state) in command):
            found.append(f"{entry.name}: {command}")
    return found
