"""What a task makes of a JobSet that Kueue has given up on: a night's, and any other's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import TaskDeferred

from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
from nightshift.jobset.observation import Observation
from nightshift.operators.infer import jobset_name
from nightshift.operators.jobset import JobSetDeadlineExceeded, JobSetStartupTimeout
from nightshift.run import pauses
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from tests.builders import RUN, WORK, a_record, a_spec
from tests.unit.operators.infer_night import Night, PromptRuntime, an_event, waited_for
from tests.unit.operators.test_one_deadline import KINDS
from tests.unit.recorded import recorded

pytestmark = pytest.mark.unit

WORDS = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"


class Queued(PromptRuntime):
    """A cluster with Kueue: every JobSet is suspended, and its Workload evicted for `reason`; '' for one that waits."""

    reason = "DeactivatedDueToRequeuingLimitExceeded"

    @classmethod
    def of(cls, night: Night) -> Queued:
        assert isinstance(night.runtime, cls)
        return night.runtime

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        seen = super().observe(name, closely=closely)
        workload: Any = recorded("queue-time-over").workload
        workload["spec"]["active"] = not self.reason
        for each in workload["status"]["conditions"]:
            if each["type"] == "Evicted":
                each.update(reason=self.reason, message=WORDS)
        if seen.jobset is None:
            return seen
        return replace(seen, jobset={**seen.jobset, "spec": {**seen.jobset["spec"], "suspend": True}}, workload=workload)


@pytest.fixture
def night(tmp_path: Path) -> Night:
    night = Night(tmp_path)
    night.runtime = Queued(tmp_path)
    night.trigger = partial(KubernetesJobSetTrigger, namespace="nights")
    night.context["ti"].__dict__.update(dag_id="job", task_id="infer", run_id="1", map_index=-1, xcom_push=lambda **_: None)
    return night


@pytest.mark.parametrize("kind", KINDS)
class TestAnyTask:
    def deferred(self, night: Night, kind: Callable[[Night], Any]) -> str:
        with pytest.raises(TaskDeferred) as deferred:
            kind(night).execute(night.context)
        return waited_for(deferred.value)

    def test_it_fails_at_once_in_kueues_words_and_is_worth_a_retry(self, night: Night, kind: Callable[[Night], Any]) -> None:
        name = self.deferred(night, kind)

        with pytest.raises(JobSetStartupTimeout, match=f"Kueue gave up on the JobSet: {WORDS}"):
            kind(night).execute_complete(night.context, an_event(name, "gave_up"))
        assert night.agent.names() == []

    def test_one_whose_time_in_the_queue_is_over_is_not(self, night: Night, kind: Callable[[Night], Any]) -> None:
        Queued.of(night).reason = "DeactivatedDueToMaximumExecutionTimeExceeded"
        name = self.deferred(night, kind)

        with pytest.raises(JobSetDeadlineExceeded, match="max-exec-time-seconds in Kueue"):
            kind(night).execute_complete(night.context, an_event(name, "gave_up"))

    def test_one_that_is_back_in_its_queue_is_waited_for(self, night: Night, kind: Callable[[Night], Any]) -> None:
        name = self.deferred(night, kind)
        Queued.of(night).reason = ""

        with pytest.raises(TaskDeferred) as deferred:
            kind(night).execute_complete(night.context, an_event(name, "gave_up"))
        assert waited_for(deferred.value) == name
        assert night.agent.names() == [name]


class TestNight:
    def test_the_next_profile_replaces_it_at_once(self, night: Night) -> None:
        with_fallback(night)
        first = night.execute()

        second = night.resume_and_wait(first, "gave_up")

        assert night.agent.names() == [second] != [first]
        [live] = Memory(night.context["task_state_store"], night.task().work_id).load().live
        assert (live.profile, live.helps) == ("gpu-l4-flex", False)

    def test_after_the_last_profile_it_fails(self, night: Night) -> None:
        with_fallback(night)
        second = night.resume_and_wait(night.execute(), "gave_up")

        with pytest.raises(JobSetStartupTimeout, match="Kueue gave up"):
            night.resume(second, "gave_up")

    def test_another_one_goes_on_with_its_work(self, night: Night) -> None:
        with_fallback(night)
        memory = Memory(night.context["task_state_store"], night.task().work_id)
        both = (FleetMember(1, "gpu-l4-spot"), FleetMember(2, "gpu-l4-flex"))
        memory.save(FleetState(deadline=time.time() + 6000, start=6).with_all(both))
        with pytest.raises(TaskDeferred):
            night.task().execute(night.context)
        first, second = (jobset_name("job", "infer", WORK, generation) for generation in (1, 2))

        assert night.resume_and_wait(first, "gave_up") == second
        assert night.agent.names() == [second]

    def test_a_paused_one_stays(self, night: Night) -> None:
        with_fallback(night)
        first = night.execute()
        pauses.request_pause(night.store, RUN, paused=True, by="ann")

        assert night.resume_and_wait(first, "gave_up") == first


def with_fallback(night: Night) -> None:
    spec = a_spec(compute__profile="gpu-l4-spot", compute__fallback=["gpu-l4-flex"])
    obstore.put(night.store, f"{RUN.prefix}/spec.json", a_record(spec))
