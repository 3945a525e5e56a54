"""The task plan against the warehouse: a late source, a source that has changed, and what the log says about it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from nightshift.hooks import warehouse as hook
from nightshift.operators.plan import PlanOperator
from nightshift.run.names import RunRef
from nightshift.run.plan import load_plan
from tests.integration.warehouse.conftest import PARTITION, TEXTS, Night

pytestmark = pytest.mark.integration

LATE = "2026-11-21"


class Planner:
    """Executes the task plan; `log` is what it said."""

    def __init__(self, night: Night) -> None:
        self._night = night
        self.log = ""

    def plan(self, day: str, *, dag_run: str = "manual", fresh: bool = False) -> RunRef:
        with DAG("job", schedule=None):
            task = PlanOperator(task_id="plan", spec=self._night.spec.model_dump(mode="json"))
        lines: list[str] = []
        said = SimpleNamespace(**dict.fromkeys(("info", "warning"), lambda text, *args: lines.append(text % args)))
        task.__dict__.update(settings=self._night.settings, store=self._night.store, _cached_logger=said)
        context: Any = {"params": {"partition": day, "fresh": fresh}, "dag_run": SimpleNamespace(run_id=dag_run)}
        found = task.execute(context)
        self.log = "\n".join(lines)
        assert found["spec"] == self._night.spec.model_dump(mode="json")
        return RunRef.from_prefix(found["run_prefix"])

    def extract(self, run: RunRef) -> int:
        return self._night.extract(run).rows


@pytest.fixture
def planner(night: Night, monkeypatch: pytest.MonkeyPatch) -> Planner:
    monkeypatch.setattr(hook, "warehouse_for", lambda _settings: night.warehouse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return Planner(night)


def insert(night: Night, name: str, day: str) -> None:
    values = f"('{name}', 1, 'text', DATE '{day}')"
    night.rows(f"INSERT INTO `{night.settings.bucket}.source` (name, version, text, day) VALUES {values}")


def test_a_run_keeps_what_it_pinned_and_the_log_says_so(night: Night, planner: Planner) -> None:
    run = planner.plan(PARTITION)
    image = night.settings.server_image
    assert f"Pinned when the run was opened: server_image {image}" in planner.log
    assert "is not pinned to a commit: HF_HUB_OFFLINE is set" in planner.log

    night.settings = replace(night.settings, server_image="vllm@sha256:1")

    assert planner.plan(PARTITION) == run
    assert f"keeps the engine's image {image}" in planner.log
    planner.plan(PARTITION, dag_run="again", fresh=True)
    assert "Pinned when the run was opened: server_image vllm@sha256:1" in planner.log


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
