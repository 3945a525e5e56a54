"""The task infer when it is woken to look at its night: more workers, a person's number, and what is kept from look to look."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import TaskDeferred

from nightshift import exits
from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
from nightshift.jobset.fleet.records import JobSetEvent
from nightshift.jobset.kubernetes.follow import Followed
from nightshift.jobset.labels import ROLE_LABEL
from nightshift.jobset.runtime import RequestRefused
from nightshift.operators.infer import InferOperator, jobset_name
from nightshift.operators.jobset_errors import JobSetRefused, JobSetTaskError
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import weigh
from nightshift.planner.speed import Known, tokens_of
from nightshift.run.names import canonical_json
from nightshift.triggers.jobset import jobset_event
from tests.builders import RUN, WORK, a_chunk, a_plan, a_record, a_spec, with_rows
from tests.unit.operators.infer_night import Night, PromptRuntime, failed

pytestmark = pytest.mark.unit

NOTHING = {
    "watch": {"speed": 1.5, "late_since": None, "resumed_at": None},
    "late": False,
    "why": "in time",
    "workers": 0,
    "profile": "",
    "drop": [],
}


class Watched:
    """A night of four chunks and two workers that is woken to look, again and again, each time in a new process."""

    def __init__(self, night: Night) -> None:
        self.night = night
        spec = a_spec(compute__rows_per_worker_per_second=2.0)
        _, decision, _ = weigh(spec, 16, Known(tokens_of(spec)))
        obstore.put(night.store, f"{RUN.prefix}/spec.json", a_record(spec))
        plan = {
            **with_rows(night.store, a_plan(rows=16, workers=2)).to_json(),
            "decision": save_decision(night.store, RUN, decision),
        }
        obstore.put(night.store, f"{RUN.prefix}/plan.json", canonical_json(plan))
        self.job: dict[str, Any] | None = None
        self.trigger: dict[str, Any] = {}
        with pytest.raises(TaskDeferred) as deferred:
            self._task().execute(night.context)
        self._deferred(deferred.value)

    def _task(self) -> InferOperator:
        return self.night.task(job=self.job)

    def _deferred(self, deferred: TaskDeferred) -> None:
        self.trigger = json.loads(json.dumps(deferred.trigger.serialize()[1]))

    def wake(self, **look: Any) -> None:
        """As the trigger does."""
        for name in self.names:
            self.night.agent.says(name, "Running")
        event = jobset_event(self.trigger["jobsets"][0], Followed("look"), {})
        counts = {name: {"counts": {"running": 1, "worked_s": 17.0}} for name in self.names}
        event |= {"look": {**NOTHING, **look}, "before": counts}
        with pytest.raises(TaskDeferred) as deferred:
            self._task().execute_complete(self.night.context, json.loads(json.dumps(event)))
        self._deferred(deferred.value)

    def help(self, workers: int, *drop: str) -> None:
        self.wake(workers=workers, profile="cpu", why="late: help", late=True, drop=drop)

    def ends(self, number: int, ending: Any = "lost") -> None:
        """The JobSet of this generation has come to an end, and the task goes on."""
        event = jobset_event({"name": generation(number), "uid": ""}, Followed(ending), {})
        with pytest.raises(TaskDeferred) as deferred:
            self._task().execute_complete(self.night.context, event)
        self._deferred(deferred.value)

    def again(self) -> None:
        """Another attempt."""
        with pytest.raises(TaskDeferred) as deferred:
            self._task().execute(self.night.context)
        self._deferred(deferred.value)

    @property
    def memory(self) -> Memory:
        return Memory(self.night.context["task_state_store"], self._task().work_id)

    def says(self, workers: int | None) -> None:
        """A person changes the job's file."""
        self.job = a_spec(compute__workers=workers).model_dump(mode="json")

    @property
    def names(self) -> list[str]:
        return [each["name"] for each in self.trigger["jobsets"]]

    @property
    def workers(self) -> list[tuple[int, str]]:
        """Of each JobSet: how many workers its manifest has, and their role."""
        found = []
        for name in self.names:
            jobset = self.night.runtime.observe(name).jobset
            assert jobset is not None
            (job,) = jobset["spec"]["replicatedJobs"]
            found.append((job["template"]["spec"]["completions"], jobset["metadata"]["labels"][ROLE_LABEL]))
        return found


class Strict(PromptRuntime):
    """Takes no new JobSet."""

    def submit(self, manifest: Mapping[str, Any]) -> str:
        raise RequestRefused("a policy forbids it")


@pytest.fixture
def watched(night: Night) -> Watched:
    return Watched(night)


def generation(number: int) -> str:
    return jobset_name("job", "infer", WORK, number)


