"""What every task that runs a JobSet does, in four steps: adopt or create it (`jobset_adopt`), wait deferred, conclude from its
end (`jobset_end`), and continue or return. What outlives an attempt is in its memory (`jobset_memory`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import TaskDeferred

from nightshift.operators.jobset_adopt import Adoption
from nightshift.operators.jobset_end import Conclusion, Done
from nightshift.operators.jobset_errors import JobSetUnknown, runtime_failures
from nightshift.operators.jobset_memory import Kept, Memory, start_of
from nightshift.operators.jobset_work import JobSetWork

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger


class JobSetTask(JobSetWork):
    """A mixin for operators, which implement `JobSetWork` and call these methods from those that Airflow calls."""

    _adoption: Adoption | None = None

    def run_jobset(self, context: Context) -> Any:
        """`execute`'s part: returns the result of a JobSet that is already done, or defers."""
        with runtime_failures():
            return self._have_and_wait(context, self._in_time(context, self._memory(context).load()))

    def complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """`execute_complete`'s part: draws conclusions from the event about a JobSet."""
        with runtime_failures():
            memory = self._memory(context)
            kept = memory.load()
            live = next((each for each in kept.live if self.jobset_name(context, each.generation) == event["name"]), None)
            if live is None:
                self.log.info("No longer waiting for JobSet %s", event["name"])
                # Without any JobSet, another process of this task has ended it meanwhile: this one begins from the start.
                return self._have_and_wait(context, kept if kept.live else self._in_time(context, kept))
            following = Conclusion(self, context, memory).draw(kept, live, event)
            return following.result if isinstance(following, Done) else self._have_and_wait(context, following)

    def drop_jobsets(self, context: Context) -> None:
        """Deletes the JobSets that this task may still have: its work turned out to be done."""
        memory = self._memory(context)
        kept = memory.load()
        for live in kept.live:
            self.runtime.stop(self.jobset_name(context, live.generation))
        memory.save(replace(kept, live=()))

    def end_on_kill(self) -> None:
        """`on_kill`'s part, when the worker's process gets SIGTERM: a draining worker looks the same as a person who fails
        the task. A JobSet that this process has created is seconds old and is deleted; any other stays for the next attempt.
        """
        if self._adoption is None or self._adoption.created is None:
            return
        name, uid = self._adoption.created
        self.log.info("Deleting JobSet %s, which this process has just created", name)
        self.runtime.stop(name, uid)

    def _in_time(self, context: Context, kept: Kept) -> Kept:
        return kept.in_time(start_of(context), self.seconds(), time.time())

    def _have_and_wait(self, context: Context, kept: Kept) -> Any:
        # Set before it begins, because `end_on_kill` may come at any moment.
        self._adoption = Adoption(self, context, self._memory(context))
        kept, waited = self._adoption.have_all(kept)
        trigger = self.waiter(context, waited, kept.deadline)
        if self.deferrable:
            raise TaskDeferred(trigger=trigger, method_name="execute_complete")
        self._adoption = None
        return self.complete(context, asyncio.run(_first_event(trigger)))

    def remembered(self, context: Context) -> Kept:
        """What was saved last."""
        return self._memory(context).load()

    def _memory(self, context: Context) -> Memory:
        return Memory(context, self.work(context))


async def _first_event(trigger: BaseTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise JobSetUnknown("the trigger ended without an event")
