"""Why a task that runs JobSets ends without success, and whether another attempt may help."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nightshift.jobset.verdict.outcome import Outcome


class Failure(StrEnum):
    """What went wrong. The exceptions of `nightshift.operators.jobset_errors`, one for each, say what it means."""

    PREEMPTED = "preempted"
    STARTUP = "startup"
    LOST = "lost"
    UNAVAILABLE = "unavailable"
    RESUMABLE = "resumable"
    UNKNOWN = "unknown"
    APPLICATION = "application"
    DEADLINE = "deadline"
    REFUSED = "refused"


PERMANENT: Final = frozenset({Failure.APPLICATION, Failure.DEADLINE, Failure.REFUSED})
"""Another attempt of the task cannot help."""


class JobSetFailed(Exception):
    """failure: why. reason: more about it, in one word (`nightshift.jobset.verdict.outcome.Outcome.reason`); '' for none.

    The message says what happened and what to do.
    """

    def __init__(self, failure: Failure, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.failure = failure
        self.reason = reason

    @property
    def permanent(self) -> bool:
        return self.failure in PERMANENT


class NotCreated(JobSetFailed):
    """The runtime refuses this JobSet, or its manifest cannot be rendered: nothing of it exists."""

    def __init__(self, message: str) -> None:
        super().__init__(Failure.REFUSED, message)


def failure_of(name: str, outcome: Outcome) -> JobSetFailed:
    """For an end other than success. name: of the JobSet."""
    from nightshift.jobset.verdict.outcome import Ending

    failures = {
        Ending.DEADLINE: Failure.DEADLINE,
        Ending.PREEMPTED: Failure.PREEMPTED,
        Ending.STARTUP: Failure.STARTUP,
        Ending.APPLICATION: Failure.RESUMABLE if outcome.resumable else Failure.APPLICATION,
        Ending.LOST: Failure.LOST,
    }
    failure = failures.get(outcome.ending, Failure.UNKNOWN)
    what = f"{outcome.explanation[:1].upper()}{outcome.explanation[1:]}"
    advice = f" {outcome.advice}" if outcome.advice else ""
    return JobSetFailed(failure, f"{what.rstrip('.')}.{advice} (JobSet {name})", outcome.reason)
