"""Bytes that requests hold at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from nightshift.driver.budget import ByteBudget, bytes_of

pytestmark = pytest.mark.unit


class Holder:
    """Holds bytes from when it gets them until it is told to go."""

    def __init__(self, budget: ByteBudget, size: int) -> None:
        self.holds = False
        self._go = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._hold(budget, size))

    async def _hold(self, budget: ByteBudget, size: int) -> None:
        async with budget.hold(size):
            self.holds = True
            try:
                await self._go.wait()
            finally:
                self.holds = False

    async def end(self) -> None:
        self._go.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def holders(budget: ByteBudget, *sizes: int) -> list[Holder]:
    made = [Holder(budget, size) for size in sizes]
    await settle()
    return made


def holding(made: list[Holder]) -> list[bool]:
    return [holder.holds for holder in made]


async def test_no_more_than_all_bytes_are_held_and_who_came_first_goes_first() -> None:
    budget = ByteBudget(10)
    made = await holders(budget, 6, 6, 1, 4)

    assert holding(made) == [True, False, False, False], "the small ones do not overtake the large one"
    assert budget.crowded
    await made[0].end()
    await settle()
    assert holding(made[1:]) == [True, True, False]
    await made[2].end()
    await settle()
    assert holding(made) == [False, True, False, True]
    assert not budget.crowded


async def test_what_is_larger_than_all_goes_alone() -> None:
    budget = ByteBudget(10)
    made = await holders(budget, 1, 100, 1)

    assert holding(made) == [True, False, False]
    await made[0].end()
    await settle()
    assert holding(made) == [False, True, False]
    await made[1].end()
    await settle()
    assert holding(made) == [False, False, True]


async def test_what_is_not_needed_is_given_back_at_once() -> None:
    budget = ByteBudget(10)
    async with budget.hold(10) as held:
        (waiting,) = await holders(budget, 6)
        held.shrink(4)
        await settle()
        assert waiting.holds
        held.shrink(8)
        assert held.size == 4, "it never grows"
    await waiting.end()
    assert holding(await holders(budget, 10)) == [True], "nothing is left taken"


@pytest.mark.parametrize("granted", [False, True])
async def test_who_is_cancelled_holds_nothing(granted: bool) -> None:
    budget = ByteBudget(10)
    first, second, third = await holders(budget, 10, 5, 5)
    if granted:
        # Its bytes are there, but it has not run since.
        first._go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not budget.crowded
    second.task.cancel()
    await settle()
    if not granted:
        await first.end()
        await settle()

    assert holding([second, third]) == [False, True]
    await third.end()
    assert holding(await holders(budget, 10)) == [True]


@dataclass(frozen=True, slots=True)
class Payload:
    ordinal: int
    content: tuple[object, ...]
    image: bytes | None


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        ("abc", 3),
        (b"abcd", 4),
        (("/path", b"xy"), 7),
        (Payload(1, ([{"role": "user"}], "abc"), b"12345"), 12),
        (7, 0),
        (None, 0),
    ],
)
def test_bytes_of_a_payload(payload: object, size: int) -> None:
    assert bytes_of(payload) == size
