"""The task infer: whatever is killed and repeated, there is one JobSet at a time, and the ledger says what is done."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from nightshift import exits
from nightshift.jobset.fleet import pause
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, RUN_URL_ANNOTATION, WORK_ANNOTATION
from nightshift.jobset.observation import Observation
from nightshift.operators.infer import jobset_name
from nightshift.operators.jobset_errors import (
    JobSetRefused,
    JobSetTaskError,
    JobSetUnavailable,
)
from nightshift.run import pauses
from nightshift.run.names import RunRef, canonical_json
from nightshift.settings import Settings
from tests.builders import RUN, WORK, a_manifest, a_plan, a_record, a_spec
from tests.folder_cluster import FolderRuntime
from tests.jobsets import BUCKET
from tests.unit.operators.infer_night import Night, PromptRuntime, RudeRuntime, a_context, failed

pytestmark = pytest.mark.unit


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

    @pytest.mark.parametrize(("image", "warned"), [(Settings.driver_image, False), ("nightshift/driver:0.0.9", True)])
    def test_one_of_another_manifest_is_waited_for_and_the_log_says_so(
        self, night: Night, image: str, warned: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = night.execute()
        night.settings = replace(night.settings, driver_image=image)

        assert night.execute() == first
        assert ("from a different manifest" in caplog.text + capsys.readouterr().out) == warned

    @pytest.mark.parametrize("pinned", [True, False])
    def test_a_pinned_engine_stays_the_same_whatever_is_set_since(
        self, night: Night, pinned: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pins = {"server_image": "vllm:1"} if pinned else {}
        obstore.put(night.store, f"{RUN.prefix}/spec.json", a_record(a_spec(), pinned=pins))
        first = night.execute()
        night.settings = replace(night.settings, cpu_server_image="vllm:2")

        assert night.execute() == first
        assert ("from a different manifest" in caplog.text + capsys.readouterr().out) != pinned

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

    def test_a_jobset_that_still_drains_is_waited_for_and_then_made_again(self, night: Night, tmp_path: Path) -> None:
        name = night.execute()
        slow = FolderRuntime(tmp_path)
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

    def test_a_sealed_run_whose_chunks_are_gone_is_not_computed_again(self, night: Night) -> None:
        night.commit(0)
        obstore.put(night.store, f"{RUN.prefix}/manifest.json", canonical_json(a_manifest().to_json()))

        with pytest.raises(AirflowFailException, match=r"1 of 2 chunks of .* were deleted after the run was sealed"):
            night.task().execute(night.context)
        assert night.agent.names() == []

    def test_the_run_has_no_rows(self, night: Night) -> None:
        obstore.put(night.store, f"{RUN.prefix}/plan.json", canonical_json(a_plan(rows=0).to_json()))

        assert night.task().execute(night.context) == {"jobset": None}

    def test_a_run_without_a_plan_sends_a_person_to_extract(self, night: Night) -> None:
        obstore.delete(night.store, f"{RUN.prefix}/plan.json")

        with pytest.raises(AirflowFailException, match="Repeat the task 'extract'"):
            night.task().execute(night.context)


class TestNames:
    def test_leave_room_for_the_names_of_pods(self) -> None:
        long = RunRef("a" * 29 + "-" + "b" * 10, "2026-11-20", "0" * 16)

        name = jobset_name("dag", "infer", long.work(""), 1)

        assert name.startswith("a" * 29 + "-")
        assert "--" not in name
        assert len(f"{name}-worker-0-9999-abcde") <= 63

    def test_differ_by_what_makes_the_work_another(self) -> None:
        names = {
            jobset_name("dag", "infer", WORK, 1),
            jobset_name("dag", "infer", WORK, 2),
            jobset_name("other", "infer", WORK, 1),
            jobset_name("dag", "help", WORK, 1),
            jobset_name("dag", "infer", RunRef(RUN.job, RUN.partition, RUN.digest, 2).work(WORK.plan_uid), 1),
            jobset_name("dag", "infer", RUN.work("0" * 16), 1),
        }

        assert len(names) == 6


class TestPaused:
    """A person has paused the run."""

    def suspended(self, night: Night, name: str) -> bool:
        jobset = night.runtime.observe(name).jobset
        assert jobset is not None
        return bool(jobset["spec"].get("suspend"))

    def test_its_jobset_is_created_suspended_and_goes_on_when_it_is_resumed(self, night: Night) -> None:
        pauses.request_pause(night.store, RUN, paused=True, by="ada")
        name = night.execute()
        assert self.suspended(night, name)
        assert "paused by ada" in night.runtime.observe(name).jobset["metadata"]["annotations"]["nightshift.dev/paused"]  # type: ignore[index]
        assert night.execute() == name, "a repeat adopts it, and leaves it paused"
        assert self.suspended(night, name)

        request = pauses.request_pause(night.store, RUN, paused=False, by="ada")
        assert pause.apply(night.runtime, RUN.url(night.settings.bucket), request) == [name]

        assert not self.suspended(night, name)
        assert not (night.folder / "jobsets" / name / "paused").exists()

    def test_a_jobset_that_is_there_follows_when_the_task_looks(self, night: Night) -> None:
        name = night.execute()
        assert not self.suspended(night, name)
        pauses.request_pause(night.store, RUN, paused=True, by="ada")

        assert night.execute() == name
        assert self.suspended(night, name)
        pauses.request_pause(night.store, RUN, paused=False, by="ada")
        assert night.execute() == name
        assert not self.suspended(night, name)


class TestInputs:
    @pytest.mark.parametrize("change", ["deleted", "truncated"])
    def test_rows_that_are_gone_start_no_accelerator(self, night: Night, change: str) -> None:
        path = f"{RUN.prefix}/{night.task().plan.files[0].path}"
        if change == "deleted":
            obstore.delete(night.store, path)
        else:
            obstore.put(night.store, path, b"")

        with pytest.raises(AirflowFailException, match=r"1 of 1 input file of .* so the 2 missing chunks cannot be computed"):
            night.task().execute(night.context)
        assert night.agent.names() == []

    def test_they_are_not_needed_when_every_chunk_is_committed(self, night: Night) -> None:
        """The seal compares them."""
        night.commit(0, 1)
        obstore.delete(night.store, f"{RUN.prefix}/{night.task().plan.files[0].path}")

        assert night.task().execute(night.context) == {"jobset": None}
