"""The task plan against the warehouse: a late source, one that has changed, and a partition that another run has."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from nightshift.hooks import warehouse as hook
from nightshift.operators.plan import PlanOperator
from nightshift.operators.publish import PublishOperator
from nightshift.planner.decisions import load_decision
from nightshift.planner.speed import Basis
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef
from nightshift.run.plan import load_plan
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, TEXTS, Night
from tests.unit.model_configs import MINILM

pytestmark = pytest.mark.integration

LATE = "2026-11-21"


class Planner:
    """Executes the task plan; `log` is what it said, `warnings` those of it, `task` the one that was executed last."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self.log = ""
        self.warnings: list[str] = []
        self.task: PlanOperator

    def plan(self, day: str, *, dag_run: str = "manual", **params: Any) -> RunRef:
        return RunRef.from_prefix(self.told(day, dag_run=dag_run, **params)["run_prefix"])

    def told(self, day: str, *, dag_run: str = "manual", run_type: str = "manual", **params: Any) -> dict[str, Any]:
        """What the task tells the later ones."""
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec=self._night.spec.model_dump(mode="json"))
        lines: list[str] = []
        self.task, self.warnings = task, []

        def warn(text: str, *args: Any) -> None:
            lines.append(text % args)
            self.warnings.append(text % args)

        said = SimpleNamespace(info=lambda text, *args: lines.append(text % args), warning=warn)
        task.__dict__.update(settings=self._night.settings, store=self._night.store, _cached_logger=said)
        began = SimpleNamespace(run_id=dag_run, run_type=run_type, start_date=datetime.now(UTC))
        context: Any = {"params": {"partition": day, **params}, "dag_run": began}
        found = task.execute(context)
        self.log = " ".join(lines)
        assert found["spec"] == self._night.spec.model_dump(mode="json")
        return found

    def extract(self, run: RunRef) -> int:
        return self._night.extract(run).rows

    def publish(self, told: dict[str, Any]) -> dict[str, Any]:
        """Seals what was computed, if that was not done, and executes the task publish."""
        run = RunRef.from_prefix(told["run_prefix"])
        if load_manifest(self._night.store, run) is None:
            self._night.seal(run, list(TEXTS), bias=float(run.generation))
        with DAG("job", schedule=None):
            task = PublishOperator(
                task_id="publish", run_prefix=run.prefix, terms=json.dumps(told["spec"]), asked_at=told["asked_at"]
            )
        task.__dict__.update(settings=self._night.settings, store=self._night.store, warehouse=self._night.warehouse)
        context: Any = {"outlet_events": {}, "dag_run": SimpleNamespace(run_id="night")}
        return task.execute(context)


