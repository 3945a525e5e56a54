"""Who is to blame for a failed request: decided by which requests met the same engine at the same time."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver.attribution import Attribution
from nightshift.driver.backoff import Backoff, Silence
from nightshift.driver.engines import Engine, Engines
from nightshift.driver.faults import Fault, Verdict
from nightshift.driver.health import EngineBudget
from nightshift.driver.scheduler import Group, Scheduler
from nightshift.driver.stats import Retry, Stats
from nightshift.driver.window import Window
from nightshift.tasks.base import load_kind
from tests.builders import a_spec

pytestmark = pytest.mark.unit

SENT, FAILED = 10.0, 20.0
"""The loop's time when the request that fails is sent, and when it fails."""


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time stands still until a test moves it."""

    now = 0.0

    def time(self) -> float:
        return self.now


def some_engines(scheduler: Scheduler, calm: Backoff, count: int = 1, limit: int = 1) -> tuple[Engines, Engine]:
    """That many, all there; and the first of them."""
    engines, there = Engines(scheduler), SimpleNamespace(good=True)
    for number in range(count):
        health: Any = there
        engines.add(Engine(number, SimpleNamespace(), Window(start=limit, step=1, most=80), health, Silence(calm)))
    return engines, next(iter(engines))


ERROR = Fault(Retry.FAILED, "all is lost", 500)
FORBIDDEN = Fault(Retry.REFUSED, "not you", 403, lasting=True)


def verdict(*answered: tuple[float, float], fault: Fault = ERROR, other: bool = False) -> Verdict | None:
    """What becomes of the request, if others are answered. answered: when each of them was sent, and when it is answered.

    other: by another engine. None: that is not known yet.
    """

    async def judged() -> Verdict | None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        kind = load_kind(a_spec())
        calm = Backoff(random.Random(0), asyncio.Event())
        hooks: Any = SimpleNamespace(over=lambda: None, spawn=loop.create_task, recall=None, more=None, given_up=None)
        scheduler = Scheduler(kind)
        engines, first = some_engines(scheduler, calm, 2)
        engine = list(engines)[1] if other else first
        trial = Attribution(scheduler, engines, calm, Stats(), EngineBudget(), hooks, send_canary=lambda *_: None)  # type: ignore[arg-type]
        # The search for an answer is not what these tests are about.
        trial._find_out = asyncio.Event().wait  # type: ignore[assignment]
        row: Any = SimpleNamespace(ordinal=0, chunk=0)
        before = [(sent, at) for sent, at in answered if at < FAILED]
        for sent, loop.now in before:
            trial.heard(sent, engine)
        loop.now = FAILED
        waiting = loop.create_task(trial.verdict(Group([row], sent=SENT), fault))
        await asyncio.sleep(0)
        for sent, loop.now in (each for each in answered if each not in before):
            trial.heard(sent, engine)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return waiting.result() if waiting.done() else None

    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(judged())


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
