"""Records of speed as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nightshift.planner.record import NotARecord, Record, Workload

pytestmark = pytest.mark.unit

WORKLOAD = Workload("hf://a/b", "c" * 40, "embedding", "d" * 64, {"max_num_seqs": 64}, "l4", 1)
RECORD = Record(WORKLOAD, "job/2026-11-20/0123456789abcdef", "2026-11-21T03:00:00+00:00", 600, 2, 30.0, 7200.0, 9000, 0, 3, {})


def test_a_record_survives_json() -> None:
    assert Record.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def test_rates_are_per_worker() -> None:
    assert RECORD.rows_per_second == 20.0
    assert replace(RECORD, alive_s=72_000.0).preemptions_per_hour == 0.15


def test_a_kill_in_a_short_run_is_not_a_rate() -> None:
    """One in three minutes would be 20 an hour: with 10 minutes of start-up, no work would ever be done."""
    assert replace(RECORD, alive_s=180.0, preemptions=1).preemptions_per_hour == 0.25
    assert replace(RECORD, alive_s=0.0, preemptions=0).preemptions_per_hour == 0.0


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert Record.from_json({**RECORD.to_json(), "watts": 300}) == RECORD


@pytest.mark.parametrize("value", [None, {}, {"version": 2}, {**RECORD.to_json(), "workload": {}}])
def test_anything_else_is_not_a_record(value: object) -> None:
    with pytest.raises(NotARecord):
        Record.from_json(value)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "600"},
        {"rows": -1},
        {"rows": 1.5},
        {"rows": True},
        {"work_s": None},
        {"work_s": float("nan")},
        {"alive_s": float("inf")},
        {"output_tokens": None},
        {"preemptions": -3},
        {"start_up_s": None},
        {"start_up_s": {"weights": "long"}},
        {"start_up_s": {"weights": -1.0}},
        {"rows": 10**400},
        {"input_tokens": 10**16},
        {"work_s": 1e308},
        {"start_up_s": {"weights": 1e308}},
        {"row_tokens": 1e16},
        {"run": None},
        {"workload": {**RECORD.to_json()["workload"], "performance": None}},
    ],
)
def test_a_record_with_a_value_of_another_kind_is_none(change: dict[str, object]) -> None:
    """Else it would end the task plan of every later run of the same work."""
    where = next(iter(change)) if "workload" not in change else r"workload\.performance"
    with pytest.raises(NotARecord, match=f"its {where}"):
        Record.from_json(json.loads(json.dumps({**RECORD.to_json(), **change})))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"work_s": 5e-324}, "the speed of no worker"),
        ({"rows": 10**15, "work_s": 0.001}, "the speed of no worker"),
        ({"rows": 1, "work_s": 1e15}, "the speed of no worker"),
        ({"preemptions": 10**9, "alive_s": 0}, "too many"),
        ({"preemptions": 121}, "too many"),
    ],
)
def test_what_no_worker_can_have_done_is_no_record(change: dict[str, object], said: str) -> None:
    with pytest.raises(NotARecord, match=said):
        Record.from_json({**RECORD.to_json(), **change})


@pytest.mark.parametrize("value", [{"a": {"b": {}}}, [1], {"args": {"x": [1]}}])
def test_a_setting_is_one_value_or_some_by_name(value: object) -> None:
    """What is deeper could be read and not be written again."""
    workload = {**RECORD.to_json()["workload"], "performance": {"args": value}}

    with pytest.raises(NotARecord, match=r"its workload\.performance"):
        Record.from_json({**RECORD.to_json(), "workload": workload})


def test_less_than_a_batch_for_each_worker_is_no_measure() -> None:
    assert RECORD.filled
    assert replace(RECORD, rows=128).filled
    assert not replace(RECORD, rows=127).filled
    several = replace(WORKLOAD, performance={**WORKLOAD.performance, "engines": 2})
    assert [replace(RECORD, rows=rows, workload=several).filled for rows in (255, 256)] == [False, True]
    assert replace(RECORD, rows=1, workload=replace(WORKLOAD, performance={})).filled, "nobody knows the batch"
