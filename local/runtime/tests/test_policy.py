"""The local runtime's Indexed Job, as tables: what a pod's end means, what starts next, when a Job is over."""

from __future__ import annotations

import pytest

from local.runtime.policy import IndexedJob, JobPod, Rule, Ruling, completed_indexes, decide, failed_indexes, judge

pytestmark = pytest.mark.unit

IGNORE = Rule("Ignore")
PERMANENT = Rule("FailIndex", "In", (78,), "driver")
FATAL = Rule("FailJob", "In", (42, 43))
ODD = Rule("FailIndex", "NotIn", (1, 75), "driver")


def pods(*rulings: tuple[int, Ruling], at: float = 100.0) -> list[JobPod]:
    """Pods of (index, ruling) that ended at one time."""
    return [JobPod(index, ruling, at if ruling else 0.0, "because") for index, ruling in rulings]


@pytest.mark.parametrize(
    ("rules", "exit_codes", "disrupted", "action"),
    [
        ([], [("driver", 1)], False, "Count"),
        ([IGNORE, PERMANENT], [("driver", 75)], True, "Ignore"),
        # First match wins: a drained pod with the permanent code is still a disruption, and the other way round.
        ([IGNORE, PERMANENT], [("driver", 78)], True, "Ignore"),
        ([PERMANENT, IGNORE], [("driver", 78)], True, "FailIndex"),
        ([IGNORE, PERMANENT], [("driver", 78)], False, "FailIndex"),
        ([IGNORE, PERMANENT], [("driver", 75)], False, "Count"),
        # A named container's rule does not see a dying sidecar; a rule without a name does.
        ([PERMANENT], [("driver", 1), ("server", 78)], False, "Count"),
        ([FATAL], [("driver", 1), ("server", 43)], False, "FailJob"),
        ([ODD], [("driver", 2)], False, "FailIndex"),
        ([ODD], [("driver", 75)], False, "Count"),
        # Exit code 0 matches no rule.
        ([ODD], [("driver", 0), ("helper", 5)], False, "Count"),
        ([IGNORE], [], True, "Ignore"),
        ([IGNORE], [], False, "Count"),
        ([Rule("Count", "In", (78,)), PERMANENT], [("driver", 78)], False, "Count"),
    ],
)
def test_first_matching_rule_decides(
    rules: list[Rule], exit_codes: list[tuple[str, int]], disrupted: bool, action: str
) -> None:
    assert judge(rules, "ns/pod", exit_codes, disrupted=disrupted)[0] == action


@pytest.mark.parametrize(
    ("disrupted", "message"),
    [
        (True, "Pod ns/p has condition DisruptionTarget matching Ignore rule at index 0"),
        (False, "Container driver for pod ns/p failed with exit code 78 matching FailIndex rule at index 1"),
    ],
)
def test_judgement_says_why(disrupted: bool, message: str) -> None:
    assert judge([IGNORE, PERMANENT], "ns/p", [("driver", 78)], disrupted=disrupted)[1] == message


@pytest.mark.parametrize(
    ("limit", "history", "completed", "failed"),
    [
        (0, pods((0, "Count")), (), (0,)),
        (1, pods((0, "Count")), (), ()),
        (1, pods((0, "Count"), (0, "Count")), (), (0,)),
        # Failures are counted for each index, ignored ones and deleted pods never.
        (1, pods((0, "Count"), (1, "Count")), (), ()),
        (0, pods((0, "Ignore"), (0, "Ignore"), (0, "Deleted")), (), ()),
        (5, pods((2, "FailIndex"), (0, "Succeeded")), (0,), (2,)),
        (1, pods((0, "Count"), (0, "Succeeded")), (0,), ()),
        (None, pods((0, "Count"), (0, "Count"), (1, "Succeeded")), (1,), ()),
        (0, pods((3, "Succeeded"), (1, "Succeeded"), (0, "")), (1, 3), ()),
    ],
)
def test_indexes_close(limit: int | None, history: list[JobPod], completed: tuple[int, ...], failed: tuple[int, ...]) -> None:
    job = IndexedJob(completions=4, backoff_limit_per_index=limit)

    assert (completed_indexes(history), failed_indexes(job, history)) == (completed, failed)


@pytest.mark.parametrize(
    ("parallelism", "history", "start"),
    [
        (2, pods(), (0, 1)),
        (9, pods(), (0, 1, 2, 3)),
        (0, pods(), ()),
        (2, pods((0, "")), (1,)),
        (2, pods((0, ""), (1, "")), ()),
        (1, pods((0, ""), (1, "")), ()),
        (2, pods((0, "Succeeded"), (1, "FailIndex")), (2, 3)),
        # An index that waits for its delay does not hold up the next one.
        (1, pods((0, "Count"), at=995.0), (1,)),
        (1, pods((0, "Count"), at=980.0), (0,)),
    ],
)
def test_lowest_open_indexes_start(parallelism: int, history: list[JobPod], start: tuple[int, ...]) -> None:
    job = IndexedJob(completions=4, parallelism=parallelism, backoff_limit_per_index=3)

    assert decide(job, history, started_at=0.0, now=1000.0, backoff_s=10.0).start == start


