"""A run under every disruption: what Kubernetes makes of it, what the task makes of that, and that no row is lost or repeated.

docs/operate/runbook.md is the table. Runs whose disruption concerns nothing but themselves go on at the same time; those
that need a node to themselves run alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from local.cluster.cluster import Cluster
from local.cluster.faults import Faults
from nightshift import exits
from nightshift.jobset.fleet import fallback
from nightshift.jobset.labels import PROFILE_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.verdict.outcome import Ending
from nightshift.operators.jobset_errors import JobSetApplicationFailure
from tests.cluster.kube import a_namespace, a_queue
from tests.cluster.nights import Document, HeldNight, Place, a_place, container, disruption, exit_code
from tests.cluster.scenes import evict

pytestmark = [pytest.mark.cluster, pytest.mark.gate, pytest.mark.timeout(900)]

Story = Callable[[Place, int], HeldNight]
Test = TypeVar("Test", bound=Callable[..., None])

DONE = [(Ending.SUCCEEDED, "ChunksCommitted")]
AT_ONCE = 3
"""Runs beside each other: a drain has 15 s, and two cores that start a dozen pods leave it none of them."""
QUOTA = "30m"
"""One pod of two containers of 10m fits, and no second one."""
URGENT = 50
"""Between the numbers of two runs of one story."""
SIGKILL = 137


def during(story: Story) -> Callable[[Test], Test]:
    """The test is about this run, which goes on beside those of the other tests."""

    def mark(test: Test) -> Test:
        test.story = story  # type: ignore[attr-defined]
        return test

    return mark


@pytest.fixture(scope="module")
def place(cluster: Cluster, driver_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with a_namespace(cluster) as namespace:
        cluster.kubectl("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
        namespace.kubectl("create", "serviceaccount", "nightshift-worker")
        with a_place(cluster, tmp_path_factory.mktemp("nights"), namespace) as place:
            yield place


@pytest.fixture(scope="module")
def nights(request: pytest.FixtureRequest, place: Place) -> dict[Story, HeldNight | BaseException]:
    """Every run that a test of this session is about, at its end, or why it did not come to it."""
    tests = [item.function for item in request.session.items if isinstance(item, pytest.Function)]
    stories = list(dict.fromkeys(test.story for test in tests if hasattr(test, "story")))

    def told(story: Story, number: int) -> HeldNight | BaseException:
        try:
            return story(place, number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(stories, pool.map(told, stories, range(len(stories))), strict=True))


@pytest.fixture
def night(request: pytest.FixtureRequest, nights: dict[Story, HeldNight | BaseException]) -> HeldNight:
    """The run that the test is about."""
    found = nights[request.function.story]
    if isinstance(found, BaseException):
        raise found
    return found


def begun(place: Place, number: int, **options: Any) -> HeldNight:
    """A run that is held in its middle."""
    night = HeldNight(place, number, **options)
    night.start()
    night.reach_the_middle()
    return night


# Runs beside each other.

EVICTED, DELETED, KILLED, UNARMED = range(4)


def disturbed(place: Place, number: int) -> HeldNight:
    """Each of four workers meets something else, and no worker meets what befalls another."""
    night = begun(place, number, workers=4)
    pods = [night.pod(index) for index in range(4)]
    night.strike(lambda: evict(place.namespace, pods[EVICTED]), pods[EVICTED])
    night.strike(lambda: delete(place, "pod", pods[DELETED]), pods[DELETED])
    night.strike(lambda: kill(place, pods[KILLED], DRIVER), pods[KILLED])
    night.strike(lambda: kill(place, pods[UNARMED], SERVER))
    name = pods[UNARMED]["metadata"]["name"]
    night.wait_until("the engine's second life", lambda: night.sent_after(name, night.struck[-1].at) > 0)
    night.recover(pods=3)
    night.finish()
    return night


@during(disturbed)
def test_the_disruptions_of_single_pods_never_wake_the_task(night: HeldNight) -> None:
    assert night.failures_counted() == 2
    assert_never_woken(night)


@during(disturbed)
def test_an_eviction_is_not_counted_and_its_drain_saves_every_row(night: HeldNight) -> None:
    assert_struck(night, EVICTED, "EvictionByEvictionAPI", exits.RESUME)
    assert_drained(night, EVICTED)
    assert night.index_failures(EVICTED) == 0


@during(disturbed)
def test_a_deleted_pod_is_counted_since_nothing_marks_it_and_its_drain_saves_every_row(night: HeldNight) -> None:
    assert_struck(night, DELETED, "", exits.RESUME)
    assert_drained(night, DELETED)
    assert night.index_failures(DELETED) == 1


@during(disturbed)
def test_a_killed_driver_is_counted_and_loses_only_what_was_not_committed(night: HeldNight) -> None:
    assert_struck(night, KILLED, "", SIGKILL)
    assert night.saved_by(night.pods(KILLED)[0]["metadata"]["name"]) == 0
    assert night.index_failures(KILLED) == 1


@during(disturbed)
def test_a_killed_engine_is_started_again_in_its_pod_and_nothing_is_counted(night: HeldNight) -> None:
    (pod,) = night.pods(UNARMED)
    assert container(pod, SERVER)["restartCount"] == 1
    assert exit_code(pod) == exits.DONE
    assert night.index_failures(UNARMED) == 0


def one_of_two_killed(place: Place, number: int) -> HeldNight:
    """Two engines in one container: the first one is killed, and has begun again before the run goes on."""
    night = begun(place, number, workers=1, changes={"compute__engines": 2})
    pod = night.pod(0)
    first, second = engines_of(place, pod)
    night.strike(lambda: os.kill(first, signal.SIGKILL))
    night.wait_until("the engine's second life", lambda: len(set(engines_of(place, pod)) - {first}) == 2)
    assert second in engines_of(place, pod)
    night.finish()
    return night


@during(one_of_two_killed)
def test_one_of_several_engines_that_is_killed_begins_again_and_its_container_does_not(night: HeldNight) -> None:
    (pod,) = night.pods(0)
    assert container(pod, SERVER)["restartCount"] == 0
    assert exit_code(pod) == exits.DONE
    assert night.index_failures(0) == 0
    lost = [line for line in night.said_by(pod["metadata"]["name"]) if line["message"] == "engine lost"]
    assert [line["engine"] for line in lost] == [0]


def job_deleted(place: Place, number: int) -> HeldNight:
    night = begun(place, number, workers=2)
    night.strike(lambda: delete(place, "job", *night.jobs()), *night.living())
    night.recover(pods=2)
    night.finish()
    return night


@during(job_deleted)
def test_a_deleted_job_is_created_again_by_its_jobset_and_its_pods_save_every_row(night: HeldNight) -> None:
    assert len(night.jobs()) == 2
    for index in range(2):
        assert_struck(night, index, "", exits.RESUME)
        assert_drained(night, index)
        assert night.index_failures(index) == 0
    assert_never_woken(night)


def jobset_deleted(place: Place, number: int) -> HeldNight:
    night = begun(place, number, workers=2)
    night.strike(lambda: delete(place, "jobset", *night.jobsets()), *night.living())
    night.recover(pods=2)
    night.finish()
    return night


@during(jobset_deleted)
def test_a_deleted_jobset_is_lost_and_the_task_makes_the_next_one_without_a_retry(night: HeldNight) -> None:
    assert night.endings() == [(Ending.LOST, "NotFound"), *DONE]
    assert len(night.jobsets()) == 2
    for index in range(2):
        assert_struck(night, index, "", exits.RESUME)
        assert_drained(night, index)
        assert night.index_failures(index) == 0
    assert_whole(night)


def all_deleted(place: Place, number: int) -> HeldNight:
    """More often than the budget allows, which is none here: the JobSet fails."""
    night = begun(place, number, workers=1, retries=0)
    pod = night.pod(0)
    night.strike(lambda: delete(place, "pod", pod), pod)
    night.recover(pods=1)
    night.finish()
    return night


@during(all_deleted)
def test_a_jobset_that_failed_by_deleted_pods_alone_was_preempted_and_costs_no_retry(
    night: HeldNight,
) -> None:
    assert night.endings() == [(Ending.PREEMPTED, "Deleted"), *DONE]
    assert len(night.jobsets()) == 2
    assert_struck(night, 0, "", exits.RESUME)
    assert_drained(night, 0)
    assert_whole(night)


def all_killed(place: Place, number: int) -> HeldNight:
    """The same by SIGKILL, which nothing tells from a crash."""
    night = begun(place, number, workers=1, retries=0)
    pod = night.pod(0)
    night.strike(lambda: kill(place, pod, DRIVER), pod)
    with pytest.raises(JobSetApplicationFailure, match=r"exit code 137 \(SIGKILL\).*18 of 20 chunks are missing"):
        night.finish()
    return night


@during(all_killed)
def test_a_jobset_whose_drivers_were_killed_more_often_than_allowed_fails_the_task(night: HeldNight) -> None:
    assert [ending for ending, _ in night.endings()] == [Ending.APPLICATION]
    assert_struck(night, 0, "", SIGKILL)


def outranked(place: Place, number: int) -> HeldNight:
    """Kueue gives the quota of one run to a second one, which is more urgent."""
    with a_queue(place.namespace, {"cpu": QUOTA}) as priority:
        night = begun(place, number, workers=1, changes={"queue": "nightly"})
        urgent = HeldNight(place, number + URGENT, workers=1, changes={"queue": "nightly", "priority": priority})
        urgent.gate.open()
        night.strike(urgent.start, *night.living())
        urgent.finish()
        assert_never_woken(urgent)
        night.recover(pods=1)
        night.finish()
    return night


@during(outranked)
def test_a_run_that_kueue_preempts_goes_on_after_the_more_urgent_one_and_nothing_is_counted(night: HeldNight) -> None:
    assert len(night.jobs()) == 1
    assert_struck(night, 0, "", exits.RESUME)
    assert_drained(night, 0)
    assert_not_counted(night)
    assert_never_woken(night)


def without_capacity(place: Place, number: int) -> HeldNight:
    """No node of this cluster is a Spot one. That any one passes for an L4 is the patch's doing."""
    compute = {"profile": "gpu-l4-spot", "fallback": ["gpu-l4"]}
    any_gpu = {"nodeSelector": {"cloud.google.com/gke-accelerator": None}}
    night = HeldNight(place, number, workers=1, changes={"compute": compute}, pod=any_gpu)
    with pytest.MonkeyPatch.context() as patch:
        # Long enough for the scheduler to have looked.
        patch.setattr(fallback, "PATIENCE_S", 25.0)
        night.start()
        night.finish()
    return night


