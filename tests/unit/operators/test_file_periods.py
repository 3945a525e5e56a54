"""From events to periods: several events of one run, events without a run, and events that say nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from obstore.store import MemoryStore

from nightshift.operators.file_periods import began_by_files, periods_of_events, within_reach
from nightshift.operators.plan import PlanOperator

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 19, 9, tzinfo=UTC)
A, B, C, D = ("2026-11-19T0710", "2026-11-19T0720", "2026-11-19T0740", "2026-11-19T0800")


class Inlet:
    """An asset's events, as Airflow gives them to a task."""

    def __init__(self, events: list[Any]) -> None:
        self._events = events

    def after(self, moment: str) -> list[Any]:
        return [event for event in self._events if event.timestamp >= datetime.fromisoformat(moment)]


def event(partition: object, seconds: float = 0) -> Any:
    payload = {"partition": partition} if isinstance(partition, str) else partition
    return SimpleNamespace(extra={"from_trigger": True, "payload": payload}, timestamp=NOW + timedelta(seconds=seconds))


def context(own: list[Any], later: list[Any] = [], *, asked: str | None = None, run_type: str = "asset_triggered") -> Any:  # noqa: B006
    return {
        "params": {"partition": asked},
        "dag_run": SimpleNamespace(
            dag_id="job", run_type=run_type, start_date=NOW + timedelta(seconds=60), logical_date=None, run_after=NOW
        ),
        "triggering_asset_events": {"asset": own},
        "inlet_events": [Inlet([*own, *later])],
    }


def found(context: Any, start_date: str = "2026-11-01") -> tuple[str, list[str]]:
    named = periods_of_events(context, "10m", date.fromisoformat(start_date))
    return named.own, named.others


def test_only_a_run_that_an_event_started_asks_for_its_period() -> None:
    assert began_by_files(context([event(A)]))
    assert not began_by_files(context([], run_type="manual"))
    assert not began_by_files(context([event(A)], asked="2026-11-05T07:10"))


def test_one_event_is_one_period() -> None:
    assert found(context([event(A)])) == (A, [])


def test_of_several_the_newest_is_the_runs_own() -> None:
    assert found(context([event(B, 10), event(A), event(C, 20), event(B, 30)])) == (C, [A, B])


def test_events_that_airflow_made_no_run_for_are_found() -> None:
    """They came after the events of the run, and before it began. What came later has a run of its own."""
    assert found(context([event(A)], [event(B, 10), event(C, 60), event(D, 61)])) == (A, [B, C])


def test_an_event_without_a_period_is_left_out() -> None:
    odd = [
        event(None),
        event("noon"),
        event({"objects": 3}),
        event("2026-11-19T0713"),
        SimpleNamespace(extra={}, timestamp=NOW),
    ]

    assert found(context([*odd, event(A)])) == (A, [])
    with pytest.raises(AirflowFailException, match=r"The asset's event names no period of 10m.*Trigger the DAG with the param"):
        found(context(odd))


def test_old_periods_are_left_to_people() -> None:
    old, young = "2026-11-18T0750", "2026-11-18T0800"

    assert within_reach([old, young, A], D) == [young, A]


@pytest.mark.parametrize(
    "wrong", ["2026-12-01T0000", "2027-11-19T0710", "9999-12-31T2350", "0001-01-01T00:00+10:00", "9999-12-31T23:50-10:00"]
)
def test_an_event_with_a_wrong_year_takes_no_periods_place(wrong: str) -> None:
    """A period that is not over cannot have its files. It was the newest one, and those of today were "over long before"."""
    assert found(context([event(A), event(wrong, 5), event(B, 10)])) == (B, [A])
    assert found(context([event(A)], [event(wrong, 5)])) == (A, [])


def test_a_period_that_is_under_way_when_the_run_begins_is_not_its_own() -> None:
    begins, over = "2026-11-19T0900", "2026-11-19T0850"

    assert found(context([event(begins), event(over)])) == (over, [])


def test_a_triggerer_whose_clock_is_ahead_loses_no_period() -> None:
    """Its events have the time of its own clock: by that, the period was over when the event was made."""
    begins = "2026-11-19T0900"

    assert found(context([event(begins, 700)])) == (begins, [])


def test_periods_before_the_start_date_are_left_out_before_the_newest_is_chosen() -> None:
    assert found(context([event("2026-11-17T0710"), event(A)]), "2026-11-19") == (A, [])


def test_a_run_without_events_is_told_how_to_begin() -> None:
    with pytest.raises(AirflowFailException, match="Trigger the DAG with the param partition instead"):
        found(context([]))


class TestPlan:
    """What the task does with them. Airflow, which starts the runs, is real in tests/integration/stack/test_stack_files.py."""

    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        started: list[str] = []

        def start(dag_id: str, partition: str) -> str:
            started.append(f"{dag_id} {partition}")
            return f"files__{partition}"

        monkeypatch.setattr("nightshift.operators.plan.start_run", start)
        return started

    def partition(self, context: Any, *opened: str, start_date: str = "2026-11-01") -> str:
        """opened: periods that have runs."""
        task = PlanOperator(task_id="plan", spec={"job": "job", "every": "10m", "start_date": start_date})
        task.store = MemoryStore()
        for name in opened:
            obstore.put(task.store, f"job/{name}/0123456789abcdef/spec.json", b"{}")
        return task._partition(context)

    def test_it_starts_a_run_for_each_other_period_that_has_none(self, started: list[str]) -> None:
        several = context([event(A), event(D)], [event(B, 10), event(C, 20)])

        assert self.partition(several, B, D) == D
        assert started == [f"job {A}", f"job {C}"]

    def test_a_run_by_hand_starts_no_other(self, started: list[str]) -> None:
        assert self.partition(context([event(A), event(D)], asked="2026-11-05T07:10")) == "2026-11-05T0710"
        assert self.partition(context([], run_type="manual")) == "2026-11-19T0900"
        assert started == []

    def test_what_is_before_the_jobs_first_partition_is_skipped(self, started: list[str]) -> None:
        with pytest.raises(AirflowSkipException, match=rf"before the job's start_date, 2026-11-20: {A}, {D}\."):
            self.partition(context([event(A), event(D)]), start_date="2026-11-20")
        assert started == []

    def test_a_wrong_year_costs_no_real_period(self, started: list[str]) -> None:
        assert self.partition(context([event(A), event("2026-12-01T0000", 1), event(B, 2)])) == B
        assert started == [f"job {A}"]
