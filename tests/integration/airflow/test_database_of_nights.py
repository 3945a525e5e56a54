"""What a person does to the nights of a job, in Airflow's own database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import create_engine, text

from tests.integration.airflow import database_of_nights
from tests.integration.airflow.test_audit_failure import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.gate]


class Database:
    """Of an Airflow that knows one job, with a notifier for each event."""

    def __init__(self, folder: Path) -> None:
        self.job = yaml.safe_load((ROOT / "dags/jobs/package-embeddings.yaml").read_text())
        self.job["notify"] = {event: {"notifier": "board"} for event in ("failed", "late")}
        jobs = folder / "dags" / "jobs"
        jobs.mkdir(parents=True)
        (jobs / "job.yaml").write_text(yaml.safe_dump(self.job))
        (folder / "dags" / "batch_inference.py").write_text((ROOT / "dags/batch_inference.py").read_text())
        self.paper = folder / "paper"
        text = "{{ task_id }} of {{ partition }}: {{ error }} {{ url }}"
        board = {"notifier": "tests.unit.notices.Paper", "arguments": {"text": text, "to": str(self.paper)}}
        (folder / "notifiers.yaml").write_text(yaml.safe_dump({"board": board}))
        self.url = f"sqlite:///{folder}/airflow.db"
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__API__BASE_URL": "https://airflow.example",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.url,
            "NIGHTSHIFT_BUCKET": "b",
            "NIGHTSHIFT_PROJECT": "p",
            "NIGHTSHIFT_NOTIFIERS": str(folder / "notifiers.yaml"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "plugins"), str(ROOT)]),
        }
        self.airflow("db", "migrate")
        self.airflow("dags", "reserialize")

    def airflow(self, *words: str) -> str:
        return self.python("-m", "airflow", *words)

    def python(self, *words: str) -> str:
        command = [sys.executable, *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout

    def do(self, what: str) -> Any:
        """One of the functions of `database_of_nights`."""
        said = self.python("-m", database_of_nights.__name__, self.job["job"], what)
        return json.loads(said.rpartition("FOUND ")[2])

    def change(self, statement: str) -> list[Any]:
        with create_engine(self.url).begin() as connection:
            found = connection.execute(text(statement))
            return [tuple(row) for row in found] if found.returns_rows else []


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path)


def test_a_night_with_a_deadline_can_be_cleared(database: Database) -> None:
    """Of every kind, one task and as a whole. The time is until its cron is due, its own deadline and half an hour; a clear
    gives it that time again."""
    found = database.do("cleared")

    assert set(found) == set(database_of_nights.KINDS)
    for kind, each in found.items():
        assert each == ["3:30:00", "3:30:00", "3:30:00", "queued", True, True], kind


def test_a_backfill_repeats_a_night_with_a_deadline_that_failed(database: Database) -> None:
    days = ("--dag-id", database.job["job"], "--from-date", "2026-11-10", "--to-date", "2026-11-10")
    database.airflow("backfill", "create", *days)
    database.change("UPDATE dag_run SET state = 'failed', end_date = CURRENT_TIMESTAMP")
    database.change("UPDATE backfill SET completed_at = CURRENT_TIMESTAMP")
    assert database.change("SELECT missed FROM deadline") == [(0,)], "it is one that a clear computes again"

    database.airflow("backfill", "create", *days, "--reprocess-behavior", "failed")

    assert database.change("SELECT state, clear_number FROM dag_run") == [("queued", 1)]


def test_a_night_that_a_person_stopped_is_recorded_whatever_was_at_work(database: Database) -> None:
    """Airflow ends or skips all tasks of a DAG run that is marked, but those that clean up; and the DAG run ends as it was
    marked."""
    found = database.do("ended")

    chain = database_of_nights.CHAIN
    for number, task in enumerate(chain[:-1]):
        done = dict.fromkeys(chain[:number], "success")
        stopped = {**done, task: "failed", **dict.fromkeys(chain[number + 1 :], "skipped")}
        assert found.pop(f"stopped in {task}") == [stopped, "failed"], task
        states, ending = found.pop(f"failed in {task}")
        assert ending == "failed"
        assert states | {"audit": ""} == {
            **done,
            task: "failed",
            **dict.fromkeys(chain[number + 1 :], "upstream_failed"),
            "audit": "",
        }
    deferred = {"plan": "success", "extract": "success", "infer": "failed", **dict.fromkeys(chain[3:], "skipped")}
    assert found == {
        "stopped in infer, deferred": [deferred, "failed"],
        "stopped before it began": [dict.fromkeys(chain, "skipped"), "failed"],
        "marked successful in infer": [{**deferred, "infer": "success"}, "success"],
        "published": [dict.fromkeys(chain, "success"), "success"],
        "nothing to do": [dict.fromkeys(chain, "skipped"), "success"],
    }


def test_the_notification_of_a_failed_night_has_its_words_and_its_page(database: Database) -> None:
    """By a real DAG processor, which gets neither from the scheduler."""
    assert database.do("calls_back") == "failed"

    # It may read the files once before it asks for callbacks.
    database.environment["AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL"] = "1"
    database.airflow("dag-processor", "--num-runs", "2")

    page = f"https://airflow.example/dags/{database.job['job']}/runs/scheduled__x"
    assert database.paper.read_text() == f"extract of 2026-11-20: division by zero: 100 / 0 {page}\n"
