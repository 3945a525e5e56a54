"""What a JobSet's end means. Pure: from a status and the number of missing chunks to one ending in words.

The ledger decides, not the JobSet: with no chunk missing the work is done, however its pods ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift import exits
from nightshift.jobset.runtime import JobSetStatus, PodStatus


class Ending(StrEnum):
    """How a JobSet ended."""

    DONE = "done"
    """Every chunk is committed."""
    MISCONFIGURED = "misconfigured"
    """A driver said that trying again cannot help."""
    PREEMPTED = "preempted"
    """Only disruptions ended pods: another attempt goes on where this one stopped."""
    INCOMPLETE = "incomplete"
    """The JobSet calls itself complete, and chunks are missing."""
    FAILED = "failed"
    """Pods failed, for reasons that another attempt may or may not meet again."""
    LOST = "lost"
    """The JobSet was deleted from outside."""
    DEADLINE = "deadline"
    """The job's deadline passed."""


@dataclass(frozen=True)
class Outcome:
    """An ending, and the sentence for a person; worth_retrying: whether another attempt can end otherwise."""

    ending: Ending
    explanation: str

    @property
    def worth_retrying(self) -> bool:
        return self.ending not in (Ending.DONE, Ending.MISCONFIGURED, Ending.DEADLINE)


def classify(status: JobSetStatus | None, *, missing: int, chunks: int, expired: bool = False) -> Outcome:
    """First match wins. status: None when the JobSet is gone. expired: the deadline passed before an end was seen."""
    if missing == 0:
        return Outcome(Ending.DONE, f"all {chunks} chunks are committed")
    left = f"{missing} of {chunks} chunks are missing"
    if expired:
        return Outcome(Ending.DEADLINE, f"the job's deadline passed and {left}")
    if status is None:
        return Outcome(Ending.LOST, f"the JobSet was deleted from outside and {left}")
    failed = [pod for pod in status.pods if pod.phase == "Failed"]
    said = f"{status.reason}: {status.message}".strip(": ") or status.phase
    if hopeless := [pod.name for pod in failed if _exit_codes(pod) & {exits.CONFIG}]:
        return Outcome(Ending.MISCONFIGURED, f"{_names(hopeless)} ended with a failure that trying again cannot help; {left}")
    if status.phase == "Completed":
        return Outcome(Ending.INCOMPLETE, f"the JobSet is complete ({said}) but {left}")
    if failed and all(pod.reason for pod in failed):
        reasons = ", ".join(sorted({pod.reason for pod in failed}))
        return Outcome(Ending.PREEMPTED, f"pods were taken away ({reasons}) and {left}")
    return Outcome(Ending.FAILED, f"the JobSet failed ({said}) and {left}")


def _exit_codes(pod: PodStatus) -> set[int | None]:
    return {container.exit_code for container in pod.containers}


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
