"""A folder of DAGs as a deployment has it: the repository's own DAG files, and job and stream files that a test chooses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

ROOT = Path(__file__).resolve().parents[3]
JOB_FILE = ROOT / "dags" / "jobs" / "package-embeddings.yaml"

Parse = Callable[..., DagBag]


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parse:
    """``parse(good=text, bad=text)`` lays out dags/ with these job files and parses it as Airflow does.

    streams: the names of files of streams, which are not read.
    """
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", "acme")
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    dags = tmp_path / "dags"

    def parse(streams: Sequence[str] = (), **jobs: str) -> DagBag:
        (dags / "jobs").mkdir(parents=True, exist_ok=True)
        for source in (ROOT / "dags").glob("*.py"):
            shutil.copy(source, dags)
        for name, text in jobs.items():
            (dags / "jobs" / f"{name}.yaml").write_text(text)
        for name in streams:
            (dags / "streams").mkdir(exist_ok=True)
            (dags / "streams" / f"{name}.yaml").touch()
        return DagBag(dag_folder=dags)

    return parse


@pytest.fixture
def job_text() -> str:
    """The job file of the repository."""
    return JOB_FILE.read_text()
