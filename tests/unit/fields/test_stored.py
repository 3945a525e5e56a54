"""Every dataclass that is stored as JSON comes back as it was, and a value of another type is refused by its name."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from annotated_types import MaxLen
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.fields.stored import MOST, Amount, Count, read
from nightshift.formats import VERSION, WRITTEN_BY
from nightshift.jobset.fleet.deadline import Terms
from nightshift.jobset.fleet.memory import FleetState
from nightshift.jobset.fleet.records import JobSetEvent, WatchTerms
from nightshift.jobset.verdict.cannot_start import CannotStart
from nightshift.planner.plan import Decision
from nightshift.planner.record import Record, Workload
from nightshift.run.chunks import Part, Provenance
from nightshift.run.manifest import RunManifest
from nightshift.run.names import canonical_json
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.heartbeats import Heartbeat
from nightshift.run.observed.pods_now import JobSetNow
from nightshift.run.order import Order
from nightshift.run.pauses import PauseRequest
from nightshift.run.pins import Pins
from nightshift.run.plan import InputFile, Plan, PlanError
from nightshift.run.record import RunRecord
from nightshift.run.redo.redo import Redo
from nightshift.trial.outcomes import Cause, Outcome
from nightshift.trial.preview.results import Preview
from nightshift.trial.tune.also import Found
from nightshift.trial.tune.points import Point, Space
from nightshift.trial.tune.trials import Trial

pytestmark = pytest.mark.unit

QUICK = settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


class Stored(NamedTuple):
    """write, read: as the product does. unchecked: entries that are for people or later readers, or read elsewhere."""

    kind: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    unchecked: tuple[str, ...] = ()


def through(kind: Any, *unchecked: str) -> Stored:
    return Stored(kind, kind.to_json, kind.from_json, unchecked)


def plain(kind: Any) -> Stored:
    return Stored(kind, dataclasses.asdict, partial(read, kind))


STORED = [
    Stored(Heartbeat, lambda beat: json.loads(beat.to_bytes()), lambda value: Heartbeat.from_bytes(json.dumps(value).encode())),
    through(CannotStart),
    through(Decision),
    Stored(Found, Found.to_json, partial(read, Found), ("better", "sentence")),
    through(JobSetEvent),
    through(Order),
    through(Outcome),
    through(Plan),
    through(Preview, "changed_answers", "changed_prompts", "compared"),
    through(Record),
    Stored(RunManifest, RunManifest.to_json, lambda value: RunManifest.from_json(value, "x"), ("measured", "pinned")),
    plain(Trial),
    through(WatchTerms),
    Stored(FleetState, dataclasses.asdict, FleetState.of),
    Stored(Pins, Pins.to_json, lambda value: Pins.of({"pinned": value})),
    Stored(Redo, Redo.to_json, Redo.of),
    Stored(RunRecord, dataclasses.asdict, lambda value: replace(RunRecord.from_json(value), stored={}), ("stored", "redo")),
    plain(Ending),
    plain(JobSetNow),
    plain(Part),
    plain(PauseRequest),
    plain(Point),
    plain(Provenance),
    plain(Space),
]
each_class = pytest.mark.parametrize("stored", STORED, ids=[each.kind.__name__ for each in STORED])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    groups = draw(st.lists(st.lists(st.integers(0, 50), max_size=3).map(tuple), max_size=3))
    files = tuple(
        InputFile(f"{at}", sum(each), each, draw(st.integers(0, MOST)), draw(st.text())) for at, each in enumerate(groups)
    )
    rest = draw(st.fixed_dictionaries({"order": of(Order | None), "reasons": of(tuple[str, ...]), "decision": of(str | None)}))
    return Plan(draw(st.text()), sum(map(sum, groups)), draw(st.integers(1, 9)), 1, files, **rest)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    point = draw(of(Point))
    return Space(point, {"max_num_seqs": tuple(sorted({point.max_num_seqs, *draw(st.sets(st.integers(1, 9)))}))})


FIXED: dict[tuple[Any, str], st.SearchStrategy[Any]] = {
    (Record, "rows"): st.just(0),
    (Record, "preemptions"): st.just(0),
    (Found, "cause"): st.sampled_from(Cause),
    (Trial, "cause"): st.sampled_from(Cause),
    (RunManifest, "digest"): st.just(""),
    (RunManifest, "earlier"): st.just(()),
    (RunManifest, "measured"): st.none() | st.dictionaries(st.text(), st.integers()),
    (RunManifest, "empty"): st.just(3),
    (RunManifest, "equal"): st.just(4),
    (RunRecord, "stored"): st.just({}),
    (Terms, "useful"): st.just(0),
    (Workload, "performance"): st.dictionaries(
        st.text(), st.none() | st.integers(0, 9) | st.dictionaries(st.text(), st.text())
    ),
}
"""Fields that depend on others, or are not stored."""


@cache
def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    own: dict[Any, st.SearchStrategy[Any]] = {
        Any: st.none() | st.text() | st.integers(-MOST, MOST) | st.lists(st.booleans()),
        Count: st.integers(0, MOST),
        Amount: st.floats(0, MOST),
        str: st.text(),
        int: st.integers(-MOST, MOST),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        type(None): st.none(),
        Plan: plans(),
    }
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Space:
        return spaces()
    if kind in own:
        return own[kind]
    if origin is Annotated:
        return of(inner[0])
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of, inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*map(of, inner))
    if origin in (tuple, list, Sequence):
        return st.lists(of(inner[0]), max_size=2).map(tuple if origin is tuple else list)
    if origin in (dict, Mapping):
        return st.dictionaries(of(inner[0]), of(inner[1]), max_size=2)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{name: FIXED[kind, name] if (kind, name) in FIXED else of(hint) for name, hint in fields_of(kind)})


def fields_of(kind: Any) -> Iterator[tuple[str, Any]]:
    """Of a class, with its annotation."""
    hints = get_type_hints(kind, include_extras=True)
    yield from ((each.name, hints[each.name]) for each in dataclasses.fields(kind))


@each_class
@QUICK
@given(data=st.data())
def test_what_is_stored_comes_back(stored: Stored, data: st.DataObject) -> None:
    value = data.draw(of(stored.kind))
    body = json.loads(canonical_json(stored.write(value)))

    assert stored.read({**body, "of_a_later_release": 1}) == value
    assert json.loads(canonical_json(stored.write(stored.read(body)))) == body


@each_class
@QUICK
@given(data=st.data())
def test_a_value_of_another_type_is_refused_by_its_name(stored: Stored, data: st.DataObject) -> None:
    body = json.loads(canonical_json(stored.write(data.draw(of(stored.kind)))))

    for name in body.keys() - {*stored.unchecked, VERSION, WRITTEN_BY}:
        with pytest.raises(ValueError, match=name):
            stored.read({**body, name: [[None]]})


@dataclass(frozen=True)
class Thing:
    count: Count = 0
    amount: Amount = 0.0
    text: Annotated[str, MaxLen(3)] = ""
    yes: bool = False
    end: Literal["a", "b"] = "a"
    many: tuple[int, ...] = ()
    names: Mapping[str, float] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "not a JSON object"),
        ({"count": True}, "count is not a count: True"),
        ({"count": "7"}, "count is not a count: '7'"),
        ({"count": 1.0}, "count is not a count: 1.0"),
        ({"count": -1}, "count is not a count: -1"),
        ({"count": MOST + 1}, "count is not a count: 1000000000000001"),
        ({"amount": -1}, "amount is not a number from 0: -1"),
        ({"amount": float("nan")}, "amount is not a number from 0: nan"),
        ({"amount": None}, "amount is not a number: None"),
        ({"amount": True}, "amount is not a number: True"),
        ({"text": 7}, "text is not a text: 7"),
        ({"text": "long"}, "text is longer than 3 characters"),
        ({"yes": 1}, "yes is not true or false: 1"),
        ({"end": "c"}, "end is 'c'"),
        ({"many": "abc"}, "many is not a list: 'abc'"),
        ({"many": [1, None]}, "many.1 is not a count: None"),
        ({"names": {"x": "y" * 90}}, f"names.x is not a number: '{'y' * 79}..."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        read(Thing, value)


def test_the_classs_own_refusal_is_kept() -> None:
    with pytest.raises(PlanError, match="a: row groups hold 1 row, but the file 2"):
        read(InputFile, {"path": "a", "rows": 2, "row_groups": [1], "size": 1, "etag": ""})


def test_an_entry_without_a_default_is_missed() -> None:
    with pytest.raises(ValueError, match=r"^it lacks at$"):
        read(PauseRequest, {"paused": True, "by": "me"})