@pytest.fixture
def planner(night: Night, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setattr(hook, "warehouse_for", lambda _settings, **_: night.warehouse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Planner(night)


def insert(night: Night, name: str, day: str) -> None:
    values = f"('{name}', 1, 'text', DATE '{day}')"
    night.rows(f"INSERT INTO `{night.settings.bucket}.source` (name, version, text, day) VALUES {values}")


def test_a_run_keeps_what_it_pinned_and_the_log_says_so(night: Night, planner: Planner) -> None:
    run = planner.plan(PARTITION)
    image = night.settings.cpu_server_image
    assert "Pinned when the run was opened: " in planner.log
    assert f"cpu_server_image {image}" in planner.log
    assert "is not pinned to a commit: HF_HUB_OFFLINE is set" in planner.log

    night.settings = replace(night.settings, cpu_server_image="vllm@sha256:1")

    assert planner.plan(PARTITION) == run
    assert f"keeps the engine's image {image}" in planner.log
    planner.plan(PARTITION, dag_run="again", fresh=True)
    assert "cpu_server_image vllm@sha256:1" in planner.log


@pytest.mark.parametrize("fresh", [False, True])
def test_a_day_without_rows_is_said_and_is_not_empty_for_ever(night: Night, planner: Planner, fresh: bool) -> None:
    empty = planner.plan(LATE, fresh=fresh)
    assert "The query has no rows for 2026-11-21" in planner.log
    assert planner.extract(empty) == 0
    assert planner.plan(LATE, fresh=fresh) == empty, "still without rows"

    insert(night, "late", LATE)
    late = planner.plan(LATE, fresh=fresh)

    assert (empty.generation, late.generation) == (1, 2)
    assert planner.plan(LATE, fresh=fresh) == late
    assert planner.extract(late) == 1
    assert planner.plan(LATE, dag_run="the next night") == late


@pytest.mark.gate
def test_the_decision_is_written_and_a_repeat_finds_it(
    night: Night, planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is estimated from the model's config and a sample of the rows; a run that has its plan is not decided again."""
    folder = tmp_path / f"models--{night.spec.model.uri.removeprefix('hf://').replace('/', '--')}"
    for path, body in (("snapshots/c/config.json", json.dumps(MINILM)), (f"refs/{night.spec.model.revision}", "c")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(body)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    unstated = {"rows_per_worker_per_second": None}
    night.spec = night.spec.model_copy(update={"compute": night.spec.compute.model_copy(update=unstated)})

    told = planner.told(PARTITION)

    found = load_decision(night.store, told["decision"])
    assert found is not None
    assert (found.rows, found.speed.basis) == (len(TEXTS), Basis.ESTIMATED)
    assert f"a sample of {sum(map(bool, TEXTS.values()))} rows, 4 characters per token, because tokenizer.json" in planner.log
    assert "Decided: " in planner.log
    assert planner.told(PARTITION)["decision"] == told["decision"]
    planner.extract(RunRef.from_prefix(told["run_prefix"]))
    assert planner.told(PARTITION)["decision"] is None


@pytest.mark.gate
def test_a_run_that_cannot_end_in_time_is_refused_before_its_rows_are_exported(night: Night, planner: Planner) -> None:
    slow = {"workers": None, "rows_per_worker_per_second": 1e-6}
    night.spec = night.spec.model_copy(update={"compute": night.spec.compute.model_copy(update=slow)})

    with pytest.raises(AirflowFailException, match=r"The run does not fit: .* would need"):
        planner.told(PARTITION)

    assert not [meta for page in obstore.list(night.store) for meta in page if "/inputs/" in meta["path"]]


@pytest.mark.gate
def test_a_source_that_changed_under_a_planned_run_is_said_and_changes_nothing(night: Night, planner: Planner) -> None:
    run = planner.plan(PARTITION)
    planner.extract(run)
    insert(night, "zeta", PARTITION)

    assert planner.plan(PARTITION) == run
    assert f"The query has {len(TEXTS) + 1} rows now, but this run was planned with {len(TEXTS)}" in planner.log
    assert "trigger with fresh" in planner.log
    plan = load_plan(night.store, run)
    assert plan is not None
    assert plan.rows == len(TEXTS)
    assert planner.plan(PARTITION, dag_run="another", fresh=True).generation == 2


@pytest.mark.gate
def test_an_earlier_run_is_refused_before_it_computes_and_shown_again_by_its_id(night: Night, planner: Planner) -> None:
    """The job is edited, published, and edited back; then a person asks for the old run by its id."""
    first = planner.told(PARTITION)
    planner.publish(first)
    old, before = night.spec, night.shown()
    night.spec = old.model_copy(update={"model": old.model.model_copy(update={"revision": "r2"})})
    edited = planner.told(PARTITION, dag_run="edited")
    planner.publish(edited)
    now = night.shown()
    assert {row[4] for row in now} == {edited["run_id"]}
    with pytest.raises(AirflowFailException, match=f"shows run {edited['run_id']}"):
        planner.publish(first)  # the first night's task, repeated

    night.spec = old
    with pytest.raises(AirflowFailException, match=f"shows run {edited['run_id']}.*with republish: {first['run_id']}"):
        planner.told(PARTITION, dag_run="edited back")
    with pytest.raises(AirflowFailException, match=f"shows run {edited['run_id']}"):
        planner.publish(first)
    assert night.shown() == now

    night.spec = night.spec.model_copy(update={"owner": "other"})
    again = planner.told(PARTITION, dag_run="by hand", republish=first["run_id"])
    assert (again["run_id"], again["spec"]["owner"], again["spec"]["model"]["revision"]) == (first["run_id"], "other", "r1")
    assert "nothing is computed again" in planner.log
    planner.publish(again)
    assert night.shown() == before
    with pytest.raises(AirflowFailException, match=f"shows run {first['run_id']}"):
        planner.publish(edited)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"republish": "0123456789abcdef"}, r"There is no run .*/0123456789abcdef"),
        ({"republish": "yesterday's"}, r"The param republish is \"yesterday's\"\. Write the id of a run"),
        ({"republish": "0123456789abcdef", "fresh": True}, r"The params fresh and republish are set together"),
    ],
)
def test_a_run_that_cannot_be_shown_again_is_explained(planner: Planner, params: dict[str, Any], message: str) -> None:
    with pytest.raises(AirflowFailException, match=message):
        planner.plan(PARTITION, **params)


def test_a_run_of_another_project_is_not_shown_again(night: Night, planner: Planner) -> None:
    """Two deployments may share a bucket: an unqualified name is another table in each."""
    told = planner.told(PARTITION)
    planner.publish(told)
    night.settings = replace(night.settings, project="elsewhere")

    with pytest.raises(AirflowFailException, match=f"has rows of the project {PROJECT}, and this deployment's is elsewhere"):
        planner.plan(PARTITION, republish=told["run_id"])


def test_only_a_sealed_run_can_be_shown_again(planner: Planner) -> None:
    run = planner.plan(PARTITION)

    with pytest.raises(AirflowFailException, match="is not sealed, so it cannot be shown again"):
        planner.plan(PARTITION, republish=run.run_id)
