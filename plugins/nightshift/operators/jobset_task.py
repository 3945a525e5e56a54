"""What every task that runs a JobSet does, in four steps: adopt or create it, wait deferred, conclude from its end, and
continue or return (`nightshift.jobset.fleet`). What outlives an attempt is in its memory."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from nightshift.jobset.fleet.adopt import Adoption
from nightshift.jobset.fleet.conclude import Conclusion, Done
from nightshift.jobset.fleet.memory import FleetState, Memory
from nightshift.jobset.fleet.records import JobSetEvent
from nightshift.jobset.fleet.work import JobSetWork, Waited
from nightshift.operators.jobset_errors import JobSetUnknown, runtime_failures

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger


class JobSetTask(JobSetWork):
    """A mixin for operators, which implement `JobSetWork` and call these methods from those that Airflow calls."""

    deferrable: bool = True
    _adoption: Adoption | None = None
    _event: JobSetEvent | None = None
    """The one that woke this process."""
    _context: Context
    """Airflow's, of this attempt."""

    @property
    def attempt_id(self) -> str:
        return str(self._context["ti"].id)

    @property
    def memory_id(self) -> str:
        """Of its memory, in this task's state store."""
        return self.work_id

    @abstractmethod
    def waiter(self, waited: list[Waited], deadline: float) -> BaseTrigger:
        """The trigger that fires `jobset_event`s."""

    def run_jobset(self, context: Context) -> Any:
        """`execute`'s part: returns the result of a JobSet that is already done, or defers."""
        self._context = context
        with runtime_failures():
            return self._have_and_wait(self._in_time(self._memory().load()))

    def complete(self, context: Context, payload: Mapping[str, Any]) -> Any:
        """`execute_complete`'s part: draws conclusions from the event about a JobSet. payload: JSON of a `JobSetEvent`."""
        self._context = context
        self._event = event = JobSetEvent.from_json(payload)
        with runtime_failures():
            memory = self._memory()
            kept = memory.load()
            live = next((each for each in kept.live if self.jobset_name(each.generation) == event.name), None)
            if live is None:
                self.log.info("No longer waiting for JobSet %s", event.name)
                # Without any JobSet, another process of this task has ended it meanwhile: this one starts over.
                return self._have_and_wait(kept if kept.live else self._in_time(kept))
            following = Conclusion(self, memory).draw(kept, live, event)
            return following.result if isinstance(following, Done) else self._have_and_wait(following)

    def drop_jobsets(self, context: Context) -> None:
        """Deletes the JobSets that this task may still have: its work turned out to be done."""
        self._context = context
        memory = self._memory()
        kept = memory.load()
        for live in kept.live:
            self.runtime.stop(self.jobset_name(live.generation))
        memory.save(replace(kept, live=()))

    def end_on_kill(self) -> None:
        """`on_kill`'s part, when the worker's process gets SIGTERM: a draining worker looks the same as a task that is
        ended. A JobSet that this process has created is seconds old and is deleted; any other stays for the next attempt."""
        if self._adoption is None or self._adoption.created is None:
            return
        name, uid = self._adoption.created
        self.log.info("Deleting JobSet %s, which this process has just created", name)
        self.runtime.stop(name, uid)

    def _in_time(self, kept: FleetState) -> FleetState:
        return kept.in_time(_start_of(self._context), self.seconds(), time.time())

    def _have_and_wait(self, kept: FleetState) -> Any:
        # Set before it begins, because `end_on_kill` may come at any moment.
        self._adoption = Adoption(self, self._memory())
        kept, waited = self._adoption.have_all(kept)
        trigger = self.waiter(waited, kept.deadline)
        if self.deferrable:
            raise TaskDeferred(trigger=trigger, method_name="execute_complete")
        self._adoption = None
        return self.complete(self._context, asyncio.run(_first_event(trigger)))

    def remembered(self) -> FleetState:
        """What was saved last."""
        return self._memory().load()

    def _memory(self) -> Memory:
        return Memory(self._context["task_state_store"], self.memory_id, self.attempt_id)


def _start_of(context: Context) -> int:
    """A number that stays the same through Airflow's retries and changes when a user clears the task.

    Airflow sets `max_tries` to the task's retries, and a clear sets it to the tries so far and the retries.
    """
    return int(context["ti"].max_tries)


async def _first_event(trigger: BaseTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise JobSetUnknown("the trigger ended without an event")
