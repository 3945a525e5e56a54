"""DAG runs in a real Airflow, by ``airflow dags test``: what the audit row of one that failed knows, and that one ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml
from google.cloud import bigquery

from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, BigQueryEmulator, StorageEmulator

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


class Deployment:
    """An Airflow, a bucket, a dataset and the packages' job, whose table is ``{name}.packages``."""

    def __init__(self, folder: Path, bigquery_emulator: BigQueryEmulator, storage_emulator: StorageEmulator) -> None:
        self.name = f"fail{uuid.uuid4().hex[:8]}"
        self.folder, self.client = folder, bigquery_emulator.client()
        storage_emulator.client().create_bucket(self.name)
        self.client.create_dataset(self.name)
        self.job = yaml.safe_load((ROOT / "dags/jobs/package-embeddings.yaml").read_text())
        columns = "name, version, summary, description"
        self.job["source"]["query"] = f"SELECT {columns} FROM `{self.name}.packages` WHERE day = @partition"
        self.job["destination"]["table"] = f"{self.name}.vectors"
        (folder / "dags" / "jobs").mkdir(parents=True)
        shutil.copy(ROOT / "dags" / "batch_inference.py", folder / "dags")
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder}/airflow.db",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": ANONYMOUS_CONNECTION,
            "BIGQUERY_EMULATOR_HOST": bigquery_emulator.url,
            "STORAGE_EMULATOR_HOST": storage_emulator.url,
            "NIGHTSHIFT_BUCKET": self.name,
            "NIGHTSHIFT_PROJECT": PROJECT,
            "NIGHTSHIFT_DATASET": f"{self.name}_own",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(ROOT / "plugins"),
        }

    def create_source(self) -> None:
        """Without rows."""
        fields = [bigquery.SchemaField(name, "STRING") for name in ("name", "version", "summary", "description")]
        schema = [*fields, bigquery.SchemaField("day", "DATE")]
        self.client.create_table(bigquery.Table(f"{PROJECT}.{self.name}.packages", schema=schema))

    def airflow(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        return done.stdout + done.stderr

    def test(self, **conf: object) -> str:
        """``airflow dags test``; what it says."""
        (self.folder / "dags" / "jobs" / f"{self.job['job']}.yaml").write_text(yaml.safe_dump(self.job))
        self.airflow("db", "migrate")
        return self.airflow("dags", "test", self.job["job"], "--conf", json.dumps(conf))

    def audit(self) -> bigquery.Row:
        row: bigquery.Row
        (row,) = self.client.query(f"SELECT * FROM `{self.name}_own.audit`").result()
        return row


@pytest.fixture
def deployment(tmp_path: Path, bigquery_emulator: BigQueryEmulator, storage_emulator: StorageEmulator) -> Deployment:
    return Deployment(tmp_path, bigquery_emulator, storage_emulator)


def test_a_dag_run_that_fails_leaves_a_row_and_ends_as_failed(deployment: Deployment) -> None:
    """Its query names a table that does not exist, so the task plan fails for good."""
    said = deployment.test(partition="2026-11-20")

    row = deployment.audit()
    assert (row.state, row.failed_task, row.job) == ("failed", "plan", deployment.job["job"]), said[-4000:]
    assert row.run_id is None
    assert f"{deployment.name}.packages" in row.error
    assert row.by_dag_run_id.startswith("manual__")
    assert "state=failed" in said, said[-4000:]


def test_a_misspelt_param_computes_nothing_and_its_row_says_why(deployment: Deployment) -> None:
    deployment.create_source()

    said = deployment.test(parition="2026-11-20")

    row = deployment.audit()
    assert (row.state, row.failed_task) == ("failed", "plan"), said[-4000:]
    wrong = "keys that are no params: 'parition' (did you mean partition?)"
    assert wrong in row.error
    plan_said = said.partition("Task failed with exception")[2].partition("::endgroup::")[0]
    stack, _, end = plan_said.partition("::group::Post Execute")
    assert wrong in stack
    assert wrong in end
    assert 'File "' not in end, "the log ends with what is wrong, not with Airflow's frames"
    assert [table.table_id for table in deployment.client.list_tables(deployment.name)] == ["packages"]


def test_a_day_through_one_process_with_open_lineage_ends(deployment: Deployment, tmp_path: Path) -> None:
    """One process runs all tasks, and OpenLineage forks it for each event: the second task's never ended."""
    deployment.create_source()
    events = tmp_path / "events.json"
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    deployment.environment["AIRFLOW__OPENLINEAGE__TRANSPORT"] = json.dumps(transport)

    said = deployment.test(partition="2026-11-20")

    assert "state=success" in said, said[-4000:]
    assert deployment.audit().state == "published"
    assert {json.loads(line)["eventType"] for line in events.read_text().splitlines()} >= {"START", "COMPLETE"}
