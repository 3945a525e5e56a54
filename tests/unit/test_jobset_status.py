"""The status that every runtime gives, from a cluster's objects; and the local runtime's, judged as a cluster's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from nightshift import exits
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import ContainerStatus, JobSetNotFound, JobSetStatus, Phase, PodStatus
from nightshift.jobset.status import JOB_REASONS, observation_of, status_of
from nightshift.jobset.verdict.exit_codes import in_words
from nightshift.jobset.verdict.outcome import Ending, classify
from tests.unit.recorded import CASES, recorded

pytestmark = pytest.mark.unit

SERVER, DRIVER = "server", "driver"


def test_a_complete_one() -> None:
    status = status_of(recorded("completed"))

    assert (status.name, status.phase, status.reason) == ("night", "Completed", "AllJobsCompleted")
    assert status.message == "jobset completed successfully"
    assert (status.completed_indexes, status.failed_indexes) == ((0, 1), ())
    assert [(pod.index, pod.attempt, pod.phase) for pod in status.pods] == [(0, 1, "Succeeded"), (1, 1, "Succeeded")]
    assert status.pods[0].containers == (ContainerStatus(DRIVER, exit_code=0),)


def test_a_failed_one_names_the_jobs_own_reason_and_counts_the_attempts_of_each_index() -> None:
    status = status_of(recorded("exits-1-failed"))

    assert (status.phase, status.reason) == ("Failed", "FailedJobs")
    assert status.message == (
        "jobset failed due to one or more job failures (first failed job: night-worker-0): "
        "FailedIndexes: Job has failed indexes"
    )
    assert (status.completed_indexes, status.failed_indexes) == ((0,), (1,))
    assert sorted((pod.index, pod.attempt) for pod in status.pods) == [(0, 1), (1, 1), (1, 2)]
    assert [pod.containers[0].exit_code for pod in status.pods if pod.index == 1] == [1, 1]


def test_pods_that_are_gone_count_as_attempts() -> None:
    status = status_of(recorded("pod-deleted-failed"))

    assert [(pod.index, pod.attempt, pod.phase, pod.reason) for pod in status.pods] == [
        (0, 1, "Failed", ""),
        (0, 2, "Failed", ""),
    ]


@pytest.mark.parametrize(
    ("case", "reason"), [("spot-failed", "TerminationByKubelet"), ("tainted-failed", "DeletionByTaintManager"), ("killed", "")]
)
def test_a_disruption_is_named_and_nothing_else(case: str, reason: str) -> None:
    assert status_of(recorded(case)).pods[0].reason == reason


def test_a_signal_is_read_off_the_exit_code() -> None:
    assert status_of(recorded("killed")).pods[0].containers == (ContainerStatus(DRIVER, exit_code=137, signal=9),)
    assert status_of(recorded("work-is-left")).pods[0].containers == (ContainerStatus(DRIVER, exit_code=75),)


def test_sidecars_come_first_with_their_restarts() -> None:
    [pod] = status_of(recorded("sidecar-ends")).pods

    assert pod.phase == "Pending"
    assert [(each.name, each.restarts > 0, each.exit_code) for each in pod.containers] == [
        (SERVER, True, None),
        (DRIVER, False, None),
    ]


@pytest.mark.parametrize(
    ("case", "phase"), [("running", "Running"), ("suspended", "Suspended"), ("queue-preempts", "Suspended")]
)
def test_phases(case: str, phase: Phase) -> None:
    status = status_of(recorded(case))

    assert (status.phase, status.reason, status.message) == (phase, "", "")


def test_the_pods_of_several_jobs_are_numbered_through() -> None:
    status = status_of(recorded("slice-fails"))

    assert sorted((pod.index, pod.attempt) for pod in status.pods) == [
        (index, attempt) for index in range(4) for attempt in (1, 2)
    ]
    names = {pod.index: pod.name.rsplit("-", 1)[0] for pod in status.pods}
    assert names == {0: "night-worker-0-0", 1: "night-worker-0-1", 2: "night-worker-1-0", 3: "night-worker-1-1"}


def test_one_that_is_gone() -> None:
    with pytest.raises(JobSetNotFound):
        status_of(recorded("jobset-deleted"))


@pytest.mark.parametrize("case", CASES)
def test_every_recording_has_a_status_that_survives_json(case: str) -> None:
    seen = recorded(case)
    if seen.jobset is None:
        return
    status = status_of(seen)

    assert json.loads(json.dumps(status.to_dict()))["name"] == seen.jobset["metadata"]["name"]
    assert len(status.pods) == len(seen.pods)


def a_status(chance: random.Random) -> JobSetStatus:
    """Anything that a runtime may say."""
    phase: Phase = chance.choice(["Suspended", "Running", "Completed", "Failed"])
    reason = message = ""
    if phase == "Completed":
        reason, message = "AllJobsCompleted", "jobset completed successfully"
    elif phase == "Failed":
        reason, message = "FailedJobs", chance.choice(["jobset failed", "jobset failed (first failed job: a)", ""])
        message += chance.choice(["", *(f": {job}: {told}" for job in JOB_REASONS for told in ("Job has failed: x", "no"))])
    numbers = chance.sample(range(12), chance.randrange(12))
    done = chance.randrange(len(numbers) + 1)
    return JobSetStatus(
        "night",
        phase,
        reason,
        message,
        tuple(sorted(numbers[:done])),
        tuple(sorted(numbers[done:])),
        tuple(a_pod(chance, index, attempt) for index, attempt in attempts(chance)),
        chance.choice([{}, {"nightshift.dev/run-url": "gs://b/x"}]),
    )


def attempts(chance: random.Random) -> list[tuple[int, int]]:
    """(index, attempt) of pods in the order of their making: any, but for the attempts of each index."""
    made = [chance.randrange(6) for _ in range(chance.randrange(20))]
    return [(index, made[: position + 1].count(index)) for position, index in enumerate(made)]


def a_pod(chance: random.Random, index: int, attempt: int) -> PodStatus:
    containers = []
    for name in (SERVER, DRIVER):
        code = chance.choice([None, None, 0, 1, exits.RESUME, 137, 143])
        number = chance.choice([None, code - 128 if code and code > 128 else None])
        live = code is None and chance.random() < 0.5
        containers.append(ContainerStatus(name, live, live and chance.random() < 0.5, chance.randrange(3), code, number))
    return PodStatus(
        f"night-worker-0-{index}-{chance.randrange(10**6):06}",
        index,
        attempt,
        chance.choice(["Pending", "Running", "Succeeded", "Failed"]),
        chance.choice(["", "EvictionByEvictionAPI"]),
        tuple(containers),
    )


@pytest.mark.parametrize("seed", range(200))
def test_there_and_back(seed: int) -> None:
    status = a_status(random.Random(seed))
    seen = observation_of(status, init_containers={SERVER})

    assert status_of(seen) == status
    assert status_of(as_json(seen)) == status


def as_json(seen: Observation) -> Observation:
    jobset, jobs, pods = json.loads(json.dumps([seen.jobset, seen.jobs, seen.pods]))
    return Observation(jobset, tuple(jobs), tuple(pods))


def local(phase: Phase, *pods: PodStatus, job: str = "FailedIndexes", failed: tuple[int, ...] = (0,)) -> Any:
    message = f"jobset failed due to one or more job failures (first failed job: night-worker-0): {job}: Job has failed indexes"
    reason = {"Failed": "FailedJobs", "Completed": "AllJobsCompleted"}.get(phase, "")
    status = JobSetStatus("night", phase, reason, message if phase == "Failed" else "", failed_indexes=failed, pods=pods)
    return classify(observation_of(status, init_containers={SERVER}))


def pod(code: int | None, *, reason: str = "", sidecar: int | None = 137, index: int = 0, attempt: int = 1) -> PodStatus:
    containers = (ContainerStatus(SERVER, exit_code=sidecar), ContainerStatus(DRIVER, exit_code=code))
    return PodStatus(f"night-worker-0-{index}-{attempt}", index, attempt, "Failed", reason, containers)


def test_what_the_local_runtime_says_is_judged_alike() -> None:
    assert local("Completed", failed=()).ending is Ending.SUCCEEDED
    assert local("Running", failed=()).ending is Ending.RUNNING
    assert local("Failed", pod(exits.CONFIG)).ending is Ending.APPLICATION
    assert local("Failed", pod(exits.RESUME, reason="EvictionByEvictionAPI")).ending is Ending.PREEMPTED
    assert local("Failed", pod(exits.RESUME)).worth_retrying
    assert local("Failed", job="DeadlineExceeded").ending is Ending.DEADLINE
    assert local("Failed").ending is Ending.UNKNOWN


def test_a_sidecars_exit_code_decides_nothing_once_the_driver_has_begun() -> None:
    [failed] = local("Failed", pod(1)).failed

    assert (failed.container, failed.exit_code) == (DRIVER, 1)


def test_a_driver_that_never_began_leaves_the_sidecars_word() -> None:
    [failed] = local("Failed", pod(None, sidecar=1)).failed

    assert (failed.container, failed.exit_code) == (SERVER, 1)


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (1, "Error", "1"),
        (127, "Error", "127 (its command is not there)"),
        (128, "StartError", "128 (it could not be started)"),
        (134, "Error", "134 (SIGABRT)"),
        (137, "Error", "137 (SIGKILL)"),
        (137, "OOMKilled", "137 (SIGKILL, out of memory)"),
        (139, "Error", "139 (SIGSEGV)"),
        (143, "Error", "143 (SIGTERM)"),
        (75, "Error", "75 (work is left)"),
        (78, "Error", "78 (trying again cannot help)"),
        (255, "Error", "255"),
    ],
)
def test_exit_codes_in_words(code: int, reason: str, words: str) -> None:
    assert in_words(code, reason, resume={75}, permanent={78}) == words
