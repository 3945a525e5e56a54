"""DAG runs whose job file is gone: none of their tasks can start, and Airflow ignores them (docs/operate/warehouse.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.fields.text import n

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

    from nightshift.settings import Settings

NAME: Final = "runs without a job file"
MOST: Final = 200
"""Jobs that are checked: one request to Airflow for each."""


def orphans(settings: Settings, credentials: GCSCredentialProvider, folder: Path) -> list[Finding]:
    """A finding for each job that has a folder in the bucket and DAG runs that are not over, but no file that Airflow makes a
    DAG of. Only in a task: Airflow answers no other process. folder: of the job files."""
    import obstore

    from nightshift.store import open_store

    if not folder.is_dir():
        return [Skipped(NAME, f"{folder} is no folder of jobs")]
    try:
        store = open_store(f"gs://{settings.bucket}", credentials=credentials)
        folders = obstore.list_with_delimiter(store)["common_prefixes"]
    except (obstore.exceptions.BaseError, OSError) as error:
        return [Skipped(NAME, f"the bucket cannot be listed: {str(error).splitlines()[0]}")]
    gone = sorted(set(folders) - _jobs(folder))
    counts = {name: _running(name) for name in [each for each in gone if not each.startswith("_")][:MOST]}
    found: list[Finding] = [
        Failed(
            NAME,
            f"not over: {n(runs, 'DAG run')} of {name}, and no good file in {folder} has this job",
            "these runs: they wait for ever, and nothing else says so",
            f"airflow dags delete {name}   # or put the file back: they go on",
        )
        for name, runs in counts.items()
        if runs
    ]
    return found or [Ok(NAME, "none")]


def _jobs(folder: Path) -> set[str]:
    from nightshift.spec import load_all

    return {job.job for job in load_all(folder)[0].values()}


def _running(dag_id: str) -> int:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id, states=["queued", "running"])
