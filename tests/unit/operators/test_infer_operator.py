"""The task infer: whatever is killed and repeated, there is one JobSet at a time, and the ledger says what is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.triggers.base import BaseTrigger
from obstore.store import MemoryStore, ObjectStore

from nightshift import exits
from nightshift.jobset.kubernetes.follow import Followed, WaitEnd
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, RUN_URL_ANNOTATION, WORK_ANNOTATION
from nightshift.jobset.local.client import LocalRuntime
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import RuntimeUnavailable
from nightshift.operators import jobset_end
from nightshift.operators.deployment import Deployment
from nightshift.operators.infer import InferOperator, jobset_name
from nightshift.operators.jobset_errors import (
    JobSetApplicationFailure,
    JobSetDeadlineExceeded,
    JobSetLost,
    JobSetPreempted,
    JobSetRefused,
    JobSetTaskError,
    JobSetUnavailable,
    JobSetUnknown,
)
from nightshift.operators.jobset_memory import Kept, Live, Memory
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.plan import save_plan
from nightshift.settings import Settings
from nightshift.triggers.jobset import KubernetesJobSetTrigger, jobset_event
from nightshift.triggers.local import LocalJobSetTrigger
from nightshift.triggers.polling import poll
from tests.builders import RUN, a_chunk, a_plan, a_spec
from tests.jobsets import BUCKET, Agent, an_ended_pod

pytestmark = pytest.mark.unit

PLAN = a_plan(rows=8, chunk_rows=4)
POD = "pod-0"


class KeptState(dict[str, Any]):
    """Airflow's task state store, as far as the operator uses it: it lives longer than an attempt."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class PromptRuntime(LocalRuntime):
    """Its agent carries out a stop at once."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._agent = Agent(folder)

    def stop(self, name: str, uid: str = "") -> None:
        super().stop(name, uid)
        if name in self._agent.names():
            self._agent.remove(name)


class RudeRuntime(PromptRuntime):
    """Takes the JobSet and then loses its reply, once."""

    lost = False

    def submit(self, manifest: Mapping[str, Any]) -> str:
        uid = super().submit(manifest)
        if not self.lost:
            self.lost = True
            raise RuntimeUnavailable("the reply was lost")
        return uid


class Night:
    """One run, whose task `infer` is executed again and again, each time by a new process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = Agent(folder)
        self.store: ObjectStore = MemoryStore()
        self.runtime: LocalRuntime = PromptRuntime(folder)
        self.trigger: Callable[..., BaseTrigger] = LocalJobSetTrigger
        self.settings = Settings(bucket=BUCKET, project="acme")
        self.context = a_context()
        obstore.put(self.store, f"{RUN.prefix}/spec.json", canonical_json({"spec": a_spec().model_dump(mode="json")}))
        save_plan(self.store, RUN, PLAN)

    def task(self, **parameters: Any) -> InferOperator:
        with DAG("job", schedule=None):
            operator = InferOperator(task_id="infer", run_prefix=RUN.prefix, terms="", **parameters)
        deployment = Deployment(self.runtime, self.trigger)
        operator.__dict__.update(settings=self.settings, store=self.store, deployment=deployment)
        return operator

    def execute(self) -> str:
        """The name of the JobSet for which the task waits."""
        with pytest.raises(TaskDeferred) as deferred:
            self.task().execute(self.context)
        return waited_for(deferred.value)

    def resume(self, name: str, ending: WaitEnd = "finished") -> dict[str, Any]:
        return self.task().execute_complete(self.context, an_event(name, ending))

    def resume_and_wait(self, name: str, ending: WaitEnd = "finished") -> str:
        """For an end after which the task goes on: the name of the JobSet for which it waits then."""
        with pytest.raises(TaskDeferred) as deferred:
            self.resume(name, ending)
        return waited_for(deferred.value)

    def commit(self, *chunks: int) -> None:
        for chunk in chunks:
            obstore.put(self.store, f"{RUN.prefix}/ledger/chunk-{chunk:08d}.parquet", a_chunk(RUN, PLAN, chunk))


