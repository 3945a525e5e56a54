"""Who is to blame for a failed request: decided by which requests met the same engine at the same time."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver.attribution import ALONE_S, EARLY, Attribution, Canary, Fault, Held, Judged, Verdict
from nightshift.driver.backoff import Backoff, Silence
from nightshift.driver.engines import Engine, Engines, Standing
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group, Row, Scheduler
from nightshift.driver.stats import Retry
from nightshift.driver.window import Window
from nightshift.tasks.base import load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit

SENT, FAILED = 10.0, 20.0
"""The loop's time when the request that fails is sent, and when it fails."""


def some_engines(scheduler: Scheduler, calm: Backoff, count: int = 1, limit: int = 1) -> tuple[Engines, Engine]:
    """That many, all there; and the first of them."""
    engines, there = Engines(scheduler), SimpleNamespace(good=True)
    for number in range(count):
        health: Any = there
        engines.add(Engine(number, SimpleNamespace(), Window(start=limit, step=1, most=80), health, Silence(calm)))
    return engines, next(iter(engines))


ERROR = Fault(Retry.FAILED, "all is lost", 500)
HANGS = Fault(Retry.TIMEOUT, "no reply in time")
FORBIDDEN = Fault(Retry.REFUSED, "not you", 403, lasting=True)
CANARY = Canary("/x", b"{}", ["text"])


class Case:
    """What is known of so many engines. canary: whether a request was ever answered."""

    def __init__(self, count: int = 2, *, canary: bool = False, **budget: Any) -> None:
        scheduler = Scheduler(load_kind(a_spec()))
        self.engines, _ = some_engines(scheduler, Backoff(random.Random(0), asyncio.Event()), count)
        self.known = Attribution(self.engines, EngineBudget(**budget))
        self.known.canary = CANARY if canary else None

    def engine(self, number: int = 0) -> Engine:
        return list(self.engines)[number]

    def fails(
        self, engine: int = 0, fault: Fault = ERROR, *, sent: float = SENT, at: float = FAILED, rows: int = 1
    ) -> Held | Verdict:
        """A request with its verdict, or as it is held."""
        group = Group([Row(0, engine * 100 + n, "text") for n in range(rows)], sent=sent, engine=engine)
        if (verdict := self.known.judge(group, fault)) is not None:
            return verdict
        held = Held(group, fault, at, verdict=None)  # type: ignore[arg-type]
        self.known.hold(held)
        return held

    def answers(self, sent: float, at: float, engine: int = 0) -> Judged:
        self.known.note_answer(self.engine(engine), sent, at)
        return self.known.clear(self.engine(engine), sent, at)

    @property
    def standings(self) -> list[Standing]:
        return [engine.standing for engine in self.engines]


def verdict(*answered: tuple[float, float], fault: Fault = ERROR, other: bool = False) -> Verdict | None:
    """What becomes of a request, if others are answered. answered: when each of them was sent, and when it is answered.

    other: by another engine, which holds a request as well. None: that is not known yet.
    """
    case = Case()
    if other:
        case.fails(1, fault)
    for sent, at in answered:
        if at < FAILED:
            case.answers(sent, at, engine=other)
    found = case.fails(0, fault)
    if isinstance(found, Verdict):
        return found
    for sent, at in answered:
        if at >= FAILED:
            for held, judged in case.answers(sent, at, engine=other):
                if held is found:
                    return judged
    return None


def test_nobody_knows_while_nobody_is_answered() -> None:
    assert verdict() is None


@pytest.mark.parametrize(
    ("sent", "at"),
    [(5.0, 15.0), (15.0, 17.0), (5.0, 25.0), (15.0, 25.0)],
    ids=["around its start", "while it was there", "all the time", "around its end"],
)
def test_the_rows_are_to_blame_if_a_request_that_was_there_meanwhile_is_answered(sent: float, at: float) -> None:
    assert verdict((sent, at)) is Verdict.ROWS


