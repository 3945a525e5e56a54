"""What a JobSet's end means where a real cluster cannot be made to say it: by altering what one has said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift import exits
from nightshift.jobset.observation import Observation
from nightshift.jobset.verdict.outcome import Ending, classify
from tests.unit.endings import APPLICATION, PREEMPTED, RUNNING, STARTUP, ending, is_retried
from tests.unit.recorded import recorded

pytestmark = pytest.mark.unit


def the_pod(seen: Observation) -> Any:
    [pod] = seen.pods
    return pod


def terminated(pod: Any, **changes: Any) -> None:
    pod["status"]["containerStatuses"][0]["state"]["terminated"].update(changes)


def test_out_of_memory_in_a_pod_that_was_drained_is_a_disruption() -> None:
    seen = recorded("spot-failed")
    terminated(the_pod(seen), exitCode=137, reason="OOMKilled")

    assert ending(classify(seen)) == PREEMPTED


def test_a_deleted_pod_whose_program_had_its_own_trouble_failed_by_itself() -> None:
    for code, reason in ((exits.CONFIG, "Error"), (1, "Error"), (137, "OOMKilled")):
        seen = recorded("pod-deleted-by-force")
        terminated(the_pod(seen), exitCode=code, reason=reason)
        assert classify(seen).ending is Ending.APPLICATION


def test_a_code_that_the_program_gives_when_told_to_end_is_not_its_failure_when_it_was_deleted() -> None:
    seen = recorded("pod-deleted-by-force")
    terminated(the_pod(seen), exitCode=3)

    assert classify(seen).ending is Ending.APPLICATION
    assert classify(seen, resume_codes={3}).ending is Ending.PREEMPTED


def test_a_deleted_pod_whose_end_nobody_saw_was_taken_away() -> None:
    seen = recorded("pod-deleted-by-force")
    the_pod(seen)["status"]["phase"] = "Running"
    the_pod(seen)["status"]["containerStatuses"][0]["state"] = {"running": {}}

    assert ending(classify(seen)) == PREEMPTED
    assert any("how its containers ended is unknown" in line for line in classify(seen).evidence)


@pytest.mark.parametrize("word", ["NodeShutdown", "Terminated", "NodeLost", "UnexpectedAdmissionError", "OutOfpods"])
def test_a_kubelets_word_for_its_nodes_end_is_a_disruption_without_the_condition(word: str) -> None:
    seen = recorded("killed")
    the_pod(seen)["status"]["reason"] = word

    assert ending(classify(seen)) == PREEMPTED
    assert classify(seen).reason == word


def test_a_container_that_was_gone_with_its_node_is_a_disruption() -> None:
    seen = recorded("killed")
    terminated(the_pod(seen), reason="ContainerStatusUnknown")

    assert (ending(classify(seen)), classify(seen).reason) == (PREEMPTED, "ContainerStatusUnknown")


def test_memory_pressure_of_the_node_is_a_disruption() -> None:
    seen = recorded("too-much-disk")
    pressure = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": "low on memory"}
    the_pod(seen)["status"]["conditions"].append(pressure)

    assert (ending(classify(seen)), classify(seen).reason) == (PREEMPTED, "TerminationByKubelet")


def test_a_permanent_code_is_the_programs_own_even_where_it_is_one_that_a_drain_gives() -> None:
    assert classify(recorded("pod-deleted-failed"), permanent_codes={exits.RESUME}).ending is Ending.APPLICATION


def test_one_failure_that_does_not_say_work_is_left_is_not_worth_a_retry() -> None:
    seen = recorded("work-is-left")
    terminated(seen.pods[0], exitCode=1)

    assert ending(classify(seen)) == APPLICATION


def with_one_budget(seen: Observation, replacement: str) -> Observation:
    """As of a Job that counts the failures of all its pods together, and failed a minute before they ended."""
    job: Any = seen.jobs[0]
    del job["status"]["failedIndexes"]
    job["spec"] |= {"backoffLimitPerIndex": None, "backoffLimit": 6, "podReplacementPolicy": replacement}
    for each in job["status"]["conditions"]:
        each["lastTransitionTime"] = "2026-11-21T23:00:00Z"
    for pod in seen.pods:
        terminated(pod, finishedAt="2026-11-21T23:01:00Z")
    return seen


def test_what_ends_after_its_job_has_failed_did_not_fail_it() -> None:
    assert classify(with_one_budget(recorded("pod-deleted-failed"), "Failed")).ending is Ending.UNKNOWN


def test_a_job_that_counts_a_pod_at_its_deletion_fails_before_the_pod_has_ended() -> None:
    assert classify(with_one_budget(recorded("pod-deleted-failed"), "TerminatingOrFailed")).ending is Ending.PREEMPTED


def test_only_what_was_taken_away_before_the_failure_is_told_with_it() -> None:
    seen = recorded("deleted-then-fails")
    assert "before that, 1 pod had been taken away" in classify(seen).explanation
    terminated(next(pod for pod in seen.pods if "deletionTimestamp" in pod["metadata"]), finishedAt="2027-01-01T00:00:00Z")

    assert "taken away" not in classify(seen).explanation


def test_a_failure_of_an_index_that_did_not_fail_decides_nothing() -> None:
    seen = recorded("pod-deleted-failed")
    other = recorded("exits-1-running").pods[1]
    assert other["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] == "1"

    assert classify(seen).ending is Ending.PREEMPTED
    assert classify(replace(seen, pods=(*seen.pods, other))).ending is Ending.PREEMPTED


def test_what_a_job_stops_for_its_own_end_decides_nothing() -> None:
    seen = recorded("slice-fails")
    others = tuple(pod for pod in seen.pods if "-worker-1-1-" not in pod["metadata"]["name"])

    outcome = classify(replace(seen, pods=others))
    assert (outcome.ending, outcome.reason) == (Ending.UNKNOWN, "BackoffLimitExceeded")
    assert any("stopped: Stopped" in line for line in outcome.evidence)


def test_a_host_that_somebody_deletes_is_taken_away_from_the_others() -> None:
    seen = recorded("slice-evicted")
    for pod in seen.pods:
        pod["status"]["conditions"] = [each for each in pod["status"]["conditions"] if each["type"] != "DisruptionTarget"]
    [leader, other] = sorted(seen.pods, key=lambda pod: str(pod["metadata"]["name"]))
    terminated(leader, finishedAt="2026-11-21T23:00:00Z")

    terminated(other, finishedAt="2026-11-21T23:00:01Z")
    assert (classify(seen).ending, classify(seen).reason) == (Ending.PREEMPTED, "Deleted")
    # Within one second nobody can tell which came first: then it is the program's failure, which is not repeated for ever.
    terminated(other, finishedAt="2026-11-21T23:00:00Z")
    assert classify(seen).ending is Ending.APPLICATION


def test_of_hosts_that_fail_together_the_disruption_is_the_reason_within_the_same_second() -> None:
    seen = recorded("slice-evicted")
    for pod in seen.pods:
        terminated(pod, finishedAt="2026-11-21T23:00:00Z")
        for each in pod["status"]["conditions"]:
            each["lastTransitionTime"] = "2026-11-21T23:00:00Z"

    assert classify(seen).ending is Ending.PREEMPTED


def test_an_earlier_restart_by_the_programs_own_failure_counts() -> None:
    """What used up the restarts of the JobSet was not only what ended it."""
    seen = recorded("slice-fails")
    last = [pod for pod in seen.pods if pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1"]
    gone = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    for pod in last:
        pod["status"]["conditions"].append({**gone, "lastTransitionTime": "2026-11-21T00:00:00Z"})

    assert [each.exit_code for each in classify(seen).failed] == [1]
    for pod in seen.pods:
        pod["status"]["conditions"].append({**gone, "lastTransitionTime": "2026-11-21T00:00:00Z"})
    assert classify(seen).ending is Ending.PREEMPTED


def test_a_failure_that_no_pod_explains_stays_unknown_with_the_raw_conditions() -> None:
    seen = recorded("exits-1-failed")
    alone = classify(replace(seen, pods=()))
    bare = classify(replace(seen, pods=(), jobs=()))

    assert (alone.ending, alone.reason, is_retried(alone), alone.resumes_at_once) == (
        Ending.UNKNOWN,
        "FailedIndexes",
        True,
        False,
    )
    assert any("FailedIndexes: Job has failed indexes, failedIndexes 1" in line for line in alone.evidence)
    assert (bare.ending, bare.reason) == (Ending.UNKNOWN, "FailedJobs")
    [line] = bare.evidence
    assert line.startswith("jobset/night: Failed=True FailedJobs: jobset failed due to one or more job failures")


def test_a_deadline_names_what_had_failed_before_it() -> None:
    seen = recorded("exits-1-failed")
    for job in seen.jobs:
        for each in job["status"]["conditions"]:
            each["reason"] = "DeadlineExceeded"

    outcome = classify(seen)
    assert outcome.ending is Ending.DEADLINE
    assert [each.exit_code for each in outcome.failed] == [1, 1]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("DeactivatedDueToRequeuingLimitExceeded", Ending.STARTUP),
        ("DeactivatedDueToAdmissionCheck", Ending.STARTUP),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", Ending.DEADLINE),
        ("Deactivated", Ending.RUNNING),
    ],
)
def test_what_kueue_has_given_up_does_not_wait_for_patience(cause: str, expected: Ending) -> None:
    seen = recorded("queue-time-over")
    assert seen.workload
    for each in seen.workload["status"]["conditions"]:
        if each["type"] == "Evicted":
            each["reason"] = cause

    assert classify(seen).ending is expected


def test_an_eviction_that_was_taken_back_is_over() -> None:
    seen = recorded("queue-time-over")
    assert seen.workload
    seen.workload["spec"]["active"] = True

    assert classify(seen).ending is Ending.RUNNING


def test_a_jobset_in_a_queue_that_kueue_does_not_know_says_so() -> None:
    outcome = classify(replace(recorded("queue-waits"), workload=None), starved=True)

    assert ending(outcome) == STARTUP
    assert "Kueue has no Workload for it in queue 'nightly'" in outcome.explanation


def test_an_admission_check_that_is_not_ready_is_named() -> None:
    seen = recorded("queue-waits")
    assert seen.workload
    check = {"name": "dws", "state": "Pending", "message": "the provisioning request waits for capacity"}
    seen.workload["status"]["admissionChecks"] = [check]

    assert any(
        "admission check dws is Pending: the provisioning request waits for capacity" in line
        for line in classify(seen).evidence
    )


def test_some_of_the_pods_wait() -> None:
    seen = recorded("unschedulable")
    [first, second] = seen.pods
    first["status"]["phase"] = "Running"

    assert classify(replace(seen, pods=(first, second)), starved=True).explanation.startswith("1 of 2 pods waits for a node")


def test_what_waiting_does_not_mend_goes_before_what_it_does() -> None:
    seen, broken = recorded("unschedulable"), recorded("bad-image")

    assert ending(classify(replace(seen, pods=(seen.pods[0], *broken.pods)), starved=True)) == APPLICATION


def test_an_old_word_about_pods_that_have_come_since_holds_nothing_up() -> None:
    seen, forbidden = recorded("running"), recorded("forbidden")

    assert ending(classify(replace(seen, events=forbidden.events), starved=True)) == RUNNING


def test_the_pods_that_a_quota_still_refuses_are_counted() -> None:
    seen, forbidden = recorded("running"), recorded("forbidden")
    outcome = classify(replace(seen, pods=seen.pods[:1], events=forbidden.events), starved=True)

    assert (ending(outcome), outcome.reason) == (STARTUP, "FailedCreate")
    assert outcome.explanation.startswith("1 pod cannot be created: ")


def test_pods_that_a_job_no_longer_needs_are_not_missed() -> None:
    """Two at once, of which one has succeeded: one more is wanted."""
    seen = recorded("forbidden")
    [job] = seen.jobs
    changed: Any = {**job, "status": {**job["status"], "completedIndexes": "0"}}
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)

    assert classify(replace(seen, jobs=(changed,)), starved=True).explanation.startswith("1 pod cannot be created: ")


def test_jobs_that_cannot_be_created_say_so() -> None:
    seen = recorded("forbidden")
    events = tuple({**each, "reason": "JobCreationFailed"} for each in seen.events)

    assert classify(replace(seen, jobs=(), events=events), starved=True).explanation.startswith("its Jobs cannot be created: ")
