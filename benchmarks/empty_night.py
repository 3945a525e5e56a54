"""P18: an empty night on a real Airflow with 1, 300 and 1,000 job files: how soon its tasks start, and how long it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

from benchmarks.job_files import deployment, job_name
from benchmarks.report import Report, say, spread
from local.demo.airflow_api import AirflowApi, refused
from local.stack import Stack
from local.stack.environment import PROJECT

METHOD: Final = """
The local stack: Airflow standalone with LocalExecutor on SQLite, its DAG processor and scheduler at work, and the emulators
of BigQuery and Cloud Storage. The job files are P17's, each named after its job. The source is an empty table, so a night is
its seven tasks and no engine. The last job's DAG runs for one day after another. A task has started when Airflow has queued
it and its process has parsed the DAG file: `start_date` - `queued_when`, and `dag_file_parse_ms` of the task's own log.
Medians over all tasks of the nights; the first night does not count.
"""
TASKS: Final = ("plan", "extract", "infer", "seal", "publish", "audit")
DAYS: Final = ("2026-11-20", "2026-11-21", "2026-11-22", "2026-11-23")
PATIENCE_S: Final = 900.0
SCHEMA: Final = ("name", "version", "summary", "description", "home_page")


@dataclass
class Taken:
    """Seconds, of the nights of one folder. known: until Airflow knew the last DAG."""

    known: float
    queued: list[float] = field(default_factory=list)
    parsed: list[float] = field(default_factory=list)
    nights: list[float] = field(default_factory=list)

    @property
    def starts(self) -> list[float]:
        return [queued + parsed for queued, parsed in zip(self.queued, self.parsed, strict=True)]


def measure(report: Report, folder: Path, quick: bool) -> None:
    sizes = (1, 30) if quick else (1, 300, 1000)
    found = {size: _of(folder / str(size), size) for size in sizes}
    one = found[1]
    for size, taken in found.items():
        files = f"{size:,} file{'s' if size > 1 else ''}"
        report.add(f"from queued to running and parsed, {files}", f"{median(taken.starts):.2f} s")
        report.add(f"of which the DAG file, {files}", f"{median(taken.parsed):.2f} s, at most {max(taken.parsed):.2f} s")
        report.add(f"an empty night, {files}, seconds", spread(taken.nights, ".1f"))
        report.add(f"until Airflow knows the last DAG, {files}", f"{taken.known:.0f} s")
        if size > 1:
            ratio = median(taken.starts) / median(one.starts)
            report.add(f"from queued to running and parsed, {files} / 1 file", f"{ratio:.2f}", "<= 1.5", ratio <= 1.5)
            report.add(f"an empty night, {files} / 1 file", f"{median(taken.nights) / median(one.nights):.2f}")


def _of(folder: Path, size: int) -> Taken:
    dags, job = deployment(folder / "dags", size), job_name(size - 1)
    with Stack(folder / "state", parts=("storage", "bigquery", "airflow"), dags=dags) as stack:
        _empty_source(stack.environment()["BIGQUERY_EMULATOR_HOST"])
        api = AirflowApi(**stack.airflow())
        began = time.monotonic()
        api.wait_for_dag(job, PATIENCE_S)
        taken = Taken(time.monotonic() - began)
        say(f"{size} files: Airflow knows {job} after {taken.known:.0f} s")
        for number, day in enumerate(DAYS):
            night = _night(api, job, day)
            if number:
                taken.nights.append(_seconds(night["queued_at"], night["end_date"]))
                for queued, parsed in _starts(api, job, day, stack.state):
                    taken.queued.append(queued)
                    taken.parsed.append(parsed)
    return taken


def _empty_source(host: str) -> None:
    client = bigquery.Client(PROJECT, AnonymousCredentials(), client_options={"api_endpoint": host})  # type: ignore[no-untyped-call]
    client.create_dataset("catalog", exists_ok=True)
    columns = [bigquery.SchemaField(name, "STRING") for name in SCHEMA]
    table = bigquery.Table(f"{PROJECT}.catalog.packages", [*columns, bigquery.SchemaField("snapshot_date", "DATE")])
    client.create_table(table, exists_ok=True)


def _night(api: AirflowApi, job: str, day: str) -> Mapping[str, Any]:
    """The DAG run, at its end. Raises RuntimeError if it has failed."""
    deadline, run = time.monotonic() + PATIENCE_S, dict[str, Any]()
    while run.get("state") not in ("success", "failed"):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{job} of {day} is {run.get('state')} after {PATIENCE_S:.0f} s")
        time.sleep(0.5)
        try:
            run = api.dag_run(job, day) if run else api.trigger(job, day, {"partition": day})
        except requests.RequestException as error:
            if refused(error) and "already exists" not in str(error):
                raise
            # A busy machine: it may have the run all the same.
            run = run or {"state": "requested"}
    if run["state"] != "success":
        states = {name: task["state"] for name, task in api.task_instances(job, day).items()}
        failed = next((name for name, state in states.items() if state == "failed"), "plan")
        raise RuntimeError(f"{job} of {day} has failed: {states}\n" + "\n".join(api.log(job, day, failed, 1)[-20:]))
    say(f"{job} of {day}: {_seconds(run['queued_at'], run['end_date']):.1f} s")
    return run


def _starts(api: AirflowApi, job: str, day: str, state: Path) -> Iterator[tuple[float, float]]:
    """Of each task that ran: seconds from queued to running, and of its process's own parse of the DAG file."""
    tasks = api.task_instances(job, day)
    for name in TASKS:
        if tasks[name]["state"] != "success":
            continue
        (log,) = state.rglob(f"dag_id={job}/run_id={day}/task_id={name}/attempt=1.log")
        entries = [json.loads(line) for line in log.read_text().splitlines() if "dag_file_parse_ms" in line]
        yield _seconds(tasks[name]["queued_when"], tasks[name]["start_date"]), entries[0]["dag_file_parse_ms"] / 1000


def _seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
