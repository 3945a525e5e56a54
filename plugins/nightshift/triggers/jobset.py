"""Waits for a JobSet in the triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.triggers.polling import DeadlinePassed, poll

if TYPE_CHECKING:
    from nightshift.jobset.runtime import JobSetStatus, Runtime

VERSION = 1
KILL_TIMEOUT_S = 25.0


class JobSetTrigger(BaseTrigger):
    """
    Fires once: when the JobSet is finished or gone, or when the deadline has passed.

    The event is ``{"version", "name", "ending"}``; ending is ``finished``, ``lost`` or ``deadline``. What the JobSet looks
    like is asked again by the task, so that nothing large goes through Airflow's database. An unreachable runtime never
    ends the wait before the deadline. A person who fails or clears the waiting task deletes the JobSet (`on_kill`); a
    restart of the triggerer does not.

    :param name: the JobSet.
    :param deadline: Unix time.
    :param poll_interval: seconds between two questions.
    """

    def __init__(self, *, name: str, deadline: float, poll_interval: float = 5.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name
        self.deadline = deadline
        self.poll_interval = poll_interval
        self._last_progress = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {"name": self.name, "deadline": self.deadline, "poll_interval": self.poll_interval}
        return "nightshift.triggers.jobset.JobSetTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.jobset.runtime import JobSetNotFound, RuntimeUnavailable

        try:
            runtime = await asyncio.to_thread(_runtime)
            await poll(
                lambda: self._ask(runtime),
                final=lambda status: status.finished,
                interval_s=self.poll_interval,
                deadline=self.deadline,
                unavailable=RuntimeUnavailable,
                log=self.log,
            )
            ending = "finished"
        except JobSetNotFound:
            ending = "lost"
        except DeadlinePassed:
            ending = "deadline"
        yield TriggerEvent({"version": VERSION, "name": self.name, "ending": ending})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Deletes the JobSet: a person has acted on the task, and nobody waits for the pods any more."""
        self.log.info("Deleting JobSet %s: its task was ended by a person", self.name)
        async with asyncio.timeout(KILL_TIMEOUT_S):
            await asyncio.to_thread(lambda: _runtime().stop(self.name))

    def _ask(self, runtime: Runtime) -> JobSetStatus:
        status = runtime.status(self.name)
        running = sum(pod.phase == "Running" for pod in status.pods)
        failed = sum(pod.phase == "Failed" for pod in status.pods)
        progress = f"{status.phase}: {running} pods run, {len(status.completed_indexes)} indexes are done, {failed} pods failed"
        if progress != self._last_progress:
            self.log.info("JobSet %s is %s", self.name, progress)
            self._last_progress = progress
        return status


def _runtime() -> Runtime:
    from nightshift.hooks.jobset import runtime_for
    from nightshift.settings import Settings

    return runtime_for(Settings.from_environment())
