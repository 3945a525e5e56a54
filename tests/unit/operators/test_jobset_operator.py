"""The task infer: whatever is killed and repeated, there is one JobSet at a time, and the ledger says what is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from obstore.store import MemoryStore, ObjectStore

from nightshift import exits
from nightshift.jobset.local import LocalRuntime
from nightshift.jobset.runtime import ContainerStatus, PodStatus, RuntimeUnavailable
from nightshift.ledger import save_plan
from nightshift.operators.jobset import JobSetFailed, JobSetHopeless, KubernetesJobSetOperator, jobset_name
from nightshift.run import RunRef, canonical_json
from nightshift.settings import Settings
from tests.builders import RUN, a_chunk, a_plan, a_spec
from tests.jobsets import BUCKET, Agent

pytestmark = pytest.mark.unit

PLAN = a_plan(rows=8, chunk_rows=4)
POD = "pod-0"


class KeptState(dict[str, Any]):
    """Airflow's task state store, as far as the operator uses it: it lives longer than an attempt."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


class RudeRuntime(LocalRuntime):
    """Takes the JobSet and then loses its reply, once."""

    lost = False

    def submit(self, manifest: dict[str, Any]) -> None:
        super().submit(manifest)
        if not self.lost:
            self.lost = True
            raise RuntimeUnavailable("the reply was lost")


class Night:
    """One run, whose task `infer` is executed again and again, each time by a new process."""

    def __init__(self, folder: Path) -> None:
        self.agent = Agent(folder)
        self.store: ObjectStore = MemoryStore()
        self.runtime = LocalRuntime(folder)
        self.context: Any = {"task_state_store": KeptState()}
        obstore.put(self.store, f"{RUN.prefix}/spec.json", canonical_json({"spec": a_spec().model_dump(mode="json")}))
        save_plan(self.store, RUN, PLAN)

    def task(self) -> KubernetesJobSetOperator:
        with DAG("job", schedule=None):
            operator = KubernetesJobSetOperator(task_id="infer", run_prefix=RUN.prefix, terms="")
        operator.__dict__.update(settings=Settings(bucket=BUCKET, project="acme"), store=self.store, runtime=self.runtime)
        return operator

    def execute(self) -> str:
        """The name of the JobSet for which the task waits."""
        with pytest.raises(TaskDeferred) as deferred:
            self.task().execute(self.context)
        assert deferred.value.method_name == "execute_complete"
        name: str = deferred.value.trigger.serialize()[1]["name"]
        return name

    def resume(self, name: str, ending: str = "finished") -> dict[str, Any]:
        return self.task().execute_complete(self.context, {"version": 1, "name": name, "ending": ending})

    def commit(self, *chunks: int) -> None:
        for chunk in chunks:
            obstore.put(self.store, f"{RUN.prefix}/ledger/chunk-{chunk:08d}.parquet", a_chunk(RUN, PLAN, chunk))


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


def a_pod(phase: Any, *, code: int, reason: str = "") -> PodStatus:
    return PodStatus(POD, 0, 1, phase, reason, (ContainerStatus("driver", exit_code=code),))


class TestRepeats:
    def test_a_repeat_waits_for_the_jobset_that_is_there(self, night: Night) -> None:
        first = night.execute()

        assert night.execute() == first
        assert night.agent.names() == [first]

    def test_a_lost_reply_to_the_submission_does_not_make_a_second_jobset(self, night: Night, tmp_path: Path) -> None:
        night.runtime = RudeRuntime(tmp_path)
        with pytest.raises(JobSetFailed, match="the reply was lost"):
            night.task().execute(night.context)

        assert night.agent.names() == [night.execute()]

    def test_another_dag_run_of_the_same_run_waits_for_the_same_jobset(self, night: Night) -> None:
        first = night.execute()
        night.context = {"task_state_store": KeptState()}

        assert night.execute() == first

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
        night.agent.says(name, "Running", run_url="gs://runs/other/2026-11-20/0000000000000000")

        with pytest.raises(JobSetHopeless, match="Find out whose it is"):
            night.task().execute(night.context)
        assert not night.agent.was_asked_to_stop(name)


class TestNothingToDo:
    def test_all_chunks_are_there(self, night: Night) -> None:
        night.commit(0, 1)

        assert night.task().execute(night.context) == {"jobset": None}
        assert night.agent.names() == []

    def test_all_chunks_are_there_and_so_is_the_jobset(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Failed", pods=(a_pod("Failed", code=1),))
        night.commit(0, 1)

        assert night.task().execute(night.context) == {"jobset": None}
        assert night.agent.was_asked_to_stop(name)

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
        night.agent.says(name, "Completed", pods=(a_pod("Succeeded", code=exits.DONE),))

        assert night.resume(name) == {"jobset": name}
        assert night.agent.was_asked_to_stop(name)

    @pytest.mark.parametrize(
        "end",
        [
            lambda agent, name: agent.says(name, "Failed", pods=(a_pod("Failed", code=1),)),
            lambda agent, name: agent.says(name, "Failed", pods=(a_pod("Failed", code=143, reason="EvictionByEvictionAPI"),)),
            lambda agent, name: agent.says(name, "Completed"),
        ],
        ids=["failed", "preempted", "incomplete"],
    )
    def test_an_end_with_chunks_missing_is_worth_another_jobset(self, night: Night, end: Callable[[Agent, str], None]) -> None:
        first = night.execute()
        night.commit(0)
        end(night.agent, first)

        with pytest.raises(JobSetFailed, match="1 of 2 chunks are missing"):
            night.resume(first)
        assert night.agent.was_asked_to_stop(first)
        second = night.execute()
        assert second != first
        assert night.agent.names() == sorted([first, second])

    def test_a_hopeless_driver_fails_the_task_for_good(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Failed", pods=(a_pod("Failed", code=exits.CONFIG),))

        with pytest.raises(JobSetHopeless, match="trying again cannot help"):
            night.resume(name)

    def test_the_deadline_stops_the_jobset_and_fails_the_task_for_good(self, night: Night) -> None:
        name = night.execute()
        night.agent.says(name, "Running")

        with pytest.raises(JobSetHopeless, match="deadline passed and 2 of 2 chunks are missing"):
            night.resume(name, ending="deadline")
        assert night.agent.was_asked_to_stop(name)

    def test_a_jobset_deleted_from_outside_is_submitted_again(self, night: Night) -> None:
        name = night.execute()
        night.agent.remove(name)

        with pytest.raises(JobSetFailed, match="deleted from outside"):
            night.resume(name, ending="lost")
        assert night.execute() == name
        assert night.agent.names() == [name]

    def test_a_finished_jobset_that_nobody_judged_is_judged_and_followed(self, night: Night) -> None:
        first = night.execute()
        night.agent.says(first, "Failed", pods=(a_pod("Failed", code=1),))

        second = night.execute()

        assert second != first
        assert night.agent.was_asked_to_stop(first)

    def test_the_last_words_of_failed_pods_are_in_the_tasks_log(
        self, night: Night, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        name = night.execute()
        night.agent.says(name, "Failed", pods=(a_pod("Failed", code=1),))
        night.agent.log(name, POD, "driver", "\n".join(f"line {number}" for number in range(100)))

        with pytest.raises(JobSetFailed):
            night.resume(name)

        told = caplog.text + capsys.readouterr().out
        assert "line 99" in told
        assert "line 60" in told
        assert "line 59" not in told


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
