"""The local agent's records as the objects that a cluster serves, judged as a cluster's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local.runtime.objects import container_status, objects, refused, terminated
from local.runtime.policy import JobEnd, Ruling
from local.runtime.records import Containers, JobSetRecord, PodRecord
from local.runtime.spec import read_manifest
from nightshift import exits
from nightshift.jobset.observation import Observation, condition, finished
from nightshift.jobset.verdict.outcome import Ending, Outcome, classify
from tests.unit.endings import is_retried

pytestmark = pytest.mark.unit

SERVER, DRIVER = "server", "driver"
BEGAN, DECIDED, FINISHED = 1_000_000.0, 1_000_060.0, 1_000_090.0
FAILED = JobEnd(False, "FailedIndexes", "Job has failed indexes")
DONE = JobEnd(True, "CompletionsReached", "Reached expected number of succeeded pods")

MANIFEST: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "night", "annotations": {"a": "b"}},
    "spec": {
        "replicatedJobs": [
            {
                "name": "worker",
                "template": {
                    "spec": {
                        "completionMode": "Indexed",
                        "completions": 4,
                        "backoffLimitPerIndex": 0,
                        "template": {
                            "metadata": {"labels": {"l": "m"}},
                            "spec": {
                                "restartPolicy": "Never",
                                "initContainers": [{"name": SERVER, "image": "s:1", "restartPolicy": "Always"}],
                                "containers": [{"name": DRIVER, "image": "d:1"}],
                            },
                        },
                    }
                },
            }
        ]
    },
}


def a_pod(
    code: int | None, *, index: int = 0, reason: str = "", sidecar: int = 137, ruling: Ruling = "FailIndex", **more: Any
) -> PodRecord:
    """One that has ended, a second before the Job's end. code: of its driver; None for one that never began."""
    waiting: dict[str, Any] = {"waiting": {"reason": "PodInitializing"}}
    ended = DECIDED - 1
    containers: Containers = {
        "initContainerStatuses": [container_status(SERVER, "s:1", state=terminated(sidecar, at=(BEGAN, ended)))],
        "containerStatuses": [
            container_status(DRIVER, "d:1", state=waiting if code is None else terminated(code, at=(BEGAN, ended)))
        ],
    }
    return PodRecord(
        f"night-worker-0-{index}-bcdfg",
        index,
        1,
        BEGAN,
        phase="Succeeded" if code == 0 else "Failed",
        bound=True,
        reason=reason,
        disrupted_at=ended if reason else 0.0,
        containers=containers,
        ruling=ruling,
        ended_at=ended,
        **more,
    )


def seen(end: JobEnd | None, *pods: PodRecord) -> Observation:
    """As the client hands it in, after a trip through JSON."""
    record = JobSetRecord(BEGAN, DECIDED if end else 0.0, FINISHED if end else 0.0, end, list(pods))
    found = json.loads(json.dumps(objects(MANIFEST, read_manifest(MANIFEST), record, "here")))
    return Observation(found["jobset"], tuple(found["jobs"]), tuple(found["pods"]), events=tuple(found["events"]))


def judged(end: JobEnd | None, *pods: PodRecord) -> Outcome:
    return classify(seen(end, *pods))


class TestJudgement:
    def test_by_the_rules_of_a_cluster(self) -> None:
        assert judged(DONE, a_pod(0, ruling="Succeeded")).ending is Ending.SUCCEEDED
        assert judged(None).ending is Ending.RUNNING
        assert judged(FAILED, a_pod(exits.CONFIG)).ending is Ending.APPLICATION
        assert judged(FAILED, a_pod(exits.RESUME, reason="EvictionByEvictionAPI")).ending is Ending.PREEMPTED
        assert is_retried(judged(FAILED, a_pod(exits.RESUME)))
        assert judged(JobEnd(False, "DeadlineExceeded", "too long")).ending is Ending.DEADLINE
        assert judged(FAILED).ending is Ending.UNKNOWN

    def test_a_failed_index_is_named_with_how_many_there_are(self) -> None:
        assert "index 2 of 4 failed: driver ended with exit code 1" in judged(FAILED, a_pod(1, index=2)).explanation

    def test_a_sidecars_exit_code_decides_nothing_once_the_driver_has_begun(self) -> None:
        [failed] = judged(FAILED, a_pod(1)).failed

        assert (failed.container, failed.exit_code, failed.node) == (DRIVER, 1, "here")

    def test_a_driver_that_never_began_leaves_the_sidecars_word(self) -> None:
        [failed] = judged(FAILED, a_pod(None, sidecar=1)).failed

        assert (failed.container, failed.exit_code) == (SERVER, 1)

    def test_pods_that_the_job_ended_itself_are_no_reason_of_its_end(self) -> None:
        """The rule for 42 failed the Job; the other pod drained because of that."""
        end = JobEnd(False, "PodFailurePolicy", "Container driver failed with exit code 42")
        others = a_pod(exits.RESUME, index=1, ruling="Deleted", deleted_at=DECIDED)
        outcome = judged(end, a_pod(42, ruling="FailJob"), others)

        assert (outcome.ending, [each.exit_code for each in outcome.failed]) == (Ending.APPLICATION, [42])

    def test_a_pod_that_the_job_ended_was_not_deleted_by_a_person(self) -> None:
        """Only the Job's event tells the two apart, within the second in which its end was decided."""
        evicted = a_pod(exits.RESUME, reason="EvictionByEvictionAPI", ruling="FailJob")
        others = a_pod(exits.RESUME, index=1, ruling="Deleted", deleted_at=DECIDED - 1)
        outcome = judged(JobEnd(False, "PodFailurePolicy", "because"), evicted, others)

        assert outcome.ending is Ending.PREEMPTED
        assert outcome.explanation.endswith("taken away or refused: EvictionByEvictionAPI (1 pod)")

    def test_a_pod_without_a_place_says_what_it_waits_for(self) -> None:
        waiting = PodRecord("night-worker-0-0-bcdfg", 0, 1, BEGAN)
        outcome = judged(None, waiting)

        assert (outcome.ending, outcome.reason) == (Ending.RUNNING, "Unschedulable")
        assert "the pod waits for a node: 0/1 nodes are available" in outcome.explanation


class TestJobSet:
    def test_it_is_finished_only_when_its_last_pod_has_ended(self) -> None:
        record = JobSetRecord(BEGAN, DECIDED, 0.0, FAILED, [a_pod(1)])
        found = objects(MANIFEST, read_manifest(MANIFEST), record, "here")

        assert not finished(found["jobset"])
        assert condition(found["jobs"][0], "FailureTarget")
        assert condition(found["jobs"][0], "Failed") is None

    def test_a_suspended_one_has_no_job(self) -> None:
        manifest = {**MANIFEST, "spec": {**MANIFEST["spec"], "suspend": True}}
        spec = read_manifest(manifest)

        assert objects(manifest, spec, JobSetRecord(), "here")["jobs"] == []
        assert objects(manifest, spec, JobSetRecord(), "here")["jobset"]["spec"]["suspend"] is True

    def test_a_refused_one_says_why(self) -> None:
        found = refused(MANIFEST, "ManifestRefused", "spec.x: no", FINISHED)["jobset"]

        assert finished(found)
        assert (condition(found, "Failed") or {})["message"] == "spec.x: no"
        assert found["metadata"] == MANIFEST["metadata"]


def test_records_live_through_json() -> None:
    record = JobSetRecord(BEGAN, DECIDED, FINISHED, FAILED, [a_pod(1), PodRecord("waits", 1, 1, BEGAN)])

    assert JobSetRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record
