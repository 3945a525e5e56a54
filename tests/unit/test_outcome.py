"""What a JobSet's end means: the ledger first, then deadline, loss, and what the pods say."""

from __future__ import annotations

import pytest

from nightshift import exits
from nightshift.jobset.outcome import Ending, classify
from nightshift.jobset.runtime import ContainerStatus, JobSetStatus, PodStatus

pytestmark = pytest.mark.unit


def pod(name: str, *, reason: str = "", code: int | None = 1) -> PodStatus:
    return PodStatus(name, 0, 1, "Failed", reason, (ContainerStatus("driver", exit_code=code),))


def failed(*pods: PodStatus) -> JobSetStatus:
    return JobSetStatus("js", "Failed", "FailedJobs", "FailedIndexes", pods=pods)


COMPLETED = JobSetStatus("js", "Completed", "AllJobsCompleted")


@pytest.mark.parametrize(
    ("status", "missing", "expired", "ending", "again"),
    [
        (COMPLETED, 0, False, Ending.DONE, False),
        (failed(pod("a", code=exits.CONFIG)), 0, False, Ending.DONE, False),
        (None, 0, False, Ending.DONE, False),
        (COMPLETED, 0, True, Ending.DONE, False),
        (JobSetStatus("js", "Running"), 3, True, Ending.DEADLINE, False),
        (None, 3, True, Ending.DEADLINE, False),
        (None, 3, False, Ending.LOST, True),
        (failed(pod("a", code=exits.RESUME), pod("b", code=exits.CONFIG)), 3, False, Ending.MISCONFIGURED, False),
        (COMPLETED, 3, False, Ending.INCOMPLETE, True),
        (failed(pod("a", reason="PreemptionByScheduler", code=143)), 3, False, Ending.PREEMPTED, True),
        (failed(pod("a", reason="PreemptionByScheduler"), pod("b")), 3, False, Ending.FAILED, True),
        (failed(pod("a", code=exits.RESUME)), 3, False, Ending.FAILED, True),
        (failed(), 3, False, Ending.FAILED, True),
    ],
)
def test_first_match_wins(status: JobSetStatus | None, missing: int, expired: bool, ending: Ending, again: bool) -> None:
    outcome = classify(status, missing=missing, chunks=10, expired=expired)

    assert (outcome.ending, outcome.worth_retrying) == (ending, again)


def test_the_explanation_says_what_is_missing_and_the_raw_condition() -> None:
    assert classify(failed(pod("a")), missing=3, chunks=10).explanation == (
        "the JobSet failed (FailedJobs: FailedIndexes) and 3 of 10 chunks are missing"
    )
    assert classify(failed(pod("a", code=exits.CONFIG)), missing=1, chunks=2).explanation == (
        "a ended with a failure that trying again cannot help; 1 of 2 chunks are missing"
    )