def test_the_rows_are_not_to_blame_for_an_answer_to_a_request_that_was_sent_after_they_failed() -> None:
    """The engine may have recovered in between."""
    assert verdict((FAILED + 1, FAILED + 2)) is Verdict.ENGINE


def test_an_answer_of_another_engine_says_nothing() -> None:
    assert verdict((5.0, 25.0), other=True) is None
    assert verdict((5.0, 25.0), fault=FORBIDDEN, other=True) is None
    assert verdict((5.0, 15.0), other=True) is None
    assert verdict((15.0, 17.0), fault=FORBIDDEN, other=True) is None


def test_an_answer_that_came_before_they_were_sent_says_nothing() -> None:
    assert verdict((1.0, SENT - 1)) is None


@pytest.mark.parametrize(("sent", "at"), [(9.5, 15.0), (15.0, 17.0), (15.0, 25.0), (FAILED, 25.0)])
def test_who_is_turned_away_at_the_door_is_to_blame_if_one_that_came_then_is_answered(sent: float, at: float) -> None:
    assert verdict((sent, at), fault=FORBIDDEN) is Verdict.ROWS


@pytest.mark.parametrize("at", [15.0, 25.0])
def test_an_answer_to_one_that_was_let_in_before_the_door_was_shut_says_nothing(at: float) -> None:
    """Such as a long generation that began before the key was revoked."""
    assert verdict((5.0, at), fault=FORBIDDEN) is None
    assert verdict((5.0, at), (15.0, 30.0), fault=FORBIDDEN) is Verdict.ROWS


def test_who_was_turned_away_long_before_the_door_was_opened_is_not_to_blame() -> None:
    assert verdict((FAILED + 5, FAILED + 6), fault=FORBIDDEN) is Verdict.ENGINE


def test_an_answer_judges_what_its_own_engine_holds_and_no_more() -> None:
    case = Case(3)
    held = [case.fails(number) for number in range(3)]

    assert case.answers(5.0, 25.0, engine=1) == [(held[1], Verdict.ROWS)]
    assert case.known.held == [held[0], held[2]]
    assert case.standings == [Standing.DOUBTED, Standing.ANSWERS, Standing.DOUBTED]


def test_a_canary_of_another_engine_proves_nothing() -> None:
    case = Case()
    case.known.last_answers[1].canary = SENT
    case.answers(SENT, 15.0)
    assert case.fails() is Verdict.ROWS

    case.known.last_answers[0].canary = SENT
    assert case.fails() is Verdict.CANARY


def test_one_fault_for_an_unknown_cause_shuts_its_engine_unless_it_is_at_the_door() -> None:
    case = Case()
    case.fails(0, FORBIDDEN)
    assert case.standings == [Standing.ANSWERS, Standing.ANSWERS]
    case.fails(1)
    assert case.standings == [Standing.ANSWERS, Standing.DOUBTED]


def test_an_engine_that_is_ill_keeps_nothing_while_another_answers() -> None:
    case = Case(3, canary=True)
    first, other = case.fails(0), case.fails(1, sent=11.0)
    case.known.doubt(case.engine(0), ERROR)

    assert case.known.give_away(case.engine(0), 21.0) == [(first, Verdict.ENGINE)]
    assert case.standings == [Standing.ILL, Standing.DOUBTED, Standing.ANSWERS]
    assert case.fails(0) is Verdict.ENGINE, "what it still had goes at once"
    assert case.known.held == [other]
    case.fails(2)
    assert isinstance(case.fails(0), Held), "no other engine answers"
    assert case.standings == [Standing.DOUBTED] * 3


def test_an_engine_is_ill_since_it_was_found_to_be_until_it_answers() -> None:
    case = Case(canary=True)
    for at in (21.0, 30.0):
        case.known.give_away(case.engine(), at)
    assert case.known.ill_since == {0: 21.0}
    case.answers(31.0, 32.0)
    assert (case.known.ill_since, case.standings) == ({}, [Standing.ANSWERS] * 2)


