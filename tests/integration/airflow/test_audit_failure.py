"""The task audit_failure in a real Airflow: what it knows of the task that failed, and how the DAG run ends."""

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
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, BigQueryEmulator, StorageEmulator

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


def test_a_dag_run_that_fails_leaves_a_row_and_ends_as_failed(
    tmp_path: Path,
    bigquery_emulator: BigQueryEmulator,
    bigquery_client: bigquery.Client,
    storage_emulator: StorageEmulator,
    storage_client: StorageClient,
) -> None:
    """Its query names a table that does not exist, so the task plan fails for good."""
    name = f"fail{uuid.uuid4().hex[:8]}"
    storage_client.create_bucket(name)
    bigquery_client.create_dataset(name)
    job = yaml.safe_load((ROOT / "dags/jobs/package-embeddings.yaml").read_text())
    job["source"]["query"] = f"SELECT name, version, summary, description FROM `{name}.gone` WHERE day = @partition"
    job["destination"]["table"] = f"{name}.vectors"
    jobs = tmp_path / "dags" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "job.yaml").write_text(yaml.safe_dump(job))
    shutil.copy(ROOT / "dags" / "batch_inference.py", tmp_path / "dags")
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": ANONYMOUS_CONNECTION,
        "BIGQUERY_EMULATOR_HOST": bigquery_emulator.url,
        "STORAGE_EMULATOR_HOST": storage_emulator.url,
        "NIGHTSHIFT_BUCKET": name,
        "NIGHTSHIFT_PROJECT": PROJECT,
        "NIGHTSHIFT_DATASET": f"{name}_own",
        "PYTHONPATH": str(ROOT / "plugins"),
    }

    def airflow(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    airflow("db", "migrate")
    said = airflow("dags", "test", job["job"], "--conf", json.dumps({"partition": "2026-11-20"}))

    rows = bigquery_client.query(f"SELECT * FROM `{name}_own.audit`").result()
    (row,) = rows
    assert (row.state, row.failed_task, row.job, row.run_id) == ("failed", "plan", job["job"], None), said[-4000:]
    assert f"{name}.gone" in row.error
    assert row.by_dag_run_id.startswith("manual__")
    assert "state=failed" in said, said[-4000:]
