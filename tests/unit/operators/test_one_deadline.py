"""One deadline for all attempts of a task that runs JobSets: retries, resumed processes and helping JobSets included."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from nightshift import exits
from nightshift.jobset.kubernetes.follow import Followed, WaitEnd
from nightshift.jobset.runtime import RuntimeUnavailable
from nightshift.operators.jobset import JobSetDeadlineExceeded, JobSetTaskError, KubernetesJobSetOperator
from nightshift.operators.kubernetes_engine import GKEStartJobSetOperator
from nightshift.triggers.jobset import jobset_event
from tests.builders import a_spec
from tests.jobsets import a_manifest
from tests.unit.operators.infer_night import Night, PromptRuntime, failed
from tests.unit.operators.test_infer_deadline import NOTHING

pytestmark = pytest.mark.unit

RETRIES = 6
DEADLINE_S = float(a_spec().deadline_seconds)
SEEDS = range(40)


class Clock:
    """Time that passes only when it is told to, and in pauses."""

    def __init__(self) -> None:
        self.now = time.time()

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Counted(PromptRuntime):
    """Notes when each JobSet was created."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder)
        self._clock = clock
        self.created: list[float] = []
        self.away = False

    def submit(self, manifest: Mapping[str, Any]) -> str:
        if self.away:
            raise RuntimeUnavailable("nobody answers")
        self.created.append(self._clock.now)
        return super().submit(manifest)


def infer(night: Night) -> Any:
    return night.task(retries=RETRIES)


def jobset(night: Night, kind: type[KubernetesJobSetOperator] = KubernetesJobSetOperator, **parameters: Any) -> Any:
    """An operator for other people's JobSets, on the night's runtime."""
    with DAG("job", schedule=None):
        operator = kind(
            task_id="infer", jobset=a_manifest("train"), deadline=timedelta(seconds=DEADLINE_S), retries=RETRIES, **parameters
        )
    operator.__dict__.update(runtime=night.runtime, cluster_info=("https://gke.example", "YQ=="))
    return operator


def gke(night: Night) -> Any:
    return jobset(night, GKEStartJobSetOperator, project_id="acme", location="europe-west4", cluster_name="gpu")


KINDS = [infer, jobset, gke]


@dataclass
class Airflow:
    """As much of it as decides whether a task is tried again: after all exceptions but one, while tries are left."""

    night: Night
    clock: Clock
    make: Callable[[Night], Any]
    retry_delay_s: float = 300.0
    ended: BaseException | None = None
    tries: int = 0
    began: list[float] = field(default_factory=list)

    def run(self, live: Callable[[Airflow, Any], Any]) -> None:
        """live: one attempt after it has been deferred, until it ends; it may raise."""
        ti = self.night.context["ti"]
        while self.ended is None:
            self.tries += 1
            self.began.append(self.clock.now)
            try:
                live(self, self._execute())
            except AirflowFailException as error:
                self.ended = error
            except Exception as error:
                if self.tries > ti.max_tries:
                    self.ended = error
                self.clock.pass_(self.retry_delay_s)

    def _execute(self) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as deferred:
            self.make(self.night).execute(self.night.context)
        return deferred.value

    def resume(self, name: str, ending: WaitEnd, **more: Any) -> TaskDeferred:
        event = {**jobset_event({"name": name, "uid": ""}, Followed(ending), {}), **more}
        with pytest.raises(TaskDeferred) as deferred:
            self.make(self.night).execute_complete(self.night.context, event)
        return deferred.value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.pass_)
    return clock


@pytest.fixture
def runtime(night: Night, clock: Clock, tmp_path: Path) -> Counted:
    night.runtime = Counted(tmp_path, clock)
    ti = night.context["ti"]
    vars(ti).update(max_tries=RETRIES, dag_id="job", task_id="infer", run_id="r", map_index=-1, xcom_push=lambda **_: None)
    return night.runtime


def waited(deferred: TaskDeferred) -> tuple[list[str], float]:
    """The names of the JobSets, and the deadline."""
    kwargs = deferred.trigger.serialize()[1]
    return [each["name"] for each in kwargs["jobsets"]], kwargs["deadline"]


def ends_with_work_left(seconds: float) -> Callable[[Airflow, TaskDeferred], None]:
    """A JobSet that ends after so long because its program was told to: it is worth a retry."""

    def live(airflow: Airflow, deferred: TaskDeferred) -> None:
        names, deadline = waited(deferred)
        airflow.clock.now = min(airflow.clock.now + seconds, deadline)
        failed(airflow.night.agent, names[0], code=exits.RESUME)
        airflow.resume(names[0], "deadline" if airflow.clock.now == deadline else "finished")

    return live


