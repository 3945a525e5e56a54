"""Airflow reads its environment when it is imported, so a test session gets an Airflow home of its own before any test is."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from nightshift import exits

ROOT = Path(__file__).resolve().parent.parent

# The object lives as long as the session and removes the folder at its end.
_home = tempfile.TemporaryDirectory(prefix="nightshift-test-airflow-", ignore_cleanup_errors=True)

os.environ.update(
    {
        "AIRFLOW_HOME": _home.name,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Of a file of DAGs; a busy machine may need more than the 30 s that are usual.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "600",
        # As on Cloud Composer, whose scheduler and triggerer have none: what Airflow must find is in the package.
        "AIRFLOW__CORE__PLUGINS_FOLDER": f"{_home.name}/no-plugins",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home.name}/airflow.db",
    }
)


@pytest.fixture(autouse=True)
def signals_stay_with_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test runs in this process does not end it at a signal, then or later."""
    monkeypatch.setattr(exits, "on_signals", lambda code: None)
