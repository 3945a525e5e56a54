"""Pods that a kubelet refused or ended: its node's fault, or the pod's own. Held against the kubelet's own list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nightshift.jobset.kubernetes.pods import Pods
from nightshift.jobset.observation import Observation
from nightshift.jobset.verdict.outcome import Outcome, classify
from nightshift.jobset.verdict.pod_ends import REASONS
from nightshift.jobset.verdict.stages import pod_now
from nightshift.jobset.verdict.starts import taken_of
from nightshift.run.observed.pods_now import PodEnding
from tests.unit.endings import APPLICATION, PREEMPTED, ending
from tests.unit.recorded import recorded

pytestmark = pytest.mark.unit

LISTED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "kubelet_reasons.yaml").read_text())
EXPECTED = {"node": PREEMPTED, "pod": APPLICATION}


def refused(reason: str, message: str = "Pod was rejected: words") -> Observation:
    """A pod of which no container has begun, as a real kubelet wrote it; `reason` and `message` instead of its own."""
    seen = recorded("node-refuses")
    for pod in seen.pods:
        pod["status"].update(reason=reason, message=message)
    return seen


def ended(reason: str, message: str) -> Observation:
    """A pod that has run, and that its kubelet ended."""
    seen = recorded("too-much-disk")
    for pod in seen.pods:
        pod["status"].update(reason=reason, message=message)
    return seen


def judged(seen: Observation) -> tuple[Any, Outcome]:
    outcome = classify(seen)
    return ending(outcome), outcome


def test_every_word_of_the_kubelet_has_its_place_and_no_other_has() -> None:
    assert {word: blame.value for word, blame in REASONS.items()} == LISTED["reasons"]


@pytest.mark.parametrize(("reason", "blame"), [*LISTED["reasons"].items(), *((each, "node") for each in LISTED["resources"])])
def test_a_refused_pod_is_a_disruption_if_its_node_is_to_blame(reason: str, blame: str) -> None:
    found, outcome = judged(refused(reason))

    assert found == EXPECTED[blame]
    assert outcome.resumes_at_once == (blame == "node")
    assert reason in outcome.explanation
    assert outcome.unknown == ()


@pytest.mark.parametrize("message", LISTED["evictions"]["node"])
@pytest.mark.parametrize("began", [False, True])
def test_an_eviction_for_the_nodes_sake_is_a_disruption(message: str, began: bool) -> None:
    assert judged((ended if began else refused)("Evicted", message))[0] == PREEMPTED


@pytest.mark.parametrize("message", LISTED["evictions"]["pod"])
def test_an_eviction_for_the_pods_own_use_is_its_own_failure(message: str) -> None:
    found, outcome = judged(ended("Evicted", message))

    assert found == APPLICATION
    assert outcome.advice.startswith("Raise that limit for pod ")


def test_a_pod_that_asks_for_what_no_node_gives_is_told_so() -> None:
    _, outcome = judged(refused("SysctlForbidden", 'Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted'))

    assert outcome.advice.startswith("Correct what pod night-worker-0-0-")
    assert 'forbidden sysctl: "kernel.msgmax" not allowlisted' in outcome.explanation


def test_an_unknown_word_is_the_nodes_if_nothing_has_begun_and_is_told() -> None:
    found, outcome = judged(refused("MoonIsFull"))

    assert (found, outcome.unknown) == (PREEMPTED, ("MoonIsFull",))


def test_an_unknown_word_for_a_pod_that_has_worked_is_its_own_and_is_told() -> None:
    found, outcome = judged(ended("MoonIsFull", "words"))

    assert (found, outcome.unknown) == (APPLICATION, ("MoonIsFull",))


def test_no_word_at_all_is_not_an_unknown_one() -> None:
    assert classify(recorded("exits-1-failed")).unknown == classify(recorded("spot-failed")).unknown == ()


def test_a_refused_pod_has_nothing_by_which_a_jobs_policy_could_ignore_it() -> None:
    """No condition and no exit code: so it counts, and the task has to go on when a Job has failed for it."""
    [pod] = recorded("node-refuses").pods

    assert "conditions" not in pod["status"]
    assert "containerStatuses" not in pod["status"]
    assert recorded("node-refuses").jobs[0]["status"]["failed"] == 1


def test_all_who_count_disruptions_count_a_refused_pod() -> None:
    [pod] = refused("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ").pods
    [own] = ended("Evicted", 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi". ').pods
    pods = Pods()
    for each in (pod, own, pod):
        pods.update(each)

    assert pods.disruptions == 1
    assert (pod_now(pod, 0).ending, pod_now(own, 0).ending) == (PodEnding.TAKEN, PodEnding.FAILED)
    assert taken_of(Observation(None, pods=(pod, own))) == {pod["metadata"]["name"]}
