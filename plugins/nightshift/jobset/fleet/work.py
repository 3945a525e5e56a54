"""What a task defines about the work of its JobSets: the interface between it and what all such tasks share."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nightshift.jobset.fleet.memory import FleetMember, FleetState
    from nightshift.jobset.fleet.records import JobSetEvent
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.runtime import Runtime
    from nightshift.jobset.verdict.outcome import Outcome
    from nightshift.jobset.verdict.pod_ends import FailedContainer


@dataclass(frozen=True)
class Waited:
    """A JobSet that the task waits for."""

    live: FleetMember
    name: str
    uid: str
    seen: Observation = field(repr=False)


class JobSetWork:
    """
    To be implemented by the task.

    :param resume_limit: how often the task continues by itself, without using up a retry, after pods were taken away or the
        JobSet was deleted from outside.
    """

    if TYPE_CHECKING:
        log: Any

    resume_limit: int = 100
    keep_finished: bool = False

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Where its JobSets run."""

    @property
    @abstractmethod
    def work_id(self) -> str:
        """The same for every attempt, and for every task that may share the JobSet."""

    @property
    @abstractmethod
    def attempt_id(self) -> str:
        """Of this attempt; a JobSet carries its owner's."""

    @abstractmethod
    def jobset_name(self, generation: int) -> str:
        """Depends only on the work and the generation."""

    @abstractmethod
    def manifest(self, live: FleetMember, name: str) -> dict[str, Any]:
        """The manifest to submit. Raises ValueError, with a sentence, if there cannot be one."""

    @abstractmethod
    def seconds(self) -> float:
        """From the start of the first attempt to the deadline of all attempts."""

    @abstractmethod
    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        """What the observation means for this task."""

    @abstractmethod
    def result(self, name: str, seen: Observation) -> Any:
        """What a successful task returns."""

    def ended(self, name: str, seen: Observation) -> None:
        """A JobSet has ended, and this is what is left of it. Must not raise."""

    def describe(self, failed: FailedContainer) -> str:
        """What the failed index was working on, for a message; '' if unknown."""
        return ""

    def relive(self, kept: FleetState, event: JobSetEvent) -> FleetState | None:
        """For a JobSet that has not ended but needs a decision: the new state; None: give up on it."""
        return None

    def whole(self, kept: FleetState) -> tuple[str, int]:
        """Profile and workers of a JobSet that is to do all of the work; 0 for the default number of workers."""
        return "", 0
