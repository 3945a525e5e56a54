"""Static and continuous batching are what docs/develop/benchmarks.md says they are."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.figures.measure import MEAN_TOKENS, MOST_TOKENS, continuous, lengths, static

pytestmark = pytest.mark.unit


class Engine:
    """Takes a request as long as its number says. `running`: how many were in flight when each began; `order`: of answers."""

    def __init__(self, *steps: int) -> None:
        self._steps = steps
        self._now = 0
        self.running: list[int] = []
        self.order: list[int] = []

    async def ask(self, row: int) -> None:
        self._now += 1
        self.running.append(self._now)
        for _ in range(self._steps[row]):
            await asyncio.sleep(0)
        self._now -= 1
        self.order.append(row)


async def test_a_static_batch_waits_for_its_slowest() -> None:
    engine, usable = Engine(9, 1, 1, 1), [0.0] * 4
    await static(engine.ask, 4, 2, usable)

    assert engine.running == [1, 2, 1, 2]
    assert engine.order == [1, 0, 2, 3]
    assert usable[0] == usable[1] > 0.0
    assert usable[2] == usable[3] > 0.0


async def test_continuous_batching_gives_every_place_to_the_next_row() -> None:
    engine = Engine(9, 1, 1, 1)
    await continuous(engine.ask, 4, 2)

    assert engine.running == [1, 2, 2, 2]
    assert engine.order == [1, 2, 3, 0]


def test_the_lengths_are_the_same_each_time_and_have_a_long_tail() -> None:
    some = lengths(4_000)

    assert some[:64] == lengths(64)
    assert 0.9 * MEAN_TOKENS < sum(some) / len(some) < 1.1 * MEAN_TOKENS
    assert max(some) == MOST_TOKENS
