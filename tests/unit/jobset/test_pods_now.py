"""Where pods are, by what a real cluster said of them; and what is kept of it in the run's folder."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.jobset.fleet.shown import PODS_MOST, save_now
from nightshift.jobset.kubernetes.pods import Pods
from nightshift.jobset.labels import PAUSED_ANNOTATION
from nightshift.jobset.observation import slim_pod
from nightshift.jobset.verdict.last_words import Words
from nightshift.jobset.verdict.stages import PATIENCE_S, jobset_now, pod_now, with_log
from nightshift.run.observed.heartbeats import Heartbeat
from nightshift.run.observed.pods_kept import load, load_one
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodEnding, PodNow, Stage, in_words, merged, refined
from tests.builders import RUN
from tests.unit.recorded import CASES, recorded

pytestmark = pytest.mark.unit

NOW = datetime.fromisoformat("2026-11-21T23:30:00Z").timestamp()
WORDS = LastWords(
    "server", 1, "Error", 3, "2026-11-21T23:20:00Z", "OSError: no such model", ("Traceback", "OSError: no such model")
)
BEAT = Heartbeat("a", "cpu", "owner", 0, "n", "a-0", 2.0, "2026-11-21T23:18:00Z", "2026-11-21T23:20:00Z", 60.0)
POD = PodNow("a-0", 0, Stage.WEIGHTS, "2026-11-21T23:18:00Z", Acts.AUTHOR, restarts=3, words=WORDS)
JOBSET = JobSetNow("a", "2026-11-21T23:20:00Z", 2, pods=(POD, PodNow("a-1", 1, Stage.NODE, "2026-11-21T23:19:00Z")))


def seen(case: str, now: float = NOW) -> JobSetNow:
    found = recorded(case)
    return jobset_now(found, [pod_now(pod, now) for pod in found.pods], now)


def only(case: str) -> PodNow:
    (pod,) = seen(case).pods
    return pod


@pytest.mark.parametrize(
    ("case", "stage", "acts"),
    [
        ("unschedulable", Stage.NODE, Acts.CLUSTER),
        ("bad-image", Stage.IMAGE, Acts.CLUSTER),
        ("missing-secret", Stage.IMAGE, Acts.CLUSTER),
        ("missing-volume", Stage.IMAGE, Acts.NOBODY),
        ("sidecar-loads", Stage.WEIGHTS, Acts.NOBODY),
        ("sidecar-ends", Stage.WEIGHTS, Acts.AUTHOR),
        ("running", Stage.WORKING, Acts.NOBODY),
        ("completed", Stage.ENDED, Acts.NOBODY),
        ("config-error", Stage.ENDED, Acts.AUTHOR),
        ("spot-failed", Stage.ENDED, Acts.NOBODY),
    ],
)
def test_where_a_pod_is_and_who_has_to_act(case: str, stage: Stage, acts: Acts) -> None:
    pod = seen(case).pods[-1]

    assert (pod.stage, pod.acts) == (stage, acts)
    assert "2026-11-21T23:0" < pod.since < "2026-11-21T23:3"


@pytest.mark.parametrize("case", ["queue-waits", "queue-too-small", "queue-preempts"])
def test_a_jobset_without_quota_says_so_for_the_pods_that_it_lacks(case: str) -> None:
    found = seen(case)

    assert (found.stage, found.acts) == (Stage.QUEUE, Acts.CLUSTER)
    assert "quota" in found.why
    assert found.counts()[Stage.QUEUE] == found.wanted


@pytest.mark.parametrize("case", ["unschedulable", "queue-waits"])
def test_a_machine_or_quota_that_is_not_there_at_once_is_nobodys_task_yet(case: str) -> None:
    began = datetime.fromisoformat(seen(case).since or seen(case).pods[0].since).timestamp()
    early = seen(case, began + PATIENCE_S - 1)

    assert {early.acts, *(pod.acts for pod in early.pods)} == {Acts.NOBODY}


def test_a_pause_is_a_users_and_its_pods_did_not_fail() -> None:
    found = recorded("suspended")
    jobset: dict[str, Any] = copy.deepcopy(dict(found.jobset or {}))
    jobset["metadata"]["annotations"] = {PAUSED_ANNOTATION: "paused by ada at 12"}
    now = jobset_now(replace(found, jobset=jobset), [pod_now(pod, NOW) for pod in found.pods], NOW)

    assert (now.stage, now.acts) == (Stage.PAUSED, Acts.USER)
    assert {pod.ending for pod in now.pods} == {PodEnding.TAKEN}, "they ended with 75"
    assert in_words(now) == "paused by ada at 12; 0 running, 0 finished, 0 failed, 2 taken away"


def test_only_what_a_program_did_by_itself_is_a_failure() -> None:
    endings = {case: pod.ending for case in CASES for pod in seen(case).pods if pod.ending is PodEnding.FAILED}

    assert set(endings) == {
        *("bad-command", "config-error", "deleted-then-fails", "exits-1-failed", "exits-1-running", "killed", "out-of-memory"),
        *("restarts-in-place", "segfault", "slice-evicted", "slice-fails", "too-much-disk"),
    }


@pytest.mark.parametrize("case", CASES)
def test_a_pod_that_was_cut_down_to_what_is_kept_of_it_says_the_same(case: str) -> None:
    for pod in recorded(case).pods:
        assert pod_now(slim_pod(pod), NOW) == pod_now(pod, NOW)


def test_a_killed_engine_is_not_blamed_on_its_log_or_its_author() -> None:
    """The last line of a program that something else has killed is whatever it said before."""
    (pod,) = copy.deepcopy(recorded("sidecar-loads").pods)
    (server,) = pod["status"]["initContainerStatuses"]
    ended = {"exitCode": 137, "reason": "Error", "finishedAt": "2026-11-21T02:00:00Z", "message": "Triton is installed ...\n"}
    server |= {"restartCount": 1, "lastState": {"terminated": ended}}

    now = pod_now(pod, NOW)
    assert (now.stage, now.acts) == (Stage.WEIGHTS, Acts.CLUSTER)
    assert now.words is not None
    assert now.words.said == "it was killed: exit code 137 (SIGKILL), by its probe, its node or by hand"

    ended |= {"reason": "OOMKilled"}
    now = pod_now(pod, NOW)
    assert now.acts is Acts.AUTHOR, "its own limit"
    assert now.words is not None
    assert now.words.said == "it was killed: it used more memory than its limit"


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_is_read_back(case: str) -> None:
    store, now = MemoryStore(), seen(case)
    if not now.name:
        now = replace(now, name="gone")

    save_now(store, RUN, now)

    assert load(store, RUN) == (now,)
    assert load_one(store, RUN, now.name) == now


def test_an_image_that_is_needed_when_the_engine_answers_holds_the_pod_too() -> None:
    (pod,) = copy.deepcopy(recorded("sidecar-loads").pods)
    (driver,) = pod["status"]["containerStatuses"]
    driver["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}

    found = pod_now(pod, NOW)

    assert (found.stage, found.acts, found.stuck) == (Stage.IMAGE, Acts.CLUSTER, True)
    assert found.why == "driver: ImagePullBackOff: no such image"


def test_what_its_kubelet_has_not_kept_is_taken_from_the_log() -> None:
    pod = only("sidecar-ends")
    assert pod.words is not None
    assert pod.words.said == "exit code 1 (Error)"

    said = with_log(pod, Words(["ValueError: too little memory", "bye"]))

    assert said.waits_for == "server (restarted once, last error: ValueError: too little memory)"
    assert with_log(pod, None) == pod


def test_in_words_a_jobset_says_what_it_waits_for() -> None:
    assert in_words(JOBSET) == (
        "0 running, 0 finished, 0 failed; 1 waiting for server (restarted 3 times, last error: OSError: no such model), "
        "1 waiting for a machine"
    )
    assert in_words(replace(JOBSET, pods=(replace(POD, stage=Stage.WORKING),))) == "1 running, 0 finished, 0 failed"


def test_a_later_look_keeps_when_a_stage_began_and_what_was_said() -> None:
    again = replace(POD, since="2026-11-21T23:25:00Z", words=replace(WORDS, cause="", lines=()))
    restarted = replace(POD, since="2026-11-21T23:25:00Z", words=None)
    working = PodNow("a-0", 0, Stage.WORKING, "2026-11-21T23:25:00Z")

    assert merged(JOBSET, replace(JOBSET, pods=(again,))).pods == (POD,)
    assert merged(JOBSET, replace(JOBSET, pods=(restarted,))).pods == (POD,)
    (after,) = merged(JOBSET, replace(JOBSET, pods=(working,))).pods
    assert (after.since, after.words) == (working.since, WORDS)


def test_a_heartbeat_says_more_of_a_driver_that_runs() -> None:
    working = replace(POD, stage=Stage.WORKING)

    assert refined(working, replace(BEAT, start_up_s={})).stage is Stage.WEIGHTS
    assert refined(working, replace(BEAT, start_up_s={"weights": 3.0})).stage is Stage.WARM_UP
    assert refined(working, replace(BEAT, start_up_s={"weights": 3.0, "warm_up": 1.0})).stage is Stage.WORKING
    assert refined(POD, replace(BEAT, start_up_s={})) == POD


def test_of_very_many_pods_those_that_have_ended_are_left_out() -> None:
    store, over = MemoryStore(), PodNow("b", 0, Stage.ENDED, "", ending=PodEnding.DONE)
    save_now(store, RUN, replace(JOBSET, pods=(*(replace(over, name=f"b-{number}") for number in range(PODS_MOST)), POD)))

    (kept,) = load(store, RUN)

    assert len(kept.pods) == PODS_MOST
    assert POD in kept.pods


@pytest.mark.parametrize("body", [b"", b"[]", b'{"now": 3}', b'{"now": {"name": "a"}}', b'{"version": 99, "now": {}}', b"\xff"])
def test_what_is_none_is_passed_over(body: bytes) -> None:
    store = MemoryStore()
    obstore.put(store, RUN.now_path("a"), body)

    assert load(store, RUN) == ()


def test_entries_of_a_later_release_are_passed_over() -> None:
    later = JOBSET.to_bytes().replace(b'"name":"a-0"', b'"name":"a-0","colour":"red"')

    assert JobSetNow.from_bytes(later) == JOBSET


def test_a_follower_forgets_no_pod_that_it_saw() -> None:
    pods = Pods()
    for pod in recorded("sidecar-ends").pods:
        pods.update(pod)
    (before,) = pods.now(NOW)

    pods.keep_only(set())

    (after,) = pods.now(NOW)
    assert (before.stage, before.restarts) == (Stage.WEIGHTS, 1)
    assert (after.stage, after.ending) == (Stage.ENDED, PodEnding.TAKEN)


def test_only_events_say_that_a_volume_cannot_be_mounted() -> None:
    """Its containers only wait. A trigger asks for events once a minute."""
    found, pods = recorded("missing-volume"), Pods()
    for pod in found.pods:
        pods.update(pod)
    (before,) = pods.now(NOW)

    pods.events = found.events

    (after,) = pods.now(NOW)
    assert (before.stuck, before.why) == (False, "")
    assert (after.stage, after.acts, after.stuck) == (Stage.IMAGE, Acts.CLUSTER, True)
    assert after.why.startswith("FailedMount: MountVolume.SetUp failed for volume ")
    (pod,) = copy.deepcopy(found.pods)
    for condition in pod["status"]["conditions"]:
        condition["status"] = "True"
    assert pod_now(pod, NOW, events=found.events).why == "", "it was mounted since"


def test_of_several_containers_the_one_that_was_started_again_most_often_counts() -> None:
    [pod] = recorded("sidecar-ends").pods
    several = [each for part in ("initContainerStatuses", "containerStatuses") for each in pod["status"][part]]
    assert sorted(each["restartCount"] for each in several)[0] == 0

    several[0]["restartCount"] = 5
    assert pod_now(pod, NOW).restarts == 5
    several[0]["restartCount"], several[-1]["restartCount"] = 0, 4
    assert pod_now(pod, NOW).restarts == 4
