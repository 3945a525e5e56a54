"""Where the pages are: below Airflow's own address, which may have a path."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlsplit

from airflow.configuration import conf

PREFIX: Final = "/nightshift"
"""Below which Airflow mounts the pages."""


def airflow_address(path: str) -> str:
    """The path of one of Airflow's own pages in a browser: with that of ``[api] base_url``, which a proxy may have set."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + path


def address(path: str) -> str:
    """The path of one of our pages in a browser. path: begins with a slash."""
    return airflow_address(PREFIX + path)


def run_address(prefix: str, rest: str = "") -> str:
    """The page of a run, or a part of it. prefix: JOB/PARTITION/RUN. rest: begins with a slash, if there is one."""
    return address(f"/runs/{quote(prefix, safe='/')}{rest}")


def job_address(job: str, rest: str = "") -> str:
    """The page of a job, or a part of it."""
    return address(f"/jobs/{quote(job, safe='')}{rest}")


def dag_run_address(dag_id: str, dag_run_id: str, task: str = "") -> str:
    """Airflow's page of a DAG run, or with the logs of one of its tasks."""
    page = f"/dags/{quote(dag_id, safe='')}/runs/{quote(dag_run_id, safe='')}"
    return airflow_address(page + (f"/tasks/{quote(task, safe='')}" if task else ""))
