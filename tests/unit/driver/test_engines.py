"""Which of several engines gets a request."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from nightshift.driver.backoff import Backoff
from nightshift.driver.engines import Engine, Engines, Standing
from nightshift.driver.scheduler import Group, Row, Scheduler
from nightshift.tasks.base import load_kind
from tests.builders import a_spec
from tests.unit.driver.test_attribution import some_engines

pytestmark = pytest.mark.unit


def of(count: int, *, rows: dict[int, int] | None = None, limit: int = 8) -> tuple[Engines, list[Engine]]:
    """So many engines. rows: that each of them has."""
    scheduler = Scheduler(load_kind(a_spec()))
    engines, _ = some_engines(scheduler, Backoff(random.Random(0), asyncio.Event()), count, limit=limit)
    scheduler.rows_at.update(rows or {})
    return engines, list(engines)


async def chosen(engines: Engines, row: Row | None = None) -> int:
    group = Group([row or Row(0, 0, "text")])
    engines._scheduler.rows_at[0] += 1  # Where a group is that has just left its chunk.
    engines.choose(group)
    return group.engine


async def test_the_one_with_the_fewest_rows_in_relation_to_its_window_gets_it() -> None:
    engines, (first, second, _) = of(3, rows={0: 4, 1: 2, 2: 3})
    assert await chosen(engines) == 1

    first.window._level = 80.0
    assert await chosen(engines) == 0
    second.window.closed = True
    first.window._level = 1.0
    assert await chosen(engines) == 2


async def test_one_that_is_away_or_answers_nobody_or_wants_silence_gets_none() -> None:
    engines, (first, second, third) = of(3, rows={2: 6})
    away: Any = type("Away", (), {"good": False})()
    first.health, second.standing = away, Standing.DOUBTED

    assert await chosen(engines) == 2
    assert engines.room
    third.silence.ask(60.0)
    assert not engines.ready
    assert not engines.room


async def test_a_row_that_was_alone_when_an_engine_died_meets_another_one() -> None:
    engines, (first, *_) = of(2, rows={1: 5})
    assert await chosen(engines, Row(0, 0, "text", alone=1, failed_at=0)) == 1

    away: Any = type("Away", (), {"good": False})()
    first.health = away
    assert await chosen(engines, Row(0, 0, "text", alone=1, failed_at=1)) == 1, "it is the only one"


async def test_a_row_that_failed_meets_another_engine_if_that_has_room() -> None:
    engines, (_, second) = of(2, rows={1: 5})
    assert await chosen(engines, Row(0, 0, "text", failed_at=0)) == 1
    assert await chosen(engines, Row(0, 0, "text", failed_at=1)) == 0

    engines, (_, second) = of(2, rows={1: 5})
    second.window.closed = True
    assert await chosen(engines, Row(0, 0, "text", failed_at=0)) == 0


async def test_every_row_of_a_request_is_counted_where_it_goes() -> None:
    engines, _ = of(2, rows={0: 7})
    group = Group([Row(0, ordinal, "text") for ordinal in range(4)])
    engines._scheduler.rows_at[0] += 4
    engines.choose(group)

    assert dict(engines._scheduler.rows_at) == {0: 7, 1: 4}


async def test_what_a_chosen_engine_has_is_counted() -> None:
    engines, _ = of(2)
    for _ in range(4):
        await chosen(engines)

    assert dict(engines._scheduler.rows_at) == {0: 2, 1: 2}
