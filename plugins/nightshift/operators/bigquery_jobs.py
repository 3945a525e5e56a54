"""Waiting for BigQuery jobs in the triggerer, and judging their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, TaskDeferred

from nightshift.operators.failures import Entry, NightFailed
from nightshift.triggers.bigquery import BigQueryJobsTrigger, jobs_event

if TYPE_CHECKING:
    from nightshift.warehouse import Warehouse

SHORT_WAIT_S = 20.0
"""How long a worker waits for BigQuery jobs before it frees its slot."""
JOB_DEADLINE_S = 3600.0
"""How long one BigQuery job may take, an outage of its API included, before the task is repeated."""


class BigQueryJobFailed(AirflowException):
    """A BigQuery job failed, was lost or took too long. A repeat of the task finds it or starts another."""


def finished_soon(warehouse: Warehouse, job_ids: Sequence[str]) -> dict[str, Any] | None:
    """The event if the jobs are done within `SHORT_WAIT_S`, as most of a small run are, else None.

    Waiting here costs less than the process in which a deferred task resumes.
    """
    from nightshift.warehouse import WarehouseUnavailable

    until = time.monotonic() + SHORT_WAIT_S
    while True:
        try:
            states = [warehouse.job(job_id) for job_id in job_ids]
        except WarehouseUnavailable:
            return None
        if all(state.done for state in states):
            return jobs_event(states)
        if time.monotonic() >= until:
            return None
        time.sleep(1)


def deferred(job_ids: Sequence[str], *, method_name: str) -> TaskDeferred:
    """Raise it to free the worker's slot until all of `job_ids` are done; then `method_name` gets the event."""
    trigger = BigQueryJobsTrigger(job_ids=job_ids, deadline=time.time() + JOB_DEADLINE_S)
    return TaskDeferred(trigger=trigger, method_name=method_name)


def finished_jobs(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The statistics of the jobs, in order, if all succeeded.

    Raises with the jobs' own errors: NightFailed if trying again would fail too, else BigQueryJobFailed.
    """
    if problem := event.get("problem"):
        raise BigQueryJobFailed(problem)
    failed = [job for job in event["jobs"] if job["error"]]
    if failed:
        words = "; ".join(job["error"] for job in failed)
        if any(not job["retryable"] for job in failed):
            raise NightFailed(words, Entry.BIGQUERY)
        raise BigQueryJobFailed(words)
    return [job["statistics"] for job in event["jobs"]]