class TestLook:
    def test_the_trigger_is_told_what_was_decided_and_what_bounds_it(self, watched: Watched) -> None:
        look = watched.trigger["look"]

        assert (look["run"], look["rows"], look["chunk_rows"], look["speed"], look["late_since"]) == (
            RUN.prefix,
            16,
            4,
            2.0,
            None,
        )
        (jobset,) = look["jobsets"].values()
        assert jobset.pop("ready_at") == pytest.approx(time.time() + 600, abs=60)
        assert jobset == {"profile": "cpu", "workers": 2, "helps": False, "hosts": 1, "price": None}
        assert look["terms"]["start_up_s"] == 600
        assert (look["terms"]["room"], look["terms"]["stated"], look["terms"]["helped"]) == (8, False, 0)

    def test_without_a_decision_to_make_it_waits_for_the_same_jobset(self, watched: Watched) -> None:
        before = watched.names
        watched.wake()

        assert watched.names == before == watched.night.agent.names()

    def test_what_was_seen_and_counted_goes_on(self, watched: Watched) -> None:
        watched.wake()

        assert watched.trigger["look"]["speed"] == 1.5
        assert watched.trigger["before"] == {watched.names[0]: {"counts": {"running": 1, "worked_s": 17.0}}}

    def test_the_deadline_stays(self, watched: Watched) -> None:
        before = watched.trigger["deadline"]
        watched.wake()

        assert watched.trigger["deadline"] == before

    def test_one_that_has_ended_meanwhile_is_judged(self, watched: Watched) -> None:
        watched.night.commit(0, 1)
        name = watched.names[0]
        watched.night.agent.says(name, "Failed")

        with pytest.raises(Exception, match="2 of 4 chunks are missing"):
            watched._task().execute_complete(
                watched.night.context, {**jobset_event({"name": name, "uid": ""}, Followed("look"), {}), "look": NOTHING}
            )


class TestHelp:
    def test_a_helping_jobset_works_beside_the_first(self, watched: Watched) -> None:
        watched.help(3)

        assert watched.names == [generation(1), generation(2)]
        assert watched.workers == [(2, "owner"), (3, "helper")]
        assert watched.trigger["look"]["terms"]["helped"] == 1
        assert watched.trigger["look"]["jobsets"][generation(2)]["helps"]

    def test_the_next_attempt_has_both(self, watched: Watched) -> None:
        watched.help(3)
        with pytest.raises(TaskDeferred) as deferred:
            watched._task().execute(watched.night.context)
        watched._deferred(deferred.value)

        assert sorted(watched.names) == watched.night.agent.names()
        assert watched.trigger["look"]["terms"]["helped"] == 1

    def test_one_that_got_no_worker_goes_when_another_helps(self, watched: Watched) -> None:
        watched.help(3)
        watched.help(1, generation(2))

        assert watched.names == [generation(1), generation(3)]
        assert sorted(watched.names) == watched.night.agent.names()

    def test_its_end_leaves_the_first_at_work(self, watched: Watched) -> None:
        watched.help(3)
        watched.night.agent.says(generation(2), "Failed")
        with pytest.raises(TaskDeferred) as deferred:
            watched._task().execute_complete(
                watched.night.context, jobset_event({"name": generation(2), "uid": ""}, Followed("finished"), {})
            )
        watched._deferred(deferred.value)

        assert watched.names == [generation(1)]

    def test_one_that_the_cluster_refuses_fails_nothing(self, watched: Watched, tmp_path: Path) -> None:
        """Such as a policy that forbids a profile: the first JobSet works on, and is waited for."""
        watched.night.runtime = Strict(tmp_path)
        watched.help(3)

        assert watched.names == watched.night.agent.names() == [generation(1)]
        kept = watched.memory.load()
        assert ([live.generation for live in kept.live], kept.helped) == ([1], 1)

    def test_a_first_one_that_the_cluster_refuses_fails_the_task(self, night: Night, tmp_path: Path) -> None:
        night.runtime = Strict(tmp_path)

        with pytest.raises(JobSetRefused, match="a policy forbids it"):
            night.task().execute(night.context)

    def test_a_first_one_that_is_taken_away_comes_again_beside_its_helper(self, watched: Watched) -> None:
        """Else a helper of one worker would be left alone with the work of all."""
        watched.help(1)
        watched.night.agent.remove(generation(1))
        watched.ends(1)

        assert watched.workers == [(1, "helper"), (2, "owner")]

    def test_but_not_if_its_program_has_failed(self, watched: Watched) -> None:
        watched.help(1)
        failed(watched.night.agent, generation(1), code=1)
        watched.ends(1, "finished")

        assert watched.names == [generation(2)]

    def test_one_that_is_created_again_starts_again(self, watched: Watched) -> None:
        """A person has cleared the task, and its JobSet went: what starts now is not late."""
        kept = watched.memory.load()
        long_ago = time.time() - 5000
        watched.memory.save(kept.with_all(tuple(replace(live, since=long_ago) for live in kept.live)))
        watched.again()
        (jobset,) = watched.trigger["look"]["jobsets"].values()
        assert jobset["ready_at"] == pytest.approx(long_ago + 600, abs=1), "this one is there since then"

        watched.night.agent.remove(generation(1))
        watched.again()

        (jobset,) = watched.trigger["look"]["jobsets"].values()
        assert jobset["ready_at"] > time.time()

    @pytest.mark.parametrize(("cleared", "helped"), [(True, 0), (False, 3)])
    def test_a_new_start_brings_new_help_and_a_retry_does_not(self, watched: Watched, cleared: bool, helped: int) -> None:
        watched.memory.save(replace(watched.memory.load(), helped=3))
        if cleared:
            watched.night.clear()
        watched.again()

        assert watched.trigger["look"]["terms"]["helped"] == helped

    def test_the_night_is_over_with_its_ledger(self, watched: Watched) -> None:
        watched.help(3)
        plan = a_plan(rows=16, workers=2)
        for chunk in range(4):
            obstore.put(watched.night.store, WORK.chunk_path(chunk), a_chunk(RUN, plan, chunk))
        watched.night.agent.says(generation(2), "Completed")

        done = watched._task().execute_complete(
            watched.night.context, jobset_event({"name": generation(2), "uid": ""}, Followed("finished"), {})
        )

        assert done == {"jobset": generation(2)}
        assert watched.night.agent.names() == []


