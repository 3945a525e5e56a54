"""How long pods took to start, from what a real cluster said of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from nightshift.jobset.observation import Observation, slim_pod
from nightshift.jobset.verdict.starts import starts_of, taken_of
from tests.unit.recorded import recorded

pytestmark = pytest.mark.unit

CREATED = "2026-11-21T23:18:00Z"


def a_start() -> Observation:
    """A recording of a pod whose sidecar loads: placed 10 s after its creation; 40 s later the sidecar ran, then the driver."""
    seen = recorded("sidecar-loads")
    pod: dict[str, Any] = copy.deepcopy(dict(seen.pods[0]))
    pod["metadata"]["creationTimestamp"] = CREATED
    pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {"startedAt": "2026-11-21T23:18:50Z"}}
    pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": "2026-11-21T23:21:30Z"}}
    return replace(seen, pods=(pod,))


def queued(seen: Observation, **changes: Any) -> Observation:
    """With the Workload of a recording, which was evicted once, as one that was not."""
    workload = copy.deepcopy(dict(recorded("queue-resumes").workload or {}))
    workload["metadata"]["creationTimestamp"] = "2026-11-21T23:00:00Z"
    kept = [each for each in workload["status"]["conditions"] if each["type"] != "Evicted"]
    workload["status"]["conditions"] = [
        {**each, "lastTransitionTime": changes.get("admitted", "2026-11-21T23:17:30Z")} for each in kept
    ] + changes.get("more", [])
    return replace(seen, workload=workload)


def only(seen: Observation) -> dict[str, float]:
    (stages,) = starts_of(seen).values()
    return stages


def test_the_stages_follow_one_another() -> None:
    assert only(a_start()) == {"node": 10.0, "image": 40.0, "weights": 160.0}


def test_a_pod_that_was_cut_down_to_what_is_kept_of_it_says_the_same() -> None:
    seen = a_start()

    assert starts_of(replace(seen, pods=tuple(map(slim_pod, seen.pods)))) == starts_of(seen)


def test_a_pod_that_is_still_loading_says_what_is_over() -> None:
    assert only(recorded("sidecar-loads")) == {"node": 0.0, "image": 0.0}


def test_how_long_the_driver_ran_is_known_when_it_has_ended() -> None:
    seen = a_start()
    seen.pods[0]["status"]["containerStatuses"][0]["state"] = {
        "terminated": {"startedAt": "2026-11-21T23:21:30Z", "finishedAt": "2026-11-21T23:31:35Z", "exitCode": 137}
    }

    assert only(seen) == {"node": 10.0, "image": 40.0, "weights": 160.0, "driver": 605.0}


def test_a_container_that_was_started_again_does_not_say_when_it_was_first() -> None:
    seen = a_start()
    seen.pods[0]["status"]["initContainerStatuses"][0]["restartCount"] = 1

    assert only(seen) == {"node": 10.0}


def test_the_wait_for_quota_is_that_of_pods_which_followed_at_once() -> None:
    assert only(queued(a_start()))["queue"] == 1050.0
    assert "queue" not in only(queued(a_start(), admitted="2026-11-21T23:01:00Z")), "a replacement, 17 minutes later"


def test_a_workload_that_was_evicted_no_longer_says_how_long_it_waited() -> None:
    evicted = [{"type": "Evicted", "status": "False", "lastTransitionTime": CREATED}]

    assert "queue" not in only(queued(a_start(), more=evicted))
    assert all("queue" not in stages for stages in starts_of(recorded("queue-resumes")).values())


def test_clocks_that_disagree_say_nothing() -> None:
    seen = a_start()
    seen.pods[0]["metadata"]["creationTimestamp"] = "2026-11-21T23:59:00Z"

    assert only(seen) == {"image": 40.0, "weights": 160.0}


@pytest.mark.parametrize("case", ["unschedulable", "queue-waits", "forbidden"])
def test_of_a_jobset_that_did_not_start_nothing_is_said(case: str) -> None:
    assert starts_of(recorded(case)) == {}


@pytest.mark.parametrize(
    "case", ["spot-failed", "evicted-failed", "evicted-running", "tainted-failed", "outranked-failed", "node-deleted-failed"]
)
def test_pods_that_the_cluster_took_away(case: str) -> None:
    assert taken_of(recorded(case))


@pytest.mark.parametrize(
    "case",
    [
        "pod-deleted-failed",
        "jobset-deleted",
        "suspended",
        "queue-preempts",
        "killed",
        "out-of-memory",
        "work-is-left",
        "running",
    ],
)
def test_pods_that_a_person_or_nightshift_ended_or_that_failed_were_not_taken(case: str) -> None:
    """A pause suspends, and what is deleted was not preempted, whoever deleted it."""
    assert taken_of(recorded(case)) == frozenset()
