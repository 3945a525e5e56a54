"""Waiting for BigQuery jobs in the triggerer, and judging what came of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException
from nightshift.triggers.bigquery import BigQueryJobsTrigger

if TYPE_CHECKING:
    from nightshift.operators.run import RunOperator

JOB_DEADLINE_S = 3600.0
"""How long one BigQuery job may take, an outage of its API included, before the task is repeated."""


class BigQueryJobFailed(AirflowException):
    """A BigQuery job failed, was lost or took too long. A repeat of the task finds it or starts its successor."""


def defer_for_jobs(operator: RunOperator, job_ids: Sequence[str], *, method_name: str) -> NoReturn:
    """Gives the worker's place back until all of `job_ids` are done; then `method_name` gets the event."""
    trigger = BigQueryJobsTrigger(job_ids=job_ids, deadline=time.time() + JOB_DEADLINE_S)
    operator.defer(trigger=trigger, method_name=method_name)


def finished_jobs(event: dict[str, Any]) -> list[dict[str, Any]]:
    """The statistics of the jobs, in order, when all went well. Raises BigQueryJobFailed in the jobs' own words."""
    if problem := event.get("problem"):
        raise BigQueryJobFailed(problem)
    failed = [f"{job['job_id']}: {job['error']}" for job in event["jobs"] if job["error"]]
    if failed:
        raise BigQueryJobFailed("; ".join(failed))
    return [job["statistics"] for job in event["jobs"]]
