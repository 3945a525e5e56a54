"""Records of speed as JSON."""

from __future__ import annotations

import json

import pytest

from nightshift.planner.record import NotARecord, Record, Workload

pytestmark = pytest.mark.unit

WORKLOAD = Workload("hf://a/b", "c" * 40, "embedding", "d" * 64, {"max_num_seqs": 64}, "l4", 1)
RECORD = Record(WORKLOAD, "job/2026-11-20/0123456789abcdef", "2026-11-21T03:00:00+00:00", 600, 2, 30.0, 7200.0, 9000, 0, 3, {})


def test_a_record_survives_json() -> None:
    assert Record.from_json(json.loads(json.dumps(RECORD.to_json()))) == RECORD


def test_rates_are_per_worker() -> None:
    assert RECORD.rows_per_second == 20.0
    assert RECORD.preemptions_per_hour == 1.5


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert Record.from_json({**RECORD.to_json(), "watts": 300}) == RECORD


@pytest.mark.parametrize("value", [None, {}, {"version": 2}, {**RECORD.to_json(), "workload": {}}])
def test_anything_else_is_not_a_record(value: object) -> None:
    with pytest.raises(NotARecord):
        Record.from_json(value)
