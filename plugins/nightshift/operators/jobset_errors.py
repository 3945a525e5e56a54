"""The exceptions of a task that runs a JobSet: which of them are worth a retry, and what each says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from nightshift.jobset.verdict.outcome import Ending, Outcome


class JobSetTaskError(AirflowException):
    """The JobSet ended without success; another attempt may succeed."""


class JobSetPreempted(JobSetTaskError):
    """Pods were taken away more often than the task continues by itself."""


class JobSetStartupTimeout(JobSetTaskError):
    """Its pods were not placed or not started in time; a later attempt may succeed."""


class JobSetLost(JobSetTaskError):
    """The JobSet was deleted from outside repeatedly."""


class JobSetUnavailable(JobSetTaskError):
    """The cluster cannot be reached. The JobSet, if it exists, keeps running, and the next attempt finds it."""


class JobSetUnknown(JobSetTaskError):
    """It failed and nothing says why; the log has all conditions."""


class JobSetApplicationFailure(AirflowFailException):
    """The program itself failed; another attempt would fail the same way."""


class JobSetDeadlineExceeded(AirflowFailException):
    """The task's deadline passed."""


class JobSetRefused(AirflowFailException):
    """The cluster refuses the JobSet, or a JobSet with its name belongs to another task."""


def failure_of(name: str, outcome: Outcome) -> AirflowException:
    """The exception for an end other than success."""
    from nightshift.jobset.verdict.outcome import Ending

    kinds: dict[Ending, type[AirflowException]] = {
        Ending.DEADLINE: JobSetDeadlineExceeded,
        Ending.PREEMPTED: JobSetPreempted,
        Ending.STARTUP: JobSetStartupTimeout,
        Ending.APPLICATION: JobSetTaskError if outcome.resumable else JobSetApplicationFailure,
        Ending.LOST: JobSetLost,
    }
    return kinds.get(outcome.ending, JobSetUnknown)(f"JobSet {name}: {outcome.explanation}. {outcome.advice}")


@contextmanager
def runtime_failures() -> Iterator[None]:
    """Turns the runtime's failures into those of a task."""
    from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable

    try:
        yield
    except JobSetNotFound as error:
        raise JobSetLost(f"{error}: it has just been deleted") from error
    except RuntimeUnavailable as error:
        raise JobSetUnavailable(f"The cluster cannot be reached ({error}). The JobSet, if it exists, keeps running.") from error
    except RequestRefused as error:
        raise JobSetRefused(str(error)) from error
