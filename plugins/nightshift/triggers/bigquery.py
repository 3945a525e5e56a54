"""Waits for BigQuery jobs in the triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.triggers.ended import ended_by_a_person
from nightshift.triggers.polling import DeadlinePassed, poll
from nightshift.triggers.shielded import run_shielded

if TYPE_CHECKING:
    from nightshift.warehouse import JobState, Warehouse

VERSION = 1
Done = TypeVar("Done")


class BigQueryJobsTrigger(BaseTrigger):
    """
    Fires once, when every job is done or the deadline has passed. If a person ends the task, it cancels
    those at work: they cost money, and a publishing transaction must not commit then. A cleared task finds them again.

    The event: ``{"version", "jobs": [JobState as a dict, ...], "problem"}``; problem is None, or why their ends are unknown.
    A job's failure is not a problem of the trigger: it is in the job's ``error``.

    :param job_ids: jobs in the deployment's project and location.
    :param deadline: Unix time.
    :param poll_interval: seconds between polls.
    """

    def __init__(self, *, job_ids: Sequence[str], deadline: float, poll_interval: float = 2.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.job_ids = list(job_ids)
        self.deadline = deadline
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"job_ids": self.job_ids, "deadline": self.deadline, "poll_interval": self.poll_interval}
        return "nightshift.triggers.bigquery.BigQueryJobsTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.warehouse import WarehouseError, WarehouseUnavailable

        problem: str | None = None
        states: list[JobState] = []
        try:
            states = await poll(
                _with_warehouse(lambda warehouse: [warehouse.job(job_id) for job_id in self.job_ids]),
                final=lambda jobs: all(job.done for job in jobs),
                interval_s=self.poll_interval,
                deadline=self.deadline,
                unavailable=WarehouseUnavailable,
                log=self.log,
            )
        except DeadlinePassed:
            problem = f"BigQuery jobs {', '.join(self.job_ids)} were not seen to end before the deadline"
        except (WarehouseError, AirflowException) as error:
            problem = f"BigQuery jobs {', '.join(self.job_ids)}: {error}"
        yield TriggerEvent(jobs_event(states, problem))  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Airflow calls it when the task no longer waits, but not when the triggerer ends."""
        await run_shielded(self._end(), self.log)

    async def _end(self) -> None:
        from nightshift.warehouse import WarehouseUnavailable

        if not await ended_by_a_person(self):
            return
        self.log.info("Canceling BigQuery jobs %s: a person ended their task", ", ".join(self.job_ids))
        await poll(
            _with_warehouse(lambda warehouse: warehouse.jobs.cancel(self.job_ids)),
            final=lambda _: True,
            interval_s=self.poll_interval,
            deadline=self.deadline,
            unavailable=WarehouseUnavailable,
            log=self.log,
            settle_s=0,
        )


def jobs_event(states: Sequence[JobState], problem: str | None = None) -> dict[str, Any]:
    """What `BigQueryJobsTrigger` fires, plain JSON."""
    return {"version": VERSION, "jobs": [asdict(state) for state in states], "problem": problem}


def _with_warehouse(work: Callable[[Warehouse], Done]) -> Callable[[], Done]:
    """Does all of it with one client, which is created at the first call."""
    from nightshift.hooks.warehouse import warehouse_for
    from nightshift.settings import Settings

    warehouse: Warehouse | None = None

    def do() -> Done:
        nonlocal warehouse
        if warehouse is None:
            warehouse = warehouse_for(Settings.from_environment())
        return work(warehouse)

    return do
