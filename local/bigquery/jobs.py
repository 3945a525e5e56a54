"""Jobs: an id is used once, no job stays RUNNING for ever, and a cancelled job ends.

- *One id, one job.* local-bigquery checks whether the id exists and then writes it: two submits at once both pass, and the
  work is done twice. BigQuery answers 409 to all but one. `submit` reserves the id between the check and the write.
- *A job that outlives its process.* local-bigquery keeps the record RUNNING, and a client polls it for ever. In BigQuery every
  job ends. `interrupted` ends such jobs at the next start with `jobBackendError`, the reason that BigQuery gives a job
  that failed internally and may be sent again under a new id.
- *A cancelled job.* local-bigquery interrupts DuckDB once, which has no effect if DuckDB is between two statements, or before
  the first; the query then runs to its end and occupies a core. `cancel` repeats the interrupt until the job has ended.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
from typing import Any

import duckdb
from local_bigquery import errors
from local_bigquery.engine import database
from local_bigquery.errors import BigQueryError, already_exists
from local_bigquery.jobs import runner, store
from local_bigquery.models import Job, JobStatistics

log = logging.getLogger("local.bigquery")

AGAIN_S = 0.1

_submit = runner.submit
_cancel = runner.cancel
_lock = threading.Lock()
_reserved: set[tuple[str, str]] = set()


def install() -> None:
    runner.submit = submit
    runner.cancel = cancel
    errors.STATUSES["jobBackendError"] = (400, "INTERNAL")


def submit(project_id: str, job_id: str, configuration: Any, upload: str | None = None) -> Any:
    """local-bigquery's submit; for each job id, only one call may be inside at a time."""
    key = (project_id, job_id)
    with _lock:
        if key in _reserved:
            raise already_exists("Job", f"{project_id}:{job_id}")
        _reserved.add(key)
    try:
        return _submit(project_id, job_id, configuration, upload)
    finally:
        with _lock:
            _reserved.discard(key)


def cancel(project_id: str, job_id: str) -> Job:
    """local-bigquery's cancel, repeated until it works."""
    running = runner._running.get((project_id, job_id))
    job = _cancel(project_id, job_id)
    if running and not running.future.done():
        threading.Thread(target=_interrupt, args=(running,), daemon=True).start()
    return job


def _interrupt(running: Any) -> None:
    while concurrent.futures.wait([running.future], timeout=AGAIN_S).not_done:
        try:
            if running.cursor:
                running.cursor.interrupt()
        except duckdb.Error:
            # The job has just closed it.
            continue


def interrupted() -> int:
    """Ends the jobs that an earlier process left PENDING or RUNNING; returns how many. Call before serving."""
    message = "The job was interrupted when the emulator stopped. Retry the job with a new job id."
    left = database.fetch("SELECT resource FROM emulator.jobs WHERE state <> 'DONE'")
    for (resource,) in left:
        job = Job.model_validate_json(resource)
        store.save(runner._done(job, JobStatistics(), BigQueryError("jobBackendError", message)))
        log.warning("job %s was interrupted by the end of the last process", job.jobReference.jobId)
    return len(left)