def a_context() -> Any:
    """Of an attempt whose predecessors have left nothing."""
    return {"task_state_store": KeptState(), "ti": SimpleNamespace(id="attempt")}


def an_event(name: str, ending: WaitEnd) -> dict[str, Any]:
    return jobset_event({"name": name, "uid": ""}, Followed(ending), {})


def fired(night: Night, name: str) -> dict[str, Any]:
    """What the trigger makes of the JobSet as it is now."""

    async def first() -> dict[str, Any]:
        trigger = LocalJobSetTrigger(jobsets=[{"name": name, "uid": ""}], deadline=time.time() + 60, poll_interval=0.01)
        [event] = [each.payload async for each in trigger.run()]
        return dict(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIGHTSHIFT_PROJECT", night.settings.project)
        patch.setenv("NIGHTSHIFT_BUCKET", night.settings.bucket)
        patch.setenv("NIGHTSHIFT_RUNTIME", f"local:{night.folder}")
        assert poll.__kwdefaults__ is not None
        patch.setitem(poll.__kwdefaults__, "settle_s", 0)
        return asyncio.run(first())


def waited_for(deferred: TaskDeferred) -> str:
    assert deferred.method_name == "execute_complete"
    (jobset,) = deferred.trigger.serialize()[1]["jobsets"]
    return str(jobset["name"])


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    monkeypatch.setattr(jobset_end, "RESUME_PAUSE_S", 0)
    return Night(tmp_path)


def failed(agent: Agent, name: str, *, code: int, reason: str = "") -> None:
    agent.says(name, "Failed", pods=[an_ended_pod(POD, code=code, reason=reason)])


class TestRepeats:
    def test_a_repeat_waits_for_the_jobset_that_is_there(self, night: Night) -> None:
        first = night.execute()

        assert night.execute() == first
        assert night.agent.names() == [first]

    def test_a_lost_reply_to_the_submission_does_not_make_a_second_jobset(self, night: Night, tmp_path: Path) -> None:
        night.runtime = RudeRuntime(tmp_path)
        with pytest.raises(JobSetUnavailable, match="the reply was lost"):
            night.task().execute(night.context)

        assert night.agent.names() == [night.execute()]

    def test_another_dag_run_of_the_same_run_waits_for_the_same_jobset(self, night: Night) -> None:
        first = night.execute()
        night.context = a_context()

        assert night.execute() == first
        assert night.agent.names() == [first]

    @pytest.mark.parametrize(("image", "warned"), [("nightshift/driver:0.1.0", False), ("nightshift/driver:0.2.0", True)])
    def test_one_of_another_manifest_is_waited_for_and_the_log_says_so(
        self, night: Night, image: str, warned: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = night.execute()
        night.settings = replace(night.settings, driver_image=image)

        assert night.execute() == first
        assert ("from another manifest" in caplog.text + capsys.readouterr().out) == warned

    def test_all_attempts_keep_to_one_deadline(self, night: Night) -> None:
        deadlines = []
        for _ in range(2):
            with pytest.raises(TaskDeferred) as deferred:
                night.task().execute(night.context)
            deadlines.append(deferred.value.trigger.serialize()[1]["deadline"])

        assert deadlines[0] == deadlines[1]
        assert deadlines[0] == pytest.approx(time.time() + a_spec().deadline_seconds, abs=60)

    def test_a_jobset_of_another_run_is_left_alone(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Running", annotations={WORK_ANNOTATION: "gs://runs/other/2026-11-20/0000000000000000"})

        with pytest.raises(JobSetRefused, match="Find out whose it is"):
            night.task().execute(night.context)
        assert night.agent.names() == [name]

    def test_a_jobset_says_whose_it_is_beside_what_its_manifest_says(self, night: Night) -> None:
        seen = night.runtime.observe(night.execute())

        assert seen.jobset is not None
        said = seen.jobset["metadata"]["annotations"]
        assert said[OWNER_ANNOTATION] == "attempt"
        assert said[WORK_ANNOTATION] == said[RUN_URL_ANNOTATION] == RUN.url(BUCKET)

    def test_who_waits_for_it_claims_it(self, night: Night, tmp_path: Path) -> None:
        """So that the trigger of an attempt that was cleared does not end it."""
        claims = []

        class Claimed(PromptRuntime):
            def claim(self, name: str, uid: str, owner: str) -> None:
                claims.append((name, owner))

        night.runtime = Claimed(tmp_path)
        name = night.execute()
        assert claims == []
        night.context["ti"].id = "second"
        night.execute()

        assert claims == [(name, "second")]

    def test_one_that_another_has_made_meanwhile_is_waited_for(self, night: Night, tmp_path: Path) -> None:
        first = night.execute()
        asked = []

        class Late(PromptRuntime):
            def observe(self, name: str, *, closely: bool = False) -> Observation:
                asked.append(name)
                return super().observe(name, closely=closely) if len(asked) > 1 else Observation(None)

        night.runtime = Late(tmp_path)

        assert night.execute() == first
        assert night.agent.names() == [first]

    def test_one_that_was_judged_and_kept_is_not_waited_for_again(self, night: Night) -> None:
        """Neither is it judged again: the next attempt waits for the next generation, and so does the one after."""
        first = night.execute()
        night.agent.says(first, "Failed", annotations={JUDGED_ANNOTATION: "attempt"})
        night.context = a_context()

        second = night.execute()

        assert night.agent.names() == sorted([first, second])
        assert second != first
        failed(night.agent, second, code=exits.RESUME)
        with pytest.raises(JobSetTaskError):
            night.resume(second)

    def test_a_jobset_that_still_drains_is_waited_for_and_then_made_anew(self, night: Night, tmp_path: Path) -> None:
        name = night.execute()
        slow = LocalRuntime(tmp_path)
        slow.stop(name)
        asked = []

        class Draining(PromptRuntime):
            def observe(self, name: str, *, closely: bool = False) -> Any:
                asked.append(name)
                if len(asked) == 2:
                    night.agent.remove(name)
                return super().observe(name, closely=closely)

        night.runtime = Draining(tmp_path)

        assert night.execute() == name
        assert not night.agent.was_asked_to_stop(name)


class TestKilled:
    """The worker's process gets SIGTERM: of a person, or because the worker drains."""

    def test_a_jobset_that_this_process_has_just_made_goes(self, night: Night) -> None:
        task = night.task()
        with pytest.raises(TaskDeferred):
            task.execute(night.context)
        task.on_kill()

        assert night.agent.names() == []

    def test_one_that_works_for_an_earlier_attempt_stays(self, night: Night) -> None:
        name = night.execute()
        task = night.task()
        with pytest.raises(TaskDeferred):
            task.execute(night.context)
        task.on_kill()

        assert night.agent.names() == [name]

    def test_the_signal_comes_while_the_reply_to_the_submission_is_on_its_way(self, night: Night, tmp_path: Path) -> None:
        """Nobody knows yet that it is there; the next attempt finds it."""
        night.runtime = RudeRuntime(tmp_path)
        task = night.task()
        with pytest.raises(JobSetUnavailable):
            task.execute(night.context)
        task.on_kill()

        assert night.agent.names() == [night.execute()]


class TestNothingToDo:
    def test_all_chunks_are_there(self, night: Night) -> None:
        night.commit(0, 1)

        assert night.task().execute(night.context) == {"jobset": None}
        assert night.agent.names() == []

    def test_all_chunks_are_there_and_so_is_the_jobset(self, night: Night) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)
        night.commit(0, 1)

        assert night.task().execute(night.context) == {"jobset": None}
        assert night.agent.names() == []

    def test_the_run_is_sealed(self, night: Night) -> None:
        obstore.put(night.store, f"{RUN.prefix}/manifest.json", b"{}")

        assert night.task().execute(night.context) == {"jobset": None}

    def test_the_run_has_no_rows(self, night: Night) -> None:
        obstore.put(night.store, f"{RUN.prefix}/plan.json", canonical_json(a_plan(rows=0).to_json()))

        assert night.task().execute(night.context) == {"jobset": None}

    def test_a_run_without_a_plan_sends_a_person_to_extract(self, night: Night) -> None:
        obstore.delete(night.store, f"{RUN.prefix}/plan.json")

        with pytest.raises(AirflowFailException, match="Repeat the task 'extract'"):
            night.task().execute(night.context)


class TestEnds:
    def test_done(self, night: Night) -> None:
        name = night.execute()
        night.commit(0, 1)
        night.agent.says(name, "Completed", pods=[an_ended_pod(POD, code=exits.DONE)])

        assert night.resume(name) == {"jobset": name}
        assert night.agent.names() == []

    def test_the_ledger_says_what_is_done_whatever_the_pods_say(self, night: Night) -> None:
        name = night.execute()
        night.commit(0, 1)
        failed(night.agent, name, code=1)

        assert night.resume(name) == {"jobset": name}

    @pytest.mark.parametrize(
        ("end", "ending"),
        [
            (lambda agent, name: failed(agent, name, code=143, reason="EvictionByEvictionAPI"), "finished"),
            (lambda agent, name: agent.remove(name), "lost"),
        ],
        ids=["taken-away", "deleted-from-outside"],
    )
    def test_an_end_that_was_not_the_works_fault_is_followed_at_once(
        self, night: Night, end: Callable[[Agent, str], None], ending: WaitEnd
    ) -> None:
        first = night.execute()
        night.commit(0)
        end(night.agent, first)

        second = night.resume_and_wait(first, ending)

        assert second != first
        assert night.agent.names() == [second]

    @pytest.mark.parametrize(("code", "error"), [(exits.RESUME, JobSetTaskError), (1, JobSetApplicationFailure)])
    def test_a_program_that_fails_fails_the_task_with_its_rows(self, night: Night, code: int, error: type[Exception]) -> None:
        """For good, unless its exit code says that work is left."""
        first = night.execute()
        night.commit(0)
        failed(night.agent, first, code=code)

        with pytest.raises(error, match=rf"exit code {code}\b.*rows 0 to 7; 1 of 2 chunks are missing") as raised:
            night.resume(first)
        assert isinstance(raised.value, AirflowFailException) == (code != exits.RESUME)
        assert night.agent.names() == []
        assert night.execute() != first

    def test_a_hopeless_driver_says_so(self, night: Night) -> None:
        name = night.execute()
        failed(night.agent, name, code=exits.CONFIG)

        with pytest.raises(JobSetApplicationFailure, match="trying again cannot help"):
            night.resume(name)

    def test_a_jobset_that_completes_with_chunks_missing_is_no_success(self, night: Night) -> None:
        first = night.execute()
        night.commit(0)
        night.agent.says(first, "Completed")

        with pytest.raises(JobSetUnknown, match="1 of 2 chunks are missing"):
            night.resume(first)
        assert night.agent.names() == []

    def test_a_manifest_that_the_runtime_refuses_fails_the_task_at_once_in_its_words(self, night: Night) -> None:
        """No retry is spent on it, and when the person has mended it the same generation is made again."""
        name = night.execute()
        night.agent.refuses(name, "spec.failurePolicy: not supported")

        with pytest.raises(JobSetRefused, match=r"is refused: spec\.failurePolicy: not supported"):
            night.task().execute_complete(night.context, fired(night, name))
        assert night.agent.names() == []
        assert night.execute() == name

    def test_the_deadline_stops_the_jobset_and_fails_the_task_for_good(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Running")

        with pytest.raises(JobSetDeadlineExceeded, match=r"deadline passed.*2 of 2 chunks are missing"):
            night.resume(name, ending="deadline")
        assert night.agent.names() == []

    @pytest.mark.parametrize(("reason", "error"), [("EvictionByEvictionAPI", JobSetPreempted), ("", JobSetLost)])
    def test_there_is_an_end_to_going_on_by_itself(self, night: Night, reason: str, error: type[Exception]) -> None:
        name = night.execute()
        for _ in range(2):
            if reason:
                failed(night.agent, name, code=143, reason=reason)
            else:
                night.agent.remove(name)
            task = night.task()
            task.resume_limit = 1
            try:
                task.execute_complete(night.context, an_event(name, "finished" if reason else "lost"))
            except TaskDeferred as deferred:
                name = waited_for(deferred)
            except error:
                break
        else:
            pytest.fail("it never ends")

        assert night.agent.names() == []

    def test_a_finished_jobset_that_nobody_judged_is_judged_when_its_logs_are_copied(self, night: Night) -> None:
        first = night.execute()
        failed(night.agent, first, code=143, reason="EvictionByEvictionAPI")

        assert night.execute() == first
        second = night.resume_and_wait(first)

        assert second != first
        assert night.agent.names() == [second]

    def test_nothing_goes_on_by_itself_after_the_deadline(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        failed(night.agent, name, code=143, reason="EvictionByEvictionAPI")
        later = time.time() + a_spec().deadline_seconds + 60
        monkeypatch.setattr(time, "time", lambda: later)

        with pytest.raises(JobSetPreempted):
            night.resume(name)
        assert night.agent.names() == []

    def test_a_jobset_of_the_same_name_that_another_made_is_not_the_one_that_ended(self, night: Night) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)

        with pytest.raises(TaskDeferred) as deferred:
            night.task().execute_complete(night.context, {**an_event(name, "lost"), "uid": "of-the-one-that-was-deleted"})

        assert waited_for(deferred.value) != name

    def test_the_next_jobset_is_not_made_beside_pods_that_still_drain(self, night: Night, tmp_path: Path) -> None:
        first = night.execute()
        failed(night.agent, first, code=143, reason="EvictionByEvictionAPI")
        beside = []

        class Slow(LocalRuntime):
            """Carries out a stop when somebody looks whether it was."""

            def observe(self, name: str, *, closely: bool = False) -> Observation:
                if name in night.agent.names() and night.agent.was_asked_to_stop(name):
                    night.agent.remove(name)
                return super().observe(name, closely=closely)

            def submit(self, manifest: Mapping[str, Any]) -> str:
                beside.append(night.agent.names())
                return super().submit(manifest)

        night.runtime = Slow(tmp_path)
        night.resume_and_wait(first)

        assert beside == [[]]

    def test_what_the_trigger_saw_counts_when_nothing_is_left_to_look_at(self, night: Night) -> None:
        """A finished JobSet may be deleted, with its pods, before the task resumes."""
        name = night.execute()
        failed(night.agent, name, code=1)
        seen = night.runtime.observe(name)
        night.agent.remove(name)

        with pytest.raises(JobSetApplicationFailure, match=r"exit code 1\b"):
            night.task().execute_complete(
                night.context, {**an_event(name, "finished"), "jobset": seen.jobset, "pods": list(seen.pods)}
            )

    def test_a_finished_jobset_may_be_kept_and_is_marked(self, night: Night) -> None:
        name = night.execute()
        night.commit(0, 1)
        night.agent.says(name, "Completed")
        task = night.task()
        task.keep_finished = True

        task.execute_complete(night.context, an_event(name, "finished"))

        kept = night.runtime.observe(name).jobset
        assert kept is not None
        assert kept["metadata"]["annotations"][JUDGED_ANNOTATION] == "attempt"

    def test_a_log_that_cannot_be_read_hides_no_end(self, night: Night, tmp_path: Path) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)

        class Mute(PromptRuntime):
            def logs(self, *_: Any, **__: Any) -> Any:
                raise RuntimeUnavailable("the node is gone")

        night.runtime = Mute(tmp_path)

        with pytest.raises(JobSetApplicationFailure):
            night.resume(name)

    def test_an_event_about_a_jobset_that_is_no_longer_waited_for_changes_nothing(self, night: Night) -> None:
        first = night.execute()
        failed(night.agent, first, code=143, reason="EvictionByEvictionAPI")
        second = night.resume_and_wait(first)

        assert night.resume_and_wait(first) == second
        assert night.agent.names() == [second]

    def test_the_last_words_of_failed_pods_are_in_the_tasks_log(
        self, night: Night, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)
        night.agent.log(name, POD, "driver", "\n".join(f"line {number}" for number in range(100)))

        with pytest.raises(JobSetApplicationFailure):
            night.resume(name)

        told = caplog.text + capsys.readouterr().out
        assert "line 99" in told
        assert "line 80" in told
        assert "line 79" not in told


class TestTwoJobSets:
    """Of one run: the second was added when the first got too few pods."""

    @pytest.fixture
    def names(self, night: Night) -> list[str]:
        night.trigger = partial(KubernetesJobSetTrigger, namespace="nights")
        memory = Memory(night.context, night.task().work(night.context))
        memory.save(Kept(deadline=time.time() + 600).with_all((Live(1), Live(2))))
        with pytest.raises(TaskDeferred):
            night.task().execute(night.context)
        return [jobset_name("job", "infer", RUN, generation) for generation in (1, 2)]

    def test_the_end_of_one_leaves_the_other_at_work(self, night: Night, names: list[str]) -> None:
        assert night.agent.names() == sorted(names)
        failed(night.agent, names[0], code=1)

        assert night.resume_and_wait(names[0]) == names[1]
        assert night.agent.names() == [names[1]]

    def test_the_one_that_is_given_up_goes(self, night: Night, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        night.agent.says(names[0], "Running")
        monkeypatch.setattr(InferOperator, "relive", lambda *_: (Live(2),))

        assert night.resume_and_wait(names[0], "starved") == names[1]
        assert night.agent.names() == [names[1]]

    def test_a_success_ends_both(self, night: Night, names: list[str]) -> None:
        night.commit(0, 1)
        night.agent.says(names[0], "Completed")

        assert night.resume(names[0]) == {"jobset": names[0]}
        assert night.agent.names() == []


class TestAnotherTimeAround:
    """A person clears a task that has ended."""

    def test_a_success_leaves_the_whole_deadline_to_the_next_time(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        night.commit(0, 1)
        night.agent.says(name, "Completed")
        night.resume(name)
        for chunk in (0, 1):
            obstore.delete(night.store, f"{RUN.prefix}/ledger/chunk-{chunk:08d}.parquet")

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds, abs=60)

    def test_so_does_a_failure_for_good(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)
        with pytest.raises(AirflowFailException):
            night.resume(name)

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds, abs=60)

    def test_a_failure_that_is_retried_does_not(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        failed(night.agent, name, code=exits.RESUME)
        with pytest.raises(JobSetTaskError):
            night.resume(name)

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds - 3600, abs=60)

    def seconds_left(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> float:
        """To the deadline of an attempt that begins an hour later."""
        later = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(TaskDeferred) as deferred:
            night.task().execute(night.context)
        return float(deferred.value.trigger.serialize()[1]["deadline"] - later)


class TestNames:
    def test_leave_room_for_the_names_of_pods(self) -> None:
        long = RunRef("a" * 29 + "-" + "b" * 10, "2026-11-20", "0" * 16)

        name = jobset_name("dag", "infer", long, 1)

        assert name.startswith("a" * 29 + "-")
        assert "--" not in name
        assert len(f"{name}-worker-0-9999-abcde") <= 63

    def test_differ_by_what_makes_the_work_another(self) -> None:
        names = {
            jobset_name("dag", "infer", RUN, 1),
            jobset_name("dag", "infer", RUN, 2),
            jobset_name("other", "infer", RUN, 1),
            jobset_name("dag", "help", RUN, 1),
            jobset_name("dag", "infer", RunRef(RUN.job, RUN.partition, RUN.digest, 2), 1),
        }

        assert len(names) == 5
