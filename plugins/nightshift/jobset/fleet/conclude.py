"""The end of a JobSet: it is judged, logged and closed; then success, another JobSet, or an exception."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nightshift.jobset.fleet.adopt import settled
from nightshift.jobset.fleet.errors import Failure, JobSetFailed, failure_of
from nightshift.jobset.fleet.policy import after_loss
from nightshift.jobset.fleet.work import JobSetWork

if TYPE_CHECKING:
    from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
    from nightshift.jobset.fleet.records import JobSetEvent
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.verdict.outcome import Outcome

LAST_LINES: Final = 20
LAST_LINES_PODS: Final = 4
RESUME_PAUSE_S: Final = 5.0


@dataclass(frozen=True)
class Done:
    """The task has succeeded. result: what it returns."""

    result: Any


class Conclusion:
    """For one attempt of a task."""

    def __init__(self, task: JobSetWork, memory: Memory) -> None:
        self._task = task
        self._memory = memory

    def draw(self, kept: FleetState, live: FleetMember, event: JobSetEvent) -> Done | FleetState:
        """What follows from the trigger's event about `live`: Done, or which JobSets to wait for from now on.

        Raises JobSetFailed, which fails the task.
        """
        from nightshift.jobset.verdict.outcome import Ending, cannot_start_outcome

        name = event.name
        if event.ending == "refused":
            # Nothing waits for the others now.
            for each in kept.live:
                self._close(self._name(each), None)
            raise JobSetFailed(Failure.REFUSED, f"JobSet {name} is refused: {event.detail}")
        seen = _with_last_words(self._observe(name, event.uid), event)
        outcome = self._task.judge(seen, expired=event.ending == "deadline", starved=event.ending == "starved")
        if event.stuck and outcome.reason != "Running" and outcome.ending in (Ending.RUNNING, Ending.STARTUP):
            outcome = cannot_start_outcome(event.stuck, outcome.evidence)
        self._log_outcome(name, outcome)
        return self._undecided(kept, event, seen, outcome) or self._ended(kept, live, name, seen, outcome)

    def _undecided(self, kept: FleetState, event: JobSetEvent, seen: Observation, outcome: Outcome) -> FleetState | None:
        """What follows for a JobSet that has not ended but needs a decision; None if it must be ended."""
        from nightshift.jobset.verdict.outcome import Ending

        if outcome.ending not in (Ending.RUNNING, Ending.STARTUP):
            return None
        if event.ending == "gave_up" and outcome.ending is Ending.RUNNING:
            # A user has brought it back into its queue meanwhile.
            return kept
        if event.ending not in ("starved", "disrupted", "broken", "gave_up", "look"):
            return None
        new = self._task.relive(kept, event)
        if new is None:
            return kept if outcome.ending is Ending.RUNNING else None
        for each in kept.live:
            if each not in new.live:
                if self._name(each) == event.name:
                    self._task.ended(event.name, seen)
                self._close(self._name(each), None)
        return new

    def _ended(self, kept: FleetState, live: FleetMember, name: str, seen: Observation, outcome: Outcome) -> Done | FleetState:
        from nightshift.jobset.verdict.outcome import Ending

        self._show_last_lines(name, outcome)
        self._task.ended(name, seen)
        if outcome.ending is Ending.SUCCEEDED:
            result = self._task.result(name, seen)
            for each in kept.live:
                self._close(self._name(each), seen if each == live else None)
            self._memory.save(kept.over())
            return Done(result)
        self._close(name, seen)
        self._await_end(name)
        kept = kept.without(live)
        self._memory.save(kept)
        # Helpers were never meant to do its work.
        missed = not live.helps and all(each.helps for each in kept.live)
        if kept.live and not missed:
            self._task.log.info("Another JobSet of this task is still running")
            return kept
        if outcome.resumes_at_once and kept.resumes < self._task.resume_limit and kept.deadline > time.time():
            self._task.log.info("Continuing with a new JobSet; this uses none of the task's retries")
            time.sleep(RESUME_PAUSE_S)
            resumed = replace(kept, resumes=kept.resumes + 1)
            return after_loss(resumed, live, self._task.whole(kept), time.time())
        if kept.live:
            self._task.log.warning("Only JobSets that were added to help are still running")
            return kept
        failure = failure_of(name, outcome)
        if not failure.permanent and kept.deadline <= time.time():
            # A retry would begin after the deadline of all attempts.
            words = f"{failure} But the deadline has passed, so the task is not tried again."
            failure = JobSetFailed(Failure.DEADLINE, words)
        if failure.permanent:
            self._memory.save(kept.over())
        raise failure

    def _name(self, live: FleetMember) -> str:
        return self._task.jobset_name(live.generation)

    def _observe(self, name: str, uid: str) -> Observation:
        from nightshift.jobset.observation import Observation

        seen = self._task.runtime.observe(name, closely=True)
        if seen.jobset is not None and uid and seen.jobset["metadata"].get("uid") != uid:
            return Observation(None)
        return seen

    def _close(self, name: str, seen: Observation | None) -> None:
        """Deletes a JobSet, or marks it as judged. A JobSet that is gone is fine."""
        from nightshift.jobset.observation import finished
        from nightshift.jobset.runtime import JobSetNotFound

        if seen is None:
            self._task.runtime.stop(name, "")
        elif seen.jobset is not None:
            uid = str(seen.jobset["metadata"].get("uid", ""))
            if not self._task.keep_finished or not finished(seen.jobset):
                self._task.runtime.stop(name, uid)
                return
            try:
                self._task.runtime.mark_judged(name, uid, self._task.attempt_id)
            except JobSetNotFound:
                return

    def _await_end(self, name: str) -> None:
        """So that the next JobSet does not start beside pods that still drain."""
        try:
            settled(self._task, name)
        except JobSetFailed as error:
            self._task.log.warning("%s", error)

    def _log_outcome(self, name: str, outcome: Outcome) -> None:
        self._task.log.info("JobSet %s: %s (%s): %s", name, outcome.ending.value, outcome.reason, outcome.explanation)
        for line in outcome.evidence:
            self._task.log.info("  %s", line)
        for word in outcome.unknown:
            taken = "a pod that had begun to work is taken to have failed by itself, any other to be refused by its node"
            self._task.log.warning("A kubelet ended a pod for a reason that nightshift does not know, %r: %s", word, taken)

    def _show_last_lines(self, name: str, outcome: Outcome) -> None:
        """Logs the last lines of failed containers, since users read the end of the log first. Never fails the task."""
        for failed in outcome.failed[:LAST_LINES_PODS]:
            about = self._task.describe(failed)
            if failed.lines:
                self._task.log.info(
                    "Last lines of %s in %s%s:\n%s", failed.container, failed.pod, about, "\n".join(failed.lines)
                )
                continue
            try:
                lines = list(self._task.runtime.logs(name, failed.pod, failed.container, last=LAST_LINES))
            except Exception as error:
                self._task.log.info("%s: the log of %s%s is not available (%s)", failed.pod, failed.container, about, error)
            else:
                self._task.log.info("Last lines of %s in %s%s:\n%s", failed.container, failed.pod, about, "\n".join(lines))


def _with_last_words(seen: Observation, event: JobSetEvent) -> Observation:
    """Adds what the trigger saw and the cluster no longer has: deleted pods, and a finished JobSet past its TTL."""
    there = {pod["metadata"].get("uid") for pod in seen.pods}
    gone = tuple(pod for pod in event.pods if pod["metadata"]["uid"] not in there)
    return replace(seen, jobset=seen.jobset or event.jobset, pods=(*seen.pods, *gone))