@pytest.mark.parametrize(
    ("rulings", "delay"),
    [
        (["Count"], 10.0),
        (["Count", "Count"], 20.0),
        (["Ignore"], 10.0),
        (["Count", "Ignore", "Count"], 40.0),
        (["Ignore"] * 7, 600.0),
        (["Ignore"] * 5000, 600.0),
    ],
)
def test_replacement_waits_twice_as_long_each_time(rulings: list[Ruling], delay: float) -> None:
    """Ignored failures too, and never over ten minutes."""
    job = IndexedJob(completions=1, backoff_limit_per_index=9000)
    history = pods(*((0, ruling) for ruling in rulings), at=100.0)

    def start(now: float) -> tuple[int, ...]:
        return decide(job, history, started_at=0.0, now=now, backoff_s=10.0).start

    assert (start(100.0 + delay - 0.5), start(100.0 + delay)) == ((), (0,))


def test_indexes_share_one_delay_without_a_limit_of_their_own() -> None:
    """And a success ends it."""
    job = IndexedJob(completions=3, parallelism=3, backoff_limit=6)
    failed = pods((0, "Count"), at=100.0)

    assert decide(job, failed, started_at=0.0, now=105.0, backoff_s=10.0).start == ()
    later = [*failed, *pods((1, "Succeeded"), at=104.0)]
    assert decide(job, later, started_at=0.0, now=105.0, backoff_s=10.0).start == (0, 2)


@pytest.mark.parametrize(
    ("job", "history", "now", "reason"),
    [
        (IndexedJob(2), pods((0, "Succeeded"), (1, "Succeeded")), 5.0, "CompletionsReached"),
        (IndexedJob(2), pods((0, "Succeeded"), (1, "")), 5.0, None),
        # Other indexes finish first; only then do failed ones fail the job.
        (IndexedJob(2, backoff_limit_per_index=0), pods((0, "Count"), (1, "")), 5.0, None),
        (IndexedJob(2, backoff_limit_per_index=0), pods((0, "Count")), 5.0, None),
        (IndexedJob(2, backoff_limit_per_index=0), pods((0, "Count"), (1, "Succeeded")), 5.0, "FailedIndexes"),
        (IndexedJob(2, backoff_limit_per_index=9), pods((0, "FailIndex"), (1, "Succeeded")), 5.0, "FailedIndexes"),
        (IndexedJob(3, backoff_limit_per_index=0, max_failed_indexes=1), pods((0, "Count")), 5.0, None),
        (
            IndexedJob(3, backoff_limit_per_index=0, max_failed_indexes=1),
            pods((0, "Count"), (1, "Count"), (2, "")),
            5.0,
            "MaxFailedIndexesExceeded",
        ),
        (IndexedJob(1, backoff_limit_per_index=3), pods((0, "FailJob")), 5.0, "PodFailurePolicy"),
        (IndexedJob(1, backoff_limit=1), pods((0, "Count")), 5.0, None),
        (IndexedJob(1, backoff_limit=1), pods((0, "Count"), (0, "Count")), 5.0, "BackoffLimitExceeded"),
        (IndexedJob(1, backoff_limit=1), pods((0, "Ignore"), (0, "Ignore"), (0, "Deleted")), 5.0, None),
        (IndexedJob(1, active_deadline_s=60), pods((0, "")), 61.9, None),
        (IndexedJob(1, active_deadline_s=60), pods((0, "")), 62.0, "DeadlineExceeded"),
        # Work that is done is not undone by the clock.
        (IndexedJob(1, active_deadline_s=60), pods((0, "Succeeded")), 99.0, "CompletionsReached"),
        (IndexedJob(1, active_deadline_s=60, backoff_limit=0), pods((0, "Count")), 99.0, "BackoffLimitExceeded"),
    ],
)
def test_job_ends(job: IndexedJob, history: list[JobPod], now: float, reason: str | None) -> None:
    """The job started at 2 s."""
    decision = decide(job, history, started_at=2.0, now=now, backoff_s=10.0)

    assert (decision.end.reason if decision.end else None) == reason
    if decision.end is not None:
        assert decision.start == ()
        assert decision.end.succeeded == (reason == "CompletionsReached")


def test_fail_job_gives_the_pods_message() -> None:
    end = decide(IndexedJob(1), pods((0, "FailJob")), started_at=0.0, now=1.0, backoff_s=10.0).end

    assert end is not None
    assert end.message == "because"
