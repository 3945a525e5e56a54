"""The task infer when a JobSet ends: what it makes of the end, what it does next, and what it leaves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from local.runtime.objects import container_status, terminated
from local.runtime.records import PodRecord
from nightshift import exits
from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
from nightshift.jobset.fleet.shown import save_now
from nightshift.jobset.kubernetes.follow import WaitEnd
from nightshift.jobset.labels import JUDGED_ANNOTATION
from nightshift.jobset.observation import Observation, moment
from nightshift.jobset.runtime import RequestRefused, RuntimeUnavailable
from nightshift.jobset.verdict.cannot_start import TRIES
from nightshift.operators.infer import InferOperator, jobset_name
from nightshift.operators.jobset_errors import (
    JobSetApplicationFailure,
    JobSetDeadlineExceeded,
    JobSetLost,
    JobSetPreempted,
    JobSetRefused,
    JobSetTaskError,
    JobSetUnknown,
)
from nightshift.run.observed.pod_startup import Starts
from nightshift.run.observed.pods_kept import load
from nightshift.run.observed.pods_now import JobSetNow, PodNow, Stage
from nightshift.triggers import night_gauges
from nightshift.triggers.jobset import KubernetesJobSetTrigger
from tests.builders import RUN, WORK, a_chunk, a_record, a_spec
from tests.folder_cluster import FolderRuntime
from tests.jobsets import Agent, an_ended_pod
from tests.unit.operators.infer_night import PLAN, POD, Night, PromptRuntime, an_event, failed, fired, waited_for

pytestmark = pytest.mark.unit


class Mute(PromptRuntime):
    def logs(self, *_: Any, **__: Any) -> Any:
        raise RuntimeUnavailable("the node is gone")


class TestEnds:
    def test_done(self, night: Night) -> None:
        name = night.execute()
        night.commit(0, 1)
        night.agent.says(name, "Completed", pods=[an_ended_pod(POD, code=exits.DONE)])

        assert night.resume(name) == {"jobset": name}
        assert night.agent.names() == []

    def test_how_long_its_pods_took_to_start_is_kept_for_the_seal_and_sent_to_airflows_metrics(
        self, night: Night, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: dict[str, float] = {}
        stats = SimpleNamespace(gauge=lambda name, value, tags: sent.update({f"{name} {tags['stage']}": value}))
        monkeypatch.setattr(night_gauges, "_stats", lambda: stats)
        name = night.execute()
        night.commit(0, 1)
        pod = an_ended_pod(POD, code=exits.DONE)
        server = container_status("server", "server:1", state=terminated(0, at=(pod.created_at + 3, pod.created_at + 90)))
        driver = container_status("driver", "driver:1", state=terminated(0, at=(pod.created_at + 43, pod.created_at + 80)))
        pod = replace(pod, containers={"initContainerStatuses": [server], "containerStatuses": [driver]})
        night.agent.says(name, "Completed", pods=[pod])
        night.agent.log(
            name, POD, "server", "INFO [core.py:386] init engine (profile, create kv cache, warmup model) took 12.50 s\n"
        )

        night.resume(name)

        starts = Starts.from_bytes(obstore.get(night.store, RUN.starts_path(name)).bytes().to_bytes())
        assert starts == Starts({POD: {"image": 3.0, "weights": 40.0, "driver": 37.0, "engine_warm_up": 12.5}})
        assert sent == {"nightshift.night.start_up_seconds image": 3.0, "nightshift.night.start_up_seconds weights": 40.0}

    @pytest.mark.parametrize("reason", ["EvictionByEvictionAPI", ""])
    def test_so_is_which_of_them_were_taken_away(self, night: Night, reason: str) -> None:
        name = night.execute()
        failed(night.agent, name, code=143 if reason else exits.RESUME, reason=reason)

        with contextlib.suppress(TaskDeferred, JobSetTaskError):
            night.resume(name)

        starts = Starts.from_bytes(obstore.get(night.store, RUN.starts_path(name)).bytes().to_bytes())
        assert starts.taken == ({POD} if reason else frozenset())

    def test_that_this_cannot_be_kept_fails_nothing(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nightshift.run.observed.pod_startup.create_or_read", lambda *_: 1 / 0)
        name = night.execute()
        night.commit(0, 1)
        pod = an_ended_pod(POD, code=exits.DONE)
        server = container_status("server", "server:1", state=terminated(0, at=(pod.created_at, pod.created_at)))
        night.agent.says(name, "Completed", pods=[replace(pod, containers={"initContainerStatuses": [server]})])

        assert night.resume(name) == {"jobset": name}

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

        with pytest.raises(JobSetApplicationFailure, match="not retryable"):
            night.resume(name)

    def test_a_jobset_that_completes_with_chunks_missing_is_no_success(self, night: Night) -> None:
        first = night.execute()
        night.commit(0)
        night.agent.says(first, "Completed")

        with pytest.raises(JobSetUnknown, match="1 of 2 chunks are missing"):
            night.resume(first)
        assert night.agent.names() == []

    def test_a_manifest_that_the_runtime_refuses_fails_the_task_at_once_in_its_words(self, night: Night) -> None:
        """No retry is spent on it, and when the person has fixed it the same generation is made again."""
        usual = night.runtime

        class Refusing(PromptRuntime):
            def submit(self, manifest: Mapping[str, Any]) -> str:
                raise RequestRefused("spec.failurePolicy: not supported")

        night.runtime = Refusing(night.folder)
        with pytest.raises(JobSetRefused, match=r"spec\.failurePolicy: not supported"):
            night.task().execute(night.context)
        assert night.agent.names() == []
        night.runtime = usual
        name = night.execute()
        assert name == night.task().jobset_name(1)

    def test_the_deadline_stops_the_jobset_and_fails_the_task_for_good(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Running")
        at = "2026-11-21T02:00:00+00:00"
        pods = (PodNow("a", 0, Stage.WEIGHTS, at), PodNow("b", 0, Stage.ENDED, at))
        save_now(night.store, RUN, JobSetNow(name, at, 1, pods=pods))

        with pytest.raises(JobSetDeadlineExceeded, match=r"deadline passed.*2 of 2 chunks are missing") as raised:
            night.resume(name, ending="deadline")
        assert night.agent.names() == []
        assert f"until then: 1 pod waiting for its engine since {at}. More time" in str(raised.value)
        assert "later deadline" not in str(raised.value), "an engine that never answers would use up that, too"

    def test_a_deadline_before_which_some_was_done_may_be_too_early(self, night: Night) -> None:
        name = night.execute()
        night.commit(0)
        night.agent.says(name, "Running")

        with pytest.raises(JobSetDeadlineExceeded, match="Set a later deadline, or use more or faster workers"):
            night.resume(name, ending="deadline")

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

        with pytest.raises(JobSetDeadlineExceeded, match=r"only because pods were taken away.*not tried again"):
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

        class Slow(FolderRuntime):
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

    def test_what_only_an_event_says_is_in_the_error(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(InferOperator, "relive", lambda *_: None)  # Nothing else is tried.
        name = night.execute()
        job = {"kind": "Job", "name": f"{name}-worker-0"}
        said = {"reason": "FailedCreate", "message": "exceeded quota: nights", "involvedObject": job}
        night.agent.says(name, "Running", events=[{**said, "lastTimestamp": "2026-11-20T02:00:00Z"}])

        with pytest.raises(JobSetTaskError, match="exceeded quota: nights"):
            night.resume(name, "starved")

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
        night.runtime = Mute(tmp_path)

        with pytest.raises(JobSetApplicationFailure):
            night.resume(name)

    def test_nor_how_long_a_start_took(self, night: Night, tmp_path: Path) -> None:
        name = night.execute()
        night.commit(0, 1)
        pod = an_ended_pod(POD, code=exits.DONE)
        server, driver = (
            container_status(each, "i", state=terminated(0, at=(at, at))) for each, at in (("server", 3), ("driver", 9))
        )
        pod = replace(pod, containers={"initContainerStatuses": [server], "containerStatuses": [driver]})
        night.agent.says(name, "Completed", pods=[pod])
        night.runtime = Mute(tmp_path)

        night.resume(name)

        kept = Starts.from_bytes(obstore.get(night.store, RUN.starts_path(name)).bytes().to_bytes())
        assert kept.pods[POD]["weights"] == 6.0

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


class Odd(PromptRuntime):
    """Its kubelets give a reason that no list has."""

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        seen = super().observe(name, closely=closely)
        return replace(seen, pods=tuple({**pod, "status": {**pod["status"], "reason": "MoonIsFull"}} for pod in seen.pods))


def test_a_kubelets_reason_that_is_not_known_is_warned_of(
    night: Night, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    name = night.execute()
    failed(night.agent, name, code=1)
    night.runtime = Odd(tmp_path)

    with pytest.raises(JobSetApplicationFailure):
        night.resume(name)
    assert "a reason that nightshift does not know, 'MoonIsFull'" in caplog.text + capsys.readouterr().out


class TestTwoJobSets:
    """Of one run: the second was added when the first got too few pods."""

    @pytest.fixture
    def names(self, night: Night) -> list[str]:
        night.trigger = partial(KubernetesJobSetTrigger, namespace="nights")
        memory = Memory(night.context["task_state_store"], night.task().work_id)
        memory.save(FleetState(deadline=time.time() + 600).with_all((FleetMember(1), FleetMember(2))))
        with pytest.raises(TaskDeferred):
            night.task().execute(night.context)
        return [jobset_name("job", "infer", WORK, generation) for generation in (1, 2)]

    def test_each_is_starved_by_its_own_number_of_pods(self, night: Night, names: list[str]) -> None:
        """Half of its workers, on as many hosts as its profile has."""
        spec = a_spec(compute__profile="gpu-l4-spot", compute__fallback=["gpu-l4-flex"])
        obstore.put(night.store, f"{RUN.prefix}/spec.json", a_record(spec))
        memory = Memory(night.context["task_state_store"], night.task().work_id)
        both = (FleetMember(1, "gpu-l4-spot", workers=100), FleetMember(2, "gpu-l4-flex", workers=3))
        memory.save(memory.load().with_all(both))

        with pytest.raises(TaskDeferred) as deferred:
            night.task().execute(night.context)

        followed = deferred.value.trigger.serialize()[1]["jobsets"]
        assert [(each["name"], each["min_running"]) for each in followed] == [(names[0], 50), (names[1], 2)]

    def test_the_end_of_one_leaves_the_other_at_work(self, night: Night, names: list[str]) -> None:
        assert night.agent.names() == sorted(names)
        failed(night.agent, names[0], code=1)

        assert night.resume_and_wait(names[0]) == names[1]
        assert night.agent.names() == [names[1]]

    def test_so_it_does_if_one_that_only_helps_is_there_too(self, night: Night, names: list[str]) -> None:
        """No third one is made for the work of the first: the second has all of it."""
        memory = Memory(night.context["task_state_store"], night.task().work_id)
        kept = memory.load()
        memory.save(kept.with_all((*kept.live, FleetMember(3, workers=1, helps=True))))
        with pytest.raises(TaskDeferred):
            night.task().execute(night.context)
        helper = jobset_name("job", "infer", WORK, 3)
        assert night.agent.names() == sorted([*names, helper])
        failed(night.agent, names[0], code=143, reason="EvictionByEvictionAPI")
        with pytest.raises(TaskDeferred):
            night.resume(names[0])

        assert night.agent.names() == sorted([names[1], helper])

    def test_the_one_that_is_given_up_goes(self, night: Night, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """What its cluster knew of its pods stays: fleets are given up because too many were taken away."""
        night.agent.says(names[0], "Running", pods=[an_ended_pod(POD, code=143, reason="EvictionByEvictionAPI")])
        monkeypatch.setattr(InferOperator, "relive", lambda _, kept, __: kept.without(kept.live[0]))

        assert night.resume_and_wait(names[0], "starved") == names[1]
        assert night.agent.names() == [names[1]]
        starts = Starts.from_bytes(obstore.get(night.store, RUN.starts_path(names[0])).bytes().to_bytes())
        assert starts.taken == {POD}

    def test_a_refusal_that_fails_the_task_leaves_neither(self, night: Night, names: list[str]) -> None:
        with pytest.raises(JobSetRefused):
            night.resume(names[0], "refused")

        assert night.agent.names() == []

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
            obstore.delete(night.store, WORK.chunk_path(chunk))
        night.clear()

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds, abs=60)

    def test_so_does_a_failure_for_good(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        failed(night.agent, name, code=1)
        with pytest.raises(AirflowFailException):
            night.resume(name)
        night.clear()

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds, abs=60)

    def test_a_failure_that_is_retried_does_not(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> None:
        name = night.execute()
        failed(night.agent, name, code=exits.RESUME)
        with pytest.raises(JobSetTaskError):
            night.resume(name)

        assert self.seconds_left(night, monkeypatch) == pytest.approx(a_spec().deadline_seconds - 3600, abs=60)

    def test_a_process_that_learns_of_the_end_after_another_one_has_the_same_deadline(self, night: Night) -> None:
        """As when two schedulers have the same task resumed."""
        name = night.execute()
        failed(night.agent, name, code=1)
        with pytest.raises(AirflowFailException):
            night.resume(name)

        with pytest.raises(TaskDeferred) as deferred:
            night.resume(name)

        deadline = deferred.value.trigger.serialize()[1]["deadline"]
        assert deadline - time.time() == pytest.approx(a_spec().deadline_seconds, abs=60)

    def seconds_left(self, night: Night, monkeypatch: pytest.MonkeyPatch) -> float:
        """To the deadline of an attempt that begins an hour later."""
        later = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: later)
        with pytest.raises(TaskDeferred) as deferred:
            night.task().execute(night.context)
        return float(deferred.value.trigger.serialize()[1]["deadline"] - later)


class TestEnginesThatCannotStart:
    def crashing(self, night: Night, name: str, *, exits_so_far: int) -> None:
        """What an agent says of an engine that has exited again and again, with the last lines of its log."""
        now = time.time()
        ended = terminated(1, message="Traceback\nOSError: x is not a valid model identifier", at=(now - 9, now - 1))
        server = container_status("server", "server:1", state=ended, restarts=exits_so_far - 1)
        waits = container_status("driver", "driver:1", state={"waiting": {"reason": "PodInitializing"}})
        containers = {"initContainerStatuses": [server], "containerStatuses": [waits]}
        pod = PodRecord(POD, 0, 1, now - 60, phase="Pending", bound=True, containers=containers)
        night.agent.says(name, "Running", pods=[pod])

    def test_end_the_night_with_their_own_words(self, night: Night) -> None:
        name = night.execute()
        self.crashing(night, name, exits_so_far=TRIES)
        event = fired(night, name, look=night.look())

        assert event["ending"] == "broken"
        with pytest.raises(JobSetApplicationFailure) as raised:
            night.task().execute_complete(night.context, event)

        words = "The engine cannot start: OSError: x is not a valid model identifier (exit code 1, 3 times"
        assert str(raised.value).startswith(words)
        assert "Correct model.uri or model.revision" in str(raised.value)
        assert night.agent.names() == [], "its pods are told to end"
        (now,) = load(night.store, RUN)
        assert (now.stage, now.pods[0].words and now.pods[0].words.exits) == (Stage.ENDED, TRIES)

    def test_one_that_has_become_ready_meanwhile_goes_on(self, night: Night) -> None:
        name = night.execute()
        self.crashing(night, name, exits_so_far=TRIES)
        event = fired(night, name, look=night.look())
        running = container_status("driver", "driver:1", state={"running": {"startedAt": moment(time.time())}}, started=True)
        containers = {"initContainerStatuses": [], "containerStatuses": [running]}
        pod = PodRecord(POD, 0, 1, time.time() - 60, phase="Running", bound=True, containers=containers)
        night.agent.says(name, "Running", pods=[pod])

        with pytest.raises(TaskDeferred) as deferred:
            night.task().execute_complete(night.context, event)
        assert waited_for(deferred.value) == name

    def test_one_that_may_still_start_is_waited_for(self, night: Night) -> None:
        name = night.execute()
        self.crashing(night, name, exits_so_far=TRIES - 1)

        with pytest.raises(TimeoutError):
            fired(night, name, look=night.look(), within_s=0.5)


class TestTooManyDeadLetters:
    """The task that computed them is the red one, not the seal after it."""

    def note(self, night: Night, dead: int) -> None:
        obstore.put(night.store, WORK.dead_note_path(0, dead), b"")

    @pytest.mark.parametrize("code", [exits.DONE, exits.CONFIG])
    def test_fail_infer_although_every_chunk_is_committed(self, night: Night, code: int) -> None:
        name = night.execute()
        night.commit(0, 1)
        self.note(night, 8)
        night.agent.says(name, "Failed" if code else "Completed", pods=[an_ended_pod(POD, code=code)])

        with pytest.raises(
            JobSetApplicationFailure, match=r"8 or more of 8 rows are dead letters; the job tolerates \d"
        ) as raised:
            night.resume(name)
        assert "raise the tolerance and trigger the DAG again" in str(raised.value)

    def test_fail_it_when_its_drivers_have_stopped_before_the_end(self, night: Night) -> None:
        name = night.execute()
        night.commit(0)
        self.note(night, 8)
        failed(night.agent, name, code=exits.CONFIG)

        said = "8 or more of 8 rows are dead letters, and 4 rows were not tried: there may be more; the job"
        with pytest.raises(JobSetApplicationFailure, match=said):
            night.resume(name)

    def test_the_counts_are_those_of_all_committed_rows(self, night: Night) -> None:
        """Notes are counted until there are too many; what is said is what the chunks have."""
        name = night.execute()
        obstore.put(night.store, WORK.chunk_path(0), a_chunk(RUN, PLAN, 0, dead=[0, 1, 3]))
        self.note(night, 2)
        failed(night.agent, name, code=exits.CONFIG)

        said = (
            r"^3 of 8 rows are dead letters \(3 rejected\), and 4 rows were not tried: .* rejected: correct what the engine's"
        )
        with pytest.raises(JobSetApplicationFailure, match=said):
            night.resume(name)

    def test_fail_it_when_it_finds_nothing_left_to_compute(self, night: Night) -> None:
        night.commit(0, 1)
        self.note(night, 8)

        with pytest.raises(AirflowFailException, match="8 or more of 8 rows are dead letters"):
            night.task().execute(night.context)

    def test_another_failure_is_not_theirs(self, night: Night) -> None:
        name = night.execute()
        night.commit(0)
        self.note(night, 8)
        failed(night.agent, name, code=1)

        with pytest.raises(JobSetApplicationFailure, match="exit code 1"):
            night.resume(name)

    def test_what_its_pods_did_does_not_matter_if_the_work_is_done(
        self, night: Night, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = night.execute()
        night.commit(0, 1)
        failed(night.agent, name, code=1)

        assert night.resume(name) == {"jobset": name}
        said = capsys.readouterr().out
        assert "so it does not matter how its pods ended" in said
        assert "jobset failed" not in said, "no evidence of a failure below a success"
