"""What travels between a task and its trigger: read as it was written, as release 0.2.0 wrote it, and with entries to come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nightshift.jobset.fleet.deadline import Terms
from nightshift.jobset.fleet.forecast import WatchState
from nightshift.jobset.fleet.records import JobSetEvent, WatchedJobSet, WatchReport, WatchTerms

pytestmark = pytest.mark.unit

STATE = WatchState(1.5, late_since=17.0)
TERMS = WatchTerms(
    run="job/2026-11-20/0123456789abcdef",
    rows=1000,
    chunk_rows=10,
    seqs=64,
    state=STATE,
    jobsets={"one": WatchedJobSet("gpu-l4-spot", 4, helps=False, hosts=2, ready_at=99.0)},
    terms=Terms(("gpu-l4-spot", "gpu-l4"), start_up_s=600.0, room=8, stated=True, helped=1),
    plan_uid="0123456789abcdef",
)
REPORT = WatchReport(STATE, late=True, why="late", workers=3, profile="gpu-l4", drop=("two",))
EVENT = JobSetEvent(
    "one", "u", "look", "why", [{"metadata": {"uid": "p"}}], {"kind": "JobSet"}, {"one": {"running": 1}}, REPORT, {"one": {}}
)


def sent(value: dict[str, Any]) -> Any:
    return json.loads(json.dumps(value))


def test_terms_are_read_as_they_were_written() -> None:
    read = WatchTerms.from_json(sent(TERMS.to_json()))

    assert read.to_json() == TERMS.to_json()
    assert (read.state, read.jobsets, list(read.terms.profiles)) == (TERMS.state, TERMS.jobsets, list(TERMS.terms.profiles))


def test_an_event_is_read_as_it_was_written() -> None:
    assert JobSetEvent.from_json(sent(EVENT.to_json())) == EVENT


def test_an_event_without_a_look_has_no_entries_for_it() -> None:
    plain = JobSetEvent("one", "", "finished")

    assert set(plain.to_json()) == {"version", "name", "uid", "ending", "detail", "pods", "jobset", "counts"}
    assert JobSetEvent.from_json(sent(plain.to_json())) == plain


def test_what_0_2_0_wrote_is_read() -> None:
    """Its trigger did not know the plan; its state lay beside the other entries, as today."""
    old = {name: value for name, value in sent(TERMS.to_json()).items() if name != "plan_uid"}
    read = WatchTerms.from_json(old)

    assert (read.plan_uid, read.state, read.rows) == ("", STATE, 1000)


def test_entries_of_a_later_release_are_passed_over() -> None:
    terms, event = sent(TERMS.to_json()), sent(EVENT.to_json())
    for holder in (terms, terms["terms"], terms["jobsets"]["one"], event, event["look"], event["look"]["watch"]):
        holder["to_come"] = 1

    assert WatchTerms.from_json(terms).to_json() == TERMS.to_json()
    assert JobSetEvent.from_json(event) == EVENT
