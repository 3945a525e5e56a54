"""Two Airflows whose tasks run JobSets in one namespace, with the same ids: scheduled runs have the same ids everywhere."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
from nightshift.jobset.identity import digest_name
from nightshift.jobset.labels import WORK_ANNOTATION
from nightshift.operators.jobset import JobSetRefused, KubernetesJobSetOperator
from nightshift.operators.kubernetes_engine import GKEStartJobSetOperator
from tests.jobsets import Agent, a_manifest
from tests.kept_state import KeptState
from tests.unit.operators.infer_night import PromptRuntime, an_event, waited_for

pytestmark = pytest.mark.unit

GKE: dict[str, Any] = {"project_id": "acme", "location": "europe-west4", "cluster_name": "gpu"}


class Airflow:
    """One task instance of it: each call is what a new process would do. cluster: the namespace, which others share."""

    def __init__(self, cluster: Path, kind: type[KubernetesJobSetOperator], bucket: str = "prod") -> None:
        self.state = KeptState()
        self.ti = SimpleNamespace(
            id=uuid.uuid4().hex, dag_id="nightly", task_id="train", run_id="scheduled__2026-11-28", map_index=-1, max_tries=2
        )
        self._cluster, self._kind, self._bucket = cluster, kind, bucket

    def operator(self) -> KubernetesJobSetOperator:
        manifest = a_manifest("train")
        manifest["spec"]["ttlSecondsAfterFinished"] = 60 if self._bucket == "dev" else 3600
        with DAG("nightly", schedule=None):
            operator = self._kind(task_id="train", jobset=manifest, **(GKE if self._kind is GKEStartJobSetOperator else {}))
        operator.__dict__.update(runtime=PromptRuntime(self._cluster), cluster_info=("https://gke.example", "YQ=="))
        return operator

    @property
    def context(self) -> Any:
        ti = SimpleNamespace(**vars(self.ti), xcom_push=lambda **_: None)
        return {"ti": ti, "task_state_store": self.state}

    def execute(self) -> str:
        """The name of the JobSet for which it waits."""
        with pytest.raises(TaskDeferred) as deferred:
            self.operator().execute(self.context)
        return waited_for(deferred.value)

    def resume(self, name: str) -> Any:
        return self.operator().execute_complete(self.context, an_event(name, "finished"))


@pytest.fixture(params=[KubernetesJobSetOperator, GKEStartJobSetOperator])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_each_has_a_jobset_of_its_own(tmp_path: Path, kind: Any) -> None:
    development, production = Airflow(tmp_path, kind, "dev"), Airflow(tmp_path, kind)
    theirs, ours = development.execute(), production.execute()

    assert theirs != ours
    assert Agent(tmp_path).names() == sorted([theirs, ours])


def test_so_it_has_if_both_ask_for_the_same(tmp_path: Path, kind: Any) -> None:
    assert Airflow(tmp_path, kind).execute() != Airflow(tmp_path, kind).execute()


def test_the_end_of_one_is_not_the_end_of_the_other(tmp_path: Path, kind: Any) -> None:
    development, production = Airflow(tmp_path, kind), Airflow(tmp_path, kind)
    theirs, ours = development.execute(), production.execute()
    Agent(tmp_path).says(theirs, "Completed")

    assert development.resume(theirs)["name"] == theirs
    assert Agent(tmp_path).names() == [ours]


def test_retries_clears_and_other_processes_find_their_own_again(tmp_path: Path, kind: Any) -> None:
    both = [Airflow(tmp_path, kind, bucket) for bucket in ("dev", "prod")]
    names = [each.execute() for each in both]
    for number, each in enumerate(both):
        each.ti.id = f"retry-{number}"
        assert each.execute() == names[number]
        each.ti.id, each.ti.max_tries = f"clear-{number}", 5
        assert each.execute() == names[number]
    assert Agent(tmp_path).names() == sorted(names)


def test_two_processes_of_its_first_attempt_share_it(tmp_path: Path, kind: Any) -> None:
    """As when two schedulers have it executed at once: neither sees what the other has written."""
    one, other = Airflow(tmp_path, kind), Airflow(tmp_path, kind)
    other.ti.id = one.ti.id

    assert other.execute() == one.execute()
    assert len(Agent(tmp_path).names()) == 1


def test_what_release_0_2_0_has_in_hand_is_found_under_its_old_name(tmp_path: Path, kind: Any) -> None:
    airflow = Airflow(tmp_path, kind)
    work = "airflow:nightly/train/scheduled__2026-11-28/-1"
    Memory(airflow.state, work).save(FleetState(deadline=4e9, start=2).with_all((FleetMember(1),)))
    # What it did not know.
    for key in [key for key in airflow.state if key.endswith(":identity")]:
        del airflow.state[key]
    name = digest_name("train", work, 1)
    agent = Agent(tmp_path)
    agent.create(name)
    agent.says(name, "Running", annotations={WORK_ANNOTATION: work})

    assert airflow.execute() == name
    assert agent.names() == [name]


def test_a_jobset_of_another_chain_of_attempts_is_refused(tmp_path: Path, kind: Any) -> None:
    airflow = Airflow(tmp_path, kind)
    name = airflow.execute()
    agent = Agent(tmp_path)
    agent.remove(name)
    agent.create(name)
    agent.says(name, "Running", annotations={WORK_ANNOTATION: "airflow:nightly/train/scheduled__2026-11-28/-1/01234567"})

    with pytest.raises(JobSetRefused, match="works on airflow:nightly/train/scheduled__2026-11-28/-1/01234567, not on airflow"):
        airflow.operator().execute(airflow.context)