def test_a_canary_that_fails_shuts_an_engine_that_turns_requests_away_if_there_are_others() -> None:
    for count, standing in ((1, Standing.ANSWERS), (2, Standing.DOUBTED)):
        case = Case(count, canary=True)
        case.fails(0, FORBIDDEN)
        case.known.doubt(case.engine(), FORBIDDEN)
        assert case.engine().standing is standing


def test_a_row_hurries_its_canary_once_for_each_engine() -> None:
    case = Case(canary=True)
    for _ in range(2):
        held = case.fails()
        assert isinstance(held, Held)
        assert case.known.patience(case.engine()) == ALONE_S
        row = held.group.rows[0]
        case.known.doubt(case.engine(), EARLY)
    assert row.hurried == 1
    row.hurried = 2
    assert case.known.patience(case.engine()) is None


def test_nothing_hurries_the_canary_of_one_engine_or_where_nothing_waits() -> None:
    alone = Case(1, canary=True)
    alone.fails()
    assert alone.known.patience(alone.engine()) is None
    assert Case(canary=True).known.patience(Case().engine()) is None


def test_only_those_of_the_engine_are_released_and_halved_without_a_canary() -> None:
    case = Case()
    other, whole = case.fails(1, rows=2), case.fails(0, rows=2)
    one = case.fails(0)

    assert case.known.release(case.engine(0), 2, FAILED) == [(whole, Verdict.HALVES), (one, Verdict.PROBE)]
    assert case.known.held == [other]
    case.known.canary = CANARY
    assert case.known.release(case.engine(1), 8, FAILED) == [(other, Verdict.PROBE)]


def test_one_that_the_engine_puts_off_is_released_when_it_is_ready() -> None:
    case = Case(1, canary=True)
    put_off, held = case.fails(0, Fault(Retry.BUSY, "later", 429, until=80.0)), case.fails(0)

    assert case.known.ready_at(case.engine()) == 0.0
    assert case.known.release(case.engine(), 8, 79.0) == [(held, Verdict.PROBE)]
    assert case.known.ready_at(case.engine()) == 80.0
    assert case.known.release(case.engine(), 8, 80.0) == [(put_off, Verdict.PROBE)]


def test_a_restart_forgives_its_own_engine_alone() -> None:
    case = Case()
    first, second = case.fails(0), case.fails(1)

    assert case.known.forgive([case.engine(1)], 30.0) == [(second, Verdict.ENGINE)]
    assert (case.known.held, case.standings) == ([first], [Standing.DOUBTED, Standing.ANSWERS])


def test_the_budget_counts_from_the_last_answer_of_any_engine() -> None:
    case = Case()
    case.known.begin(20.0)
    case.fails(0)
    assert case.known.silent_since == 20.0
    case.known.note_answer(case.engine(1), 100.0, 900.0)
    assert case.known.silent_since == 900.0


@pytest.mark.parametrize(
    ("budget", "canary", "nothing_else", "expected"),
    [
        ({}, False, True, Verdict.ROWS),
        ({}, False, False, Verdict.ENGINE),
        ({}, True, True, Verdict.ENGINE),
        ({"few": 0}, False, True, Verdict.ENGINE),
        ({"rows_ask": True}, False, False, ERROR),
    ],
)
def test_what_follows_when_the_budget_is_used_up(
    budget: dict[str, Any], canary: bool, nothing_else: bool, expected: object
) -> None:
    case = Case(canary=canary, **budget)
    case.fails(0)
    case.fails(1)

    assert case.known.conclude(nothing_else=nothing_else) == expected
    if expected is Verdict.ROWS:
        assert {verdict for _, verdict in case.known.let_tries_decide(1000.0)} == {Verdict.ROWS}
        assert case.fails(1) is Verdict.ROWS
    if expected is ERROR:
        assert {verdict for _, verdict in case.known.blame_all(ERROR, 1000.0)} == {Verdict.FINAL}
        assert case.fails(1) is Verdict.FINAL
