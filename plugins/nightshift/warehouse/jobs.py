"""BigQuery jobs whose ids are made from the run: a repeat finds the job of its predecessor and never starts a second one.

The id is ``nightshift-DEPLOYMENT-RUN-YYYYMMDD-STEP-N``. N counts from 0 and increases only after job N has failed, so at most
one job of a step runs at any time, and the one that succeeded, if any, has the highest N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from nightshift.run.order import of_statement
from nightshift.warehouse import schema
from nightshift.warehouse.errors import WarehouseError, passes, refused, translated

if TYPE_CHECKING:
    from google.api_core.retry import Retry
    from google.cloud.bigquery import Client, CopyJob, ExtractJob, LoadJob, QueryJob, UnknownJob

    from nightshift.run.names import RunRef
    from nightshift.settings import Settings

    AnyJob = CopyJob | ExtractJob | LoadJob | QueryJob | UnknownJob

ATTEMPTS_MAX: Final = 50
"""Jobs of one step of one run. A step that fails this often needs someone. Finding a free id looks up each of them."""
CALL_TIMEOUT_S: Final = 30.0
"""For one HTTP request."""
RETRY_TIMEOUT_S: Final = 60.0
"""For one API call with the client's own retries: callers must be able to report soon that BigQuery is unreachable."""


@dataclass(frozen=True)
class JobState:
    """A job at one moment.

    error: BigQuery's own words, None unless the job failed or was lost. retryable: another job may well succeed.
    statistics: plain values: started, ended (ISO 8601), seconds, bytes_processed, slot_seconds, output_rows,
        exported_rows; order: of an export that sorts its rows (`nightshift.run.order.Order`).
    """

    job_id: str
    done: bool
    error: str | None = None
    retryable: bool = False
    statistics: dict[str, Any] = field(default_factory=dict)

    @property
    def cannot_be_ordered(self) -> bool:
        """Whether it is an export in an order that failed for good: a plain one may do what this one cannot."""
        return bool(self.error and "order" in self.statistics and not self.retryable)

    @property
    def attempt(self) -> int:
        """Its number among the jobs of its step."""
        return int(self.job_id.rpartition("-")[2])


def job_id(deployment: str, run: RunRef, step: str, attempt: int) -> str:
    """deployment: `nightshift.settings.Settings.deployment`; two of them may have a run with the same id."""
    return f"nightshift-{deployment}-{_of_run(run, step)}-{attempt}"


def _of_run(run: RunRef, step: str) -> str:
    return f"{run.run_id}-{run.partition.replace('-', '')}-{step}"