class TestAPersonsNumber:
    def test_more_workers_are_a_helping_jobset_with_the_difference(self, watched: Watched) -> None:
        watched.says(4)
        watched.wake()

        assert watched.workers == [(2, "owner"), (2, "helper")]

    def test_and_once_is_enough(self, watched: Watched) -> None:
        watched.says(4)
        watched.wake()
        watched.wake()

        assert len(watched.names) == 2
        assert watched.trigger["look"]["terms"]["stated"], "a person's word is not corrected"

    def test_never_more_than_there_are_chunks(self, watched: Watched) -> None:
        watched.says(400)
        watched.wake()

        assert sum(workers for workers, _ in watched.workers) == 4

    def test_fewer_take_the_helpers_first(self, watched: Watched) -> None:
        watched.help(2)
        watched.says(2)
        watched.wake()

        assert (watched.names, watched.workers) == ([generation(1)], [(2, "owner")])
        assert watched.night.agent.names() == [generation(1)]

    def test_and_then_replace_the_first_by_a_smaller_one(self, watched: Watched) -> None:
        watched.says(1)
        watched.wake()

        assert (watched.names, watched.workers) == ([generation(2)], [(1, "owner")])

    def test_a_smaller_one_that_is_taken_away_is_followed_by_one_as_small(self, watched: Watched) -> None:
        watched.says(1)
        watched.wake()
        watched.night.agent.remove(generation(2))
        event = jobset_event({"name": generation(2), "uid": ""}, Followed("lost"), {})
        with pytest.raises(TaskDeferred) as deferred:
            watched._task().execute_complete(watched.night.context, event)
        watched._deferred(deferred.value)

        assert (watched.names, watched.workers) == ([generation(3)], [(1, "owner")])

    @pytest.mark.parametrize("number", [1, 2], ids=["first", "helper"])
    def test_workers_that_are_taken_away_come_again(self, watched: Watched, number: int) -> None:
        watched.says(4)
        watched.wake()
        watched.night.agent.remove(generation(number))
        watched.ends(number)
        watched.wake()

        assert sum(workers for workers, _ in watched.workers) == 4
        before = watched.names
        watched.wake()
        assert watched.names == before

    @pytest.mark.parametrize("number", [1, 4])
    def test_it_holds_for_the_next_attempt(self, watched: Watched, number: int) -> None:
        watched.says(number)
        watched.wake()
        for name in watched.names:
            failed(watched.night.agent, name, code=exits.RESUME)
            event = jobset_event({"name": name, "uid": ""}, Followed("finished"), {})
            with pytest.raises((TaskDeferred, JobSetTaskError)):
                watched._task().execute_complete(watched.night.context, event)
        watched.again()

        assert watched.workers == [(number, "owner")]

    def test_it_holds_on_the_next_profile(self, watched: Watched) -> None:
        """Which would get all workers of the plan."""
        spec = a_spec(compute__profile="gpu-l4-spot", compute__fallback=["gpu-l4-flex"])
        obstore.put(watched.night.store, f"{RUN.prefix}/spec.json", a_record(spec))
        live = FleetMember(5, "gpu-l4-spot", 1, since=time.time())
        kept = FleetState(deadline=time.time() + 7200, asked=1).with_all((live,))
        short = {"wanted": 1, "running": 0, "short_s": 5000.0, "held_s": 0.0, "disruptions": 0, "worked_s": 0.0}
        event = JobSetEvent(generation(5), "", "starved", counts={generation(5): short})

        new = watched._task().relive(kept, event)

        assert new is not None
        assert [(each.profile, each.workers) for each in new.live] == [("gpu-l4-spot", 1), ("gpu-l4-flex", 1)]

    def test_a_number_that_is_taken_away_changes_nothing(self, watched: Watched) -> None:
        watched.says(None)
        watched.wake()

        assert watched.workers == [(2, "owner")]

    def test_it_comes_before_a_decision_of_the_forecast(self, watched: Watched) -> None:
        watched.says(1)
        watched.help(2)

        assert watched.workers == [(1, "owner")]

    def test_it_is_remembered(self, watched: Watched) -> None:
        watched.says(4)
        watched.wake()

        kept = Memory(watched.night.context["task_state_store"], watched._task().work_id).load()
        assert kept.asked == 4
