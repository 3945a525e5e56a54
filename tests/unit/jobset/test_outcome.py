"""What a JobSet's end means, judged from what a real cluster said."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from nightshift.jobset.observation import Observation, slim_pod
from nightshift.jobset.verdict.exit_codes import signal_name
from nightshift.jobset.verdict.outcome import Ending, classify
from nightshift.jobset.verdict.text import EVIDENCE_MAX, WORDS_MAX, shorten
from tests.unit.endings import APPLICATION, LOST, PREEMPTED, RESUMABLE, RUNNING, STARTUP, ending, is_retried
from tests.unit.recorded import CASES, recorded

pytestmark = pytest.mark.unit


# case, ending and whether another JobSet can end otherwise, reason, words of the explanation
ENDED = [
    ("completed", (Ending.SUCCEEDED, False), "AllJobsCompleted", "is complete"),
    ("spot-failed", PREEMPTED, "TerminationByKubelet", "taken away or refused: TerminationByKubelet (1 pod)"),
    ("node-deleted-failed", PREEMPTED, "DeletionByPodGC", "DeletionByPodGC (1 pod)"),
    ("evicted-failed", PREEMPTED, "EvictionByEvictionAPI", "EvictionByEvictionAPI (1 pod)"),
    ("tainted-failed", PREEMPTED, "DeletionByTaintManager", "DeletionByTaintManager (1 pod)"),
    ("outranked-failed", PREEMPTED, "PreemptionByScheduler", "PreemptionByScheduler (1 pod)"),
    ("node-refuses", PREEMPTED, "OutOfcpu", "OutOfcpu (1 pod)"),
    ("pod-deleted-failed", PREEMPTED, "Deleted", "Deleted (2 pods)"),
    ("pod-deleted-deaf", PREEMPTED, "Deleted", "Deleted (1 pod)"),
    ("pod-deleted-by-force", PREEMPTED, "Deleted", "Deleted (1 pod)"),
    ("slice-evicted", PREEMPTED, "EvictionByEvictionAPI", "failed (BackoffLimitExceeded) only because"),
    ("deleted-then-fails", APPLICATION, "FailedIndexes", "exit code 1; before that, 1 pod had been taken away"),
    ("killed", APPLICATION, "FailedIndexes", "index 0 of 1 failed: driver ended with exit code 137 (SIGKILL)"),
    ("segfault", APPLICATION, "FailedIndexes", "exit code 139 (SIGSEGV)"),
    ("config-error", APPLICATION, "FailedIndexes", "index 1 of 2 failed: driver ended with exit code 78 (not retryable"),
    ("exits-1-failed", APPLICATION, "FailedIndexes", "index 1 of 2 failed: driver ended with exit code 1, 2 times"),
    ("work-is-left", RESUMABLE, "FailedIndexes", "exit code 75 (work is left), 2 times"),
    ("out-of-memory", APPLICATION, "OOMKilled", "exit code 137 (SIGKILL, out of memory)"),
    ("too-much-disk", APPLICATION, "FailedIndexes", 'Evicted: Usage of EmptyDir volume "scratch" exceeds the limit "1Mi"'),
    ("bad-command", APPLICATION, "FailedIndexes", "exit code 128 (it could not be started)"),
    ("restarts-in-place", APPLICATION, "BackoffLimitExceeded", "exit code 1, 2 times"),
    ("slice-fails", APPLICATION, "BackoffLimitExceeded", "Job worker-1 of 2 Jobs failed: driver ended with exit code 1"),
    ("deadline", (Ending.DEADLINE, False), "DeadlineExceeded", "night-worker-0 was active longer than"),
    ("queue-time-over", (Ending.DEADLINE, False), "MaximumExecutionTimeExceeded", "max-exec-time-seconds"),
    ("jobset-deleted-running", LOST, "Deleted", "is being deleted from outside"),
    ("jobset-deleted", LOST, "NotFound", "no longer exists"),
]

# case, what it is when the caller has no patience left, reason, words of the explanation
NOT_ENDED = [
    ("running", RUNNING, "Running", "its pods: 2 running"),
    ("evicted-running", RUNNING, "Running", "1 running, 1 disrupted"),
    ("node-deleted-running", STARTUP, "Unschedulable", "the pod waits for a node: 0/5 nodes are available"),
    ("pod-deleted-running", RUNNING, "Running", "1 deleted"),
    ("exits-1-running", RUNNING, "Running", "1 failed"),
    ("job-deleted", RUNNING, "Running", "1 succeeded, 1 deleted"),
    ("queue-resumes", RUNNING, "Running", "1 running, 1 stopped"),
    ("spot-running", STARTUP, "Unschedulable", "the pod waits for a node: 0/6 nodes are available: "),
    ("tainted-running", STARTUP, "Unschedulable", "5 node(s) had untolerated taint(s)"),
    ("outranked-running", STARTUP, "Unschedulable", "1 Insufficient cpu"),
    (
        "unschedulable",
        STARTUP,
        "Unschedulable",
        "all 2 pods wait for a node: 0/6 nodes are available: 2 Insufficient nvidia.com/gpu",
    ),
    ("queue-waits", STARTUP, "Pending", "insufficient unused quota for cpu in flavor"),
    ("queue-too-small", STARTUP, "Pending", "> maximum capacity (200m)"),
    ("queue-preempts", STARTUP, "Preempted", "the JobSet waits in its queue: Preempted to accommodate a workload"),
    ("queue-deactivated", STARTUP, "Deactivated", "The workload is deactivated"),
    ("suspended", STARTUP, "Suspended", "JobSet night is suspended: it is in no queue"),
    ("forbidden", STARTUP, "FailedCreate", "2 pods cannot be created: Error creating: pods"),
    ("missing-volume", STARTUP, "FailedMount", 'secret "no-such-secret" not found'),
    ("sidecar-loads", STARTUP, "PodInitializing", "the pod waits to start: server runs, startup probe not yet passed"),
    ("sidecar-ends", APPLICATION, "CrashLoopBackOff", "container server: it keeps exiting, last with exit code 1"),
    ("bad-image", APPLICATION, "ImagePullBackOff", 'Back-off pulling image "localhost/no-such-image:1"'),
    ("missing-secret", APPLICATION, "CreateContainerConfigError", 'secret "no-such-secret" not found'),
]


@pytest.mark.parametrize(("case", "expected", "reason", "words"), ENDED, ids=[row[0] for row in ENDED])
def test_an_end_by_its_name(case: str, expected: tuple[Ending, bool], reason: str, words: str) -> None:
    outcome = classify(recorded(case))

    assert (ending(outcome), outcome.reason) == (expected, reason)
    assert words in outcome.explanation
    assert outcome.resumes_at_once == (outcome.ending in (Ending.PREEMPTED, Ending.LOST))


@pytest.mark.parametrize(("case", "expected", "reason", "words"), NOT_ENDED, ids=[row[0] for row in NOT_ENDED])
def test_what_is_not_over_goes_on_until_the_caller_has_no_patience_left(
    case: str, expected: tuple[Ending, bool], reason: str, words: str
) -> None:
    patient, starved = classify(recorded(case)), classify(recorded(case), starved=True)

    assert ending(patient) == RUNNING
    assert ending(starved) == expected
    assert patient.reason == starved.reason == reason
    assert words in starved.explanation
    assert starved.explanation == patient.explanation


def test_every_recording_is_judged_above() -> None:
    assert sorted(row[0] for row in ENDED + NOT_ENDED) == CASES


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("starved", [False, True])
def test_slim_pods_say_all_that_whole_ones_do(case: str, starved: bool) -> None:
    seen = recorded(case)
    slim = replace(seen, pods=tuple(slim_pod(pod) for pod in seen.pods))

    assert classify(slim, starved=starved) == classify(seen, starved=starved)


@pytest.mark.parametrize("case", CASES)
def test_the_order_in_which_objects_come_decides_nothing(case: str) -> None:
    seen = recorded(case)
    expected = classify(seen, starved=True)
    chance = random.Random(case)

    for _ in range(5):
        jobs, pods, events = (chance.sample(things, len(things)) for things in (seen.jobs, seen.pods, seen.events))
        outcome = classify(Observation(seen.jobset, tuple(jobs), tuple(pods), seen.workload, tuple(events)), starved=True)
        assert (outcome.ending, outcome.reason) == (expected.ending, expected.reason)
        assert set(outcome.failed) == set(expected.failed)


@pytest.mark.parametrize("case", CASES)
def test_a_condition_that_is_false_says_nothing(case: str) -> None:
    seen = recorded(case)
    expected = classify(seen)
    no = {"status": "False", "reason": "No", "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for kind, things in {
        "Completed": [seen.jobset] if seen.jobset else [],
        "Failed": [*seen.jobs, *([seen.jobset] if seen.jobset else [])],
        "DisruptionTarget": seen.pods,
        "Evicted": [seen.workload] if seen.workload else [],
    }.items():
        for thing in things:
            thing["status"].setdefault("conditions", []).insert(0, {"type": kind, **no})

    assert classify(seen) == expected


@pytest.mark.parametrize("case", CASES)
def test_after_the_deadline_nothing_is_tried_again(case: str) -> None:
    before, after = classify(recorded(case)), classify(recorded(case), expired=True)

    if before.ending in (Ending.SUCCEEDED, Ending.APPLICATION, Ending.DEADLINE):
        assert after == before
    else:
        assert (after.ending, is_retried(after)) == (Ending.DEADLINE, False)
        assert before.explanation in after.explanation
        assert after.evidence == before.evidence


@pytest.mark.parametrize("case", CASES)
def test_every_outcome_says_what_to_do_and_names_its_evidence(case: str) -> None:
    outcome = classify(recorded(case), starved=True)

    assert outcome.reason.isalnum()
    assert outcome.reason[0].isupper()
    assert outcome.advice[0].isupper()
    assert outcome.explanation
    assert not outcome.explanation.endswith(".") or outcome.explanation.endswith("...")
    assert len(outcome.evidence) <= EVIDENCE_MAX
    assert all(line.split("/")[0] in ("jobset", "job", "pod", "workload") and ": " in line for line in outcome.evidence)


def test_the_containers_that_failed_are_named_for_their_logs_and_rows() -> None:
    outcome = classify(recorded("exits-1-failed"))

    assert [(each.index, each.job_index, each.container, each.exit_code, each.reason) for each in outcome.failed] == [
        (1, 0, "driver", 1, "Error"),
        (1, 0, "driver", 1, "Error"),
    ]
    assert {each.pod for each in outcome.failed} == {
        pod["metadata"]["name"] for pod in recorded("exits-1-failed").pods if "-worker-0-1-" in pod["metadata"]["name"]
    }
    assert all(each.node.startswith("node-") for each in outcome.failed)
    assert outcome.advice == f"The last lines of container driver in pod {outcome.failed[0].pod} say why."


def test_of_a_slice_the_job_is_named_too() -> None:
    assert {(each.job_index, each.index) for each in classify(recorded("slice-fails")).failed} == {(1, 1)}


def test_a_signal_has_its_name() -> None:
    [failed] = classify(recorded("segfault")).failed

    assert signal_name(failed.exit_code) == "SIGSEGV"


def test_a_command_that_is_not_there_is_said_in_the_advice() -> None:
    assert 'exec: "no-such-program": executable file not found' in classify(recorded("bad-command")).advice


def test_the_callers_own_codes() -> None:
    seen = recorded("exits-1-failed")

    assert is_retried(classify(seen, resume_codes={1}))
    assert "Not retryable" in classify(seen, permanent_codes={1}).advice
    assert "Not retryable" in classify(seen, resume_codes={1}, permanent_codes={1}).advice


@pytest.mark.parametrize("length", [1, WORDS_MAX - 1, WORDS_MAX, WORDS_MAX + 1, 10 * WORDS_MAX])
def test_a_controllers_message_is_as_long_as_it_may_be(length: int) -> None:
    said = shorten("x" * length)

    assert len(said) == min(length, WORDS_MAX)
    assert said.endswith("...") == (length > WORDS_MAX)