class Jobs:
    """Finds, starts and describes the jobs of one deployment."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._deployment = settings.deployment
        self._project = settings.project
        self._location = settings.location

    def find_or_start(
        self, run: RunRef, step: str, start: Callable[[str, int], object], *, holds: Callable[[int], bool] | None = None
    ) -> str:
        """`find_or_start_named` for a step of a run."""
        remedy = "Remove the cause, then trigger the DAG with fresh."
        return self.find_or_start_named(_of_run(run, step), f"The step {step} of run {run.run_id}", remedy, start, holds=holds)

    def find_or_start_named(
        self,
        name: str,
        what: str,
        remedy: str,
        start: Callable[[str, int], object],
        *,
        holds: Callable[[int], bool] | None = None,
    ) -> str:
        """The id of the job of this name: the one at work, else the one that succeeded, else a new one.

        name: part of the job's id. what, remedy: for the error after the last attempt.
        start(job_id, attempt) submits a job under that id, and must let google.api_core's Conflict through: it means that
        another attempt of the task was faster, and its job is used. holds(attempt): whether the effect of that job, which
        succeeded, still exists; if not, another job is started. Raises WarehouseError after `ATTEMPTS_MAX` failures, and for a
        job that BigQuery refuses; WarehouseUnavailable if it cannot be reached.
        """
        from google.api_core.exceptions import Conflict

        error = None
        for attempt in range(ATTEMPTS_MAX):
            numbered = f"nightshift-{self._deployment}-{name}-{attempt}"
            job = self.find(numbered)
            if job is None:
                with translated(f"BigQuery job {numbered} cannot be started"):
                    try:
                        start(numbered, attempt)
                    except Conflict:
                        # From another attempt of this task, or from our own request whose reply was lost.
                        return numbered
                return numbered
            if job.state != "DONE":
                return numbered
            if job.error_result is None and (holds is None or holds(attempt)):
                return numbered
            error = failure(job) or "its result has been deleted."
        raise WarehouseError(f"{what} was tried {ATTEMPTS_MAX} times in BigQuery; the last time: {error} {remedy}")

    def succeeded(self, run: RunRef, step: str) -> AnyJob | None:
        """The job of this step that succeeded last, or None."""
        found = [job for job in self._of_step(run, step) if job.state == "DONE" and job.error_result is None]
        return found[-1] if found else None

    def billed(self, run: RunRef, step: str) -> list[int]:
        """Bytes that the jobs of this step were billed for, as far as they have it."""
        return [billed for job in self._of_step(run, step) if (billed := bytes_billed(job)) is not None]

    def _of_step(self, run: RunRef, step: str) -> Iterator[AnyJob]:
        for attempt in range(ATTEMPTS_MAX):
            job = self.find(job_id(self._deployment, run, step, attempt))
            if job is None:
                return
            yield job

    def state(self, name: str) -> JobState:
        """The state of a job. A job that BigQuery does not know (any more) is done and lost. Raises WarehouseUnavailable."""
        job = self.find(name)
        if job is None:
            return JobState(name, done=True, error=f"BigQuery does not know job {name}: it was lost.", retryable=True)
        found = statistics(job)
        if job.state == "DONE" and job.error_result is None and "order" in found and job.num_child_jobs:
            found["exported_rows"] = self._counted_by(job)
        return JobState(name, job.state == "DONE", failure(job), _retryable(job.error_result or {}), found)

    def _counted_by(self, job: Any) -> int:
        """The one number that a script returns. Its statements are jobs of their own, which not every account may list."""
        with translated(f"The result of BigQuery job {job.job_id} cannot be read"):
            ((found,),) = (tuple(row.values()) for row in map(dict, job.result(timeout=CALL_TIMEOUT_S, retry=bounded_retry())))
            return int(found)

    def cancel(self, names: Sequence[str]) -> None:
        """Ends jobs that are at work: a transaction that is not committed yet leaves nothing. One that BigQuery does not know
        is passed over. Raises WarehouseUnavailable, and WarehouseError if that is not allowed."""
        from google.api_core.exceptions import NotFound

        for name in names:
            with translated(f"BigQuery job {name} cannot be canceled"), suppress(NotFound):
                self._client.cancel_job(
                    name, project=self._project, location=self._location, retry=bounded_retry(), timeout=CALL_TIMEOUT_S
                )

    def find(self, name: str) -> AnyJob | None:
        """The job as it is now, None if BigQuery answers 404."""
        from google.api_core.exceptions import NotFound

        with translated(f"BigQuery job {name} cannot be looked up"):
            try:
                return self._client.get_job(
                    name, project=self._project, location=self._location, retry=bounded_retry(), timeout=CALL_TIMEOUT_S
                )
            except NotFound:
                return None


def bounded_retry() -> Retry:
    """The client's own rules for what is worth repeating, but for `RETRY_TIMEOUT_S` rather than ten minutes."""
    from google.cloud.bigquery import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(RETRY_TIMEOUT_S)


def statistics(job: AnyJob) -> dict[str, Any]:
    slots, order = getattr(job, "slot_millis", None), of_statement(getattr(job, "query", None) or "")
    values: dict[str, Any] = {
        "started": job.started.isoformat() if job.started else None,
        "ended": job.ended.isoformat() if job.ended else None,
        "seconds": (job.ended - job.started).total_seconds() if job.started and job.ended else None,
        "bytes_processed": getattr(job, "total_bytes_processed", None),
        "slot_seconds": None if slots is None else slots / 1000,
        "output_rows": getattr(job, "output_rows", None),
        "exported_rows": _exported_rows(job),
        "order": order and order.to_json(),
    }
    return {name: value for name, value in values.items() if value is not None}


def bytes_billed(job: AnyJob) -> int | None:
    """Of a query; None for other jobs, and before it ends."""
    found: int | None = getattr(job, "total_bytes_billed", None)
    return found


def _exported_rows(job: AnyJob) -> int | None:
    """What an EXPORT DATA statement wrote; the client has no property for it."""
    found = job._properties.get("statistics", {}).get("query", {}).get("exportDataStatistics", {}).get("rowCount")
    return None if found is None else int(found)


def _retryable(error: Mapping[str, Any]) -> bool:
    """error: of a job that has failed. It has no status, so one that fails for an unknown reason is followed by another."""
    reason, message = error.get("reason"), str(error.get("message"))
    # Another try of the task has published the run meanwhile, and dropped what it had staged.
    overtaken = reason == "notFound" and f".{schema.STAGING}" in message
    return overtaken or passes(reason, message, unknown=reason is not None)


def failure(job: AnyJob) -> str | None:
    """What went wrong, with the remedy for the reason; load jobs name the file in their additional errors."""
    result = job.error_result
    if result is None:
        return None
    messages = [str(item.get("message", "")) for item in [result, *(job.errors or [])]]
    # The user's SQL has passed its dry run. What fails with this reason is a check of a script, whose message has the remedy.
    reason = None if result.get("reason") == "invalidQuery" else result.get("reason")
    return str(refused(f"BigQuery job {job.job_id} failed", "; ".join(dict.fromkeys(filter(None, messages))), reason))
