"""A driver's view of its run, as a scraper reads it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from nightshift.driver.run_metrics import Night, RunCollector
from nightshift.run.ledger import Chunks
from nightshift.run.plan import Plan
from tests.builders import a_plan

pytestmark = pytest.mark.unit

PLAN = a_plan(rows=10, chunk_rows=3, workers=2)
"""Chunks of 3, 3, 3 and 1 rows: the second worker's home has 4 rows."""


class Worker:
    def __init__(self, plan: Plan, *committed: int, dead_letters: int | None = None) -> None:
        self.committed = Chunks(plan.chunk_count)
        for chunk in committed:
            self.committed.add(chunk)
        self.dead_letters = dead_letters


def scraped(worker: Worker | None = None, *, plan: Plan = PLAN, home: int | None = 1, **changes: Any) -> dict[str, float]:
    """By name and labels, as Prometheus writes them."""
    parts: dict[str, Any] = {"night": Night(), "born": time.monotonic(), "start_up": dict, "allowed": None} | changes
    collector = RunCollector(plan, home, {"partition": "2026-11-20", "task": "chat", "model": "m"}, **parts)
    collector.worker = worker
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_before_there_is_a_worker_the_plan_is_known() -> None:
    assert scraped(allowed=5) == {
        "nightshift_run_info{model=m}{partition=2026-11-20}{task=chat}": 1,
        "nightshift_run_rows": 10,
        "nightshift_run_workers": 2,
        "nightshift_run_home_rows": 4,
        "nightshift_run_dead_letters_allowed": 5,
    }


def test_the_committed_rows_of_all_workers_add_up_to_those_of_the_run() -> None:
    homes = [scraped(Worker(PLAN, 0, 3), home=home) for home in (0, 1, None)]

    assert [each["nightshift_run_home_rows"] for each in homes] == [6, 4, 0]
    assert [each["nightshift_run_home_rows_committed"] for each in homes] == [3, 1, 0]


def test_dead_letters_are_those_that_the_worker_counted() -> None:
    assert scraped(Worker(PLAN, dead_letters=3))["nightshift_run_dead_letters"] == 3
    assert "nightshift_run_dead_letters" not in scraped(Worker(PLAN))


def test_deadline_and_cost_are_there_if_airflow_said_them() -> None:
    night = Night(deadline=1764288000.5, price=7200.0, currency="USD")
    found = scraped(night=night, born=time.monotonic() - 10)

    assert found["nightshift_run_deadline_timestamp_seconds"] == 1764288000.5
    assert 20 <= found["nightshift_driver_cost_total{currency=USD}"] < 40


def test_only_stages_that_are_over_have_a_time() -> None:
    found = scraped(start_up=lambda: {"weights": 90.5})

    assert {name: value for name, value in found.items() if "start_up" in name} == {
        "nightshift_driver_start_up_seconds{stage=weights}": 90.5
    }


def test_a_run_without_rows_has_no_part_for_anybody() -> None:
    assert scraped(Worker(a_plan(rows=0, workers=1)), plan=a_plan(rows=0, workers=1), home=0)["nightshift_run_home_rows"] == 0