@pytest.mark.parametrize("make", KINDS)
class TestRetries:
    def test_six_around_the_deadline_end_once_at_it(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        """The first attempt ends a minute before the deadline, and Airflow tries again after it."""
        airflow = Airflow(night, clock, make)
        end = clock.now + DEADLINE_S

        airflow.run(ends_with_work_left(DEADLINE_S - 60))

        assert isinstance(airflow.ended, JobSetDeadlineExceeded)
        assert "clear it" in str(airflow.ended)
        assert (airflow.tries, len(runtime.created)) == (2, 1)
        assert clock.now == end - 60 + airflow.retry_delay_s
        assert night.agent.names() == []

    def test_what_is_worth_a_retry_is_not_at_the_deadline(
        self, night: Night, clock: Clock, runtime: Counted, make: Any
    ) -> None:
        airflow = Airflow(night, clock, make)
        end = clock.now + DEADLINE_S

        airflow.run(ends_with_work_left(DEADLINE_S + 60))

        assert isinstance(airflow.ended, JobSetDeadlineExceeded)
        assert (airflow.tries, len(runtime.created), clock.now) == (1, 1, end)

    def test_they_share_it(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        airflow = Airflow(night, clock, make, retry_delay_s=60)
        end = clock.now + DEADLINE_S

        airflow.run(ends_with_work_left(DEADLINE_S / 4))

        assert isinstance(airflow.ended, JobSetDeadlineExceeded)
        assert clock.now == end
        assert (airflow.tries, len(runtime.created)) == (4, 4)

    def test_without_any_deadline_passed_all_of_them_are_used(
        self, night: Night, clock: Clock, runtime: Counted, make: Any
    ) -> None:
        airflow = Airflow(night, clock, make, retry_delay_s=60)

        airflow.run(ends_with_work_left(60))

        assert not isinstance(airflow.ended, AirflowFailException)
        assert isinstance(airflow.ended, JobSetTaskError)
        assert airflow.tries == RETRIES + 1

    def test_a_clear_gives_the_task_its_whole_time_again(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        airflow = Airflow(night, clock, make)
        airflow.run(ends_with_work_left(DEADLINE_S - 60))
        night.clear()

        assert waited(airflow._execute())[1] == clock.now + DEADLINE_S

    def test_so_does_one_before_the_deadline(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        airflow = Airflow(night, clock, make)
        airflow._execute()
        clock.pass_(DEADLINE_S / 2)
        night.clear()

        assert waited(airflow._execute())[1] == clock.now + DEADLINE_S

    def test_a_process_that_dies_changes_nothing(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        """Nor does one that another scheduler, or triggerer, starts again: it waits for what is there."""
        airflow = Airflow(night, clock, make)
        names, end = waited(airflow._execute())
        clock.pass_(DEADLINE_S + 3600)
        night.agent.says(names[0], "Running")

        assert waited(airflow._execute()) == (names, end)
        with pytest.raises(JobSetDeadlineExceeded):
            make(night).execute_complete(night.context, jobset_event({"name": names[0], "uid": ""}, Followed("deadline"), {}))
        assert night.agent.names() == []

    def test_one_that_an_outage_kept_from_the_end_says_so(
        self, night: Night, clock: Clock, runtime: Counted, make: Any
    ) -> None:
        """It has created nothing, and what was not created by the deadline never is."""
        runtime.away = True
        with pytest.raises(JobSetTaskError):
            make(night).execute(night.context)
        runtime.away = False
        clock.pass_(DEADLINE_S)

        with pytest.raises(JobSetDeadlineExceeded, match=r"passed at 20\d\d-\d\d-\d\d \d\d:\d\d UTC"):
            make(night).execute(night.context)
        assert runtime.created == []

    def test_a_process_that_hears_of_the_end_once_more_after_the_deadline_makes_nothing(
        self, night: Night, clock: Clock, runtime: Counted, make: Any
    ) -> None:
        """As when two schedulers resume one task, and the first of them has failed it for good."""
        airflow = Airflow(night, clock, make)
        names, end = waited(airflow._execute())
        clock.now = end
        event = jobset_event({"name": names[0], "uid": ""}, Followed("deadline"), {})
        for _ in range(2):
            with pytest.raises(JobSetDeadlineExceeded):
                make(night).execute_complete(night.context, event)

        assert (len(runtime.created), night.agent.names()) == (1, [])


def any_life(random_: random.Random, help_: bool) -> Callable[[Airflow, TaskDeferred], None]:
    """Everything that may happen to attempts, drawn: ends of all kinds, processes that die, helping JobSets."""

    def live(airflow: Airflow, deferred: TaskDeferred) -> None:
        while True:
            names, deadline = waited(deferred)
            airflow.clock.pass_(random_.expovariate(8 / DEADLINE_S))
            name = random_.choice(names)
            for each in names:
                airflow.night.agent.says(each, "Running")
            if airflow.clock.now >= deadline:
                # The trigger may come late, and find that the JobSet has ended after all.
                if random_.random() < 0.5:
                    failed(airflow.night.agent, name, code=random_.choice([exits.RESUME, 143]), reason="")
                deferred = airflow.resume(name, random_.choice(["deadline", "finished"]))
                continue
            what = random_.choice(["resume", "evicted", "deleted", "dies", *(["helps"] * 3 if help_ else [])])
            if what == "dies":
                raise ConnectionError("the worker's machine went away")
            if what == "helps":
                look = {**NOTHING, "workers": 1, "profile": "cpu", "late": True}
                # Decided in time, and heard of late.
                airflow.clock.pass_(random_.choice([0, 0, DEADLINE_S / 4]))
                deferred = airflow.resume(name, "look", look=look, before={})
                continue
            if what == "deleted":
                airflow.night.agent.remove(name)
            else:
                evicted = what == "evicted"
                failed(
                    airflow.night.agent,
                    name,
                    code=143 if evicted else exits.RESUME,
                    reason="EvictionByEvictionAPI" if evicted else "",
                )
            deferred = airflow.resume(name, "lost" if what == "deleted" else "finished")

    return live


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [infer, jobset])
def test_whatever_happens_nothing_begins_after_the_deadline(
    night: Night, clock: Clock, runtime: Counted, make: Any, seed: int
) -> None:
    random_ = random.Random(seed)
    airflow = Airflow(night, clock, make, retry_delay_s=random_.choice([0, 60, DEADLINE_S / 3]))
    end = clock.now + DEADLINE_S

    airflow.run(any_life(random_, help_=make is infer))

    assert airflow.ended is not None
    assert [at for at in runtime.created if at > end] == []
    late = [at for at in airflow.began if at >= end]
    assert len(late) <= 2, "one attempt may die at it, and the next one ends the task"
    if late:
        assert isinstance(airflow.ended, AirflowFailException)
        assert night.agent.names() == []


class TestExecutionTimeout:
    """Airflow does not look at it while a task is deferred."""

    @pytest.mark.parametrize("make", [jobset, gke])
    def test_a_shorter_one_is_the_deadline(self, night: Night, clock: Clock, runtime: Counted, make: Any) -> None:
        def timed(night: Night) -> Any:
            operator = make(night)
            operator.execution_timeout = timedelta(minutes=2)
            return operator

        airflow = Airflow(night, clock, timed)
        _, deadline = waited(airflow._execute())

        assert deadline == clock.now + 120
        job = timed(night)._with_backstop({"name": "worker", "template": {"spec": {}}})
        assert job["template"]["spec"]["activeDeadlineSeconds"] == 120

    @pytest.mark.parametrize("timeout", [None, timedelta(0), timedelta(days=2)], ids=str)
    def test_a_longer_one_changes_nothing(
        self, night: Night, clock: Clock, runtime: Counted, timeout: timedelta | None
    ) -> None:
        operator = jobset(night, execution_timeout=timeout)

        assert operator.seconds() == DEADLINE_S

    def test_it_is_for_all_attempts(self, night: Night, clock: Clock, runtime: Counted) -> None:
        airflow = Airflow(night, clock, lambda night: jobset(night, execution_timeout=timedelta(minutes=10)), retry_delay_s=60)

        airflow.run(ends_with_work_left(240))

        assert isinstance(airflow.ended, JobSetDeadlineExceeded)
        assert (airflow.tries, len(runtime.created)) == (3, 2)

    @pytest.mark.parametrize("deadline", [timedelta(0), timedelta(seconds=-1)])
    def test_no_time_at_all_is_refused_when_the_dag_is_parsed(self, deadline: timedelta) -> None:
        with DAG("job", schedule=None), pytest.raises(ValueError, match=r"Write the time .* timedelta\(hours=6\)"):
            KubernetesJobSetOperator(task_id="run", jobset=a_manifest("train"), deadline=deadline)

    def test_a_part_of_a_second_is_a_second_to_the_cluster(self, night: Night, runtime: Counted) -> None:
        """Kubernetes refuses 0."""
        operator = jobset(night, execution_timeout=timedelta(milliseconds=200))

        assert operator._with_backstop({})["template"]["spec"]["activeDeadlineSeconds"] == 1