@during(without_capacity)
def test_a_profile_that_gets_no_nodes_is_helped_by_the_next_one_which_does_all_the_work(night: HeldNight) -> None:
    first, second = night.jobsets()
    assert [each["metadata"]["labels"][PROFILE_LABEL] for each in (first, second)] == ["gpu-l4-spot", "gpu-l4"]
    assert night.endings()[0] == (Ending.STARTUP, "Unschedulable")
    assert night.endings()[-1:] == DONE
    assert {pod["metadata"]["labels"][PROFILE_LABEL] for pod in night.pods() if exit_code(pod) is not None} == {"gpu-l4"}
    assert night.problems() == []


class TestNodes:
    """Runs that have the cluster to themselves."""

    def test_a_spot_preemption_is_not_counted_and_its_drain_saves_every_row(self, place: Place, faults: Faults) -> None:
        night = begun(place, 100, workers=2)
        node, pods = node_of_index_0(night)

        night.strike(lambda: faults.preempt(node), *pods)
        night.recover(len(pods))
        night.finish()

        assert_all_struck(night, "TerminationByKubelet", exits.RESUME, drained=True)
        assert_not_counted(night)
        assert_never_woken(night)

    def test_a_spot_preemption_with_a_second_of_grace_loses_only_what_was_not_committed(
        self, place: Place, faults: Faults
    ) -> None:
        night = begun(place, 101, workers=2)
        node, pods = node_of_index_0(night)

        night.strike(lambda: faults.preempt(node, grace_s=1), *pods)
        night.recover(len(pods))
        night.finish()

        struck = [pod for pod in night.pods() if disruption(pod) == "TerminationByKubelet"]
        assert len(struck) == len(pods)
        # A kubelet gives two seconds at least, and ends the engine after one of them: that is enough for a drain, or not.
        assert {exit_code(pod) for pod in struck} <= {exits.RESUME, SIGKILL}
        assert_not_counted(night)
        assert_never_woken(night)

    def test_a_noexecute_taint_is_not_counted_and_its_drain_saves_every_row(self, place: Place, faults: Faults) -> None:
        night = begun(place, 102, workers=2)
        node, pods = node_of_index_0(night)
        taint = f"{place.namespace.name}:NoExecute"

        night.strike(lambda: place.cluster.kubectl("taint", "node", node, taint), *pods)
        try:
            night.recover(len(pods))
        finally:
            place.cluster.kubectl("taint", "node", node, f"{taint}-")
        night.finish()

        assert_all_struck(night, "DeletionByTaintManager", exits.RESUME, drained=True)
        assert_not_counted(night)
        assert_never_woken(night)

    def test_a_node_that_is_gone_while_its_pods_live_on_is_not_counted_and_the_twins_repeat_nothing(
        self, place: Place, faults: Faults
    ) -> None:
        """As when a network parts a machine from its cluster: what runs there works on beside what replaces it."""
        night = begun(place, 103, workers=2)
        node, pods = node_of_index_0(night)
        twin = night.pod(0)["metadata"]["name"]
        pid = faults.container_pid(place.namespace.name, twin, DRIVER)

        def part() -> None:
            faults.freeze(node)
            faults.delete_node(node)

        night.strike(part, *pods)
        night.recover(len(pods))
        assert Path(f"/proc/{pid}").exists()
        both_at = time.time()
        night.finish()

        assert night.sent_after(twin, both_at) > 0
        assert_all_struck(night, "DeletionByPodGC", None)
        assert_not_counted(night)
        assert_never_woken(night)


