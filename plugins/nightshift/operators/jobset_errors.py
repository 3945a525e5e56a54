"""The exceptions of a task that runs a JobSet: which of them are worth a retry, and what each means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from nightshift.jobset.fleet.errors import Failure, JobSetFailed
from nightshift.operators.failures import OF_JOBSETS, OF_REASONS


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
    """It failed for an unknown reason; the log has all conditions."""


class JobSetApplicationFailure(AirflowFailException):
    """The program itself failed; another attempt would fail the same way."""


class JobSetDeadlineExceeded(AirflowFailException):
    """The task's deadline passed."""


class JobSetRefused(AirflowFailException):
    """The cluster refuses the JobSet, or a JobSet with its name belongs to another task."""


_RAISED: Final[Mapping[Failure, type[AirflowException]]] = {
    Failure.PREEMPTED: JobSetPreempted,
    Failure.STARTUP: JobSetStartupTimeout,
    Failure.LOST: JobSetLost,
    Failure.UNAVAILABLE: JobSetUnavailable,
    Failure.RESUMABLE: JobSetTaskError,
    Failure.UNKNOWN: JobSetUnknown,
    Failure.APPLICATION: JobSetApplicationFailure,
    Failure.DEADLINE: JobSetDeadlineExceeded,
    Failure.REFUSED: JobSetRefused,
}


def raised_for(failed: JobSetFailed) -> AirflowException:
    """The exception of the task: one of AirflowFailException if another attempt cannot help."""
    error = _RAISED[failed.failure](str(failed))
    error.entry = OF_REASONS.get(failed.reason, OF_JOBSETS[failed.failure])  # type: ignore[attr-defined]
    return error


@contextmanager
def runtime_failures() -> Iterator[None]:
    """Turns the failures of JobSets and of their runtime into those of a task."""
    from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable

    try:
        yield
    except JobSetFailed as error:
        raise raised_for(error) from None
    except JobSetNotFound as error:
        raise raised_for(JobSetFailed(Failure.LOST, f"{error}: it has just been deleted")) from error
    except RuntimeUnavailable as error:
        words = f"The cluster cannot be reached ({error}). The JobSet, if it exists, keeps running."
        raise raised_for(JobSetFailed(Failure.UNAVAILABLE, words)) from error
    except RequestRefused as error:
        raise raised_for(JobSetFailed(Failure.REFUSED, str(error))) from error