def node_of_index_0(night: HeldNight) -> tuple[str, list[Document]]:
    """Its name, and all of the run's pods there."""
    node = night.pod(0)["spec"]["nodeName"]
    return node, [pod for pod in night.living() if pod["spec"]["nodeName"] == node]


def delete(place: Place, kind: str, *things: Document) -> None:
    place.namespace.kubectl("delete", kind, *(thing["metadata"]["name"] for thing in things), "--wait=false")


def kill(place: Place, pod: Document, name: str) -> None:
    place.faults.kill_container(place.namespace.name, pod["metadata"]["name"], name)


def engines_of(place: Place, pod: Document) -> list[int]:
    """Process ids, on this machine, of a pod's engines, in the order of their start. They have one container."""
    supervisor = place.faults.container_pid(place.namespace.name, pod["metadata"]["name"], SERVER)
    return [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]


def assert_struck(night: HeldNight, index: int, mark: str, code: int | None) -> None:
    """The first pod of the index has this DisruptionTarget, '' for none, and its driver ended so; None: nobody knows how."""
    struck = night.pods(index)[0]
    assert (disruption(struck), exit_code(struck)) == (mark, code)


def assert_drained(night: HeldNight, index: int) -> None:
    """The driver of the index's first pod saved its rows, and the task's log has its last line. That it saved every row is one
    of `Night.problems`. Another driver went on from them, unless it had begun before the drain's end: it may have been at the
    same chunk already, as a helper."""
    name = night.pods(index)[0]["metadata"]["name"]
    assert night.said_by(name)[-1]["code"] == exits.RESUME
    assert night.saved_by(name) > 0
    assert night.left_by(name) <= night.merged_from(name) <= night.saved_by(name)


def assert_all_struck(night: HeldNight, mark: str, code: int | None, *, drained: bool = False) -> None:
    """The same of every index whose first pod was struck."""
    struck = [index for index in range(night.workers) if night.pods(index)[0]["metadata"]["name"] in night.struck[0].pods]
    assert 0 in struck
    for index in struck:
        assert_struck(night, index, mark, code)
        if drained:
            assert_drained(night, index)


def assert_not_counted(night: HeldNight) -> None:
    """Kubernetes counts no failure: neither the Job nor against an index, of which `manifest.RETRIES` are allowed."""
    assert night.failures_counted() == 0
    assert [night.index_failures(index) for index in range(night.workers)] == [0] * night.workers


def assert_never_woken(night: HeldNight) -> None:
    """The JobSet went on by itself; the task heard of nothing but its end. And the work is whole."""
    assert len(night.jobsets()) == 1
    assert len(night.events) == 1
    assert night.endings() == DONE
    assert_whole(night)


def assert_whole(night: HeldNight) -> None:
    assert night.problems() == []
    assert night.result == {"jobset": night.jobsets()[-1]["metadata"]["name"]}
