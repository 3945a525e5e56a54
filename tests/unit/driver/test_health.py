"""What a worker makes of an engine that is gone, hangs, or comes back."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from nightshift.driver.backoff import Backoff
from nightshift.driver.engine import Gone
from nightshift.driver.health import UNWELL, EngineBudget, EngineHealth, Losses
from nightshift.driver.stats import Stats

pytestmark = pytest.mark.unit

BROKE = Gone("the connection broke")


class Worker:
    """What has an engine, and what it was told. buried: how many rows each death of the engine makes dead letters of."""

    def __init__(self, buried: int = 0, budget: EngineBudget | None = None, *, engines: int = 1, number: int = 0) -> None:
        self.told: list[str] = []
        self.stats = Stats()
        self._answers: Iterable[bool] = iter(())
        engine: Any = SimpleNamespace(healthy=self._healthy)

        def engine_died(message: str, _status: int | None, engine: int) -> int:
            self._says(f"died: {message}{f' ({engine})' if engine else ''}")
            return buried

        scheduler: Any = SimpleNamespace(engine_died=engine_died)
        self.health = EngineHealth(
            engine,
            scheduler,
            Backoff(random.Random(0), asyncio.Event()),
            self.stats,
            budget or EngineBudget(),
            Losses(engines),
            number=number,
            others_answer=lambda: False,
            spawn=lambda task: asyncio.get_running_loop().create_task(task),
            given_up=lambda: self._says("given up"),
            back=self._back,
            resend=lambda: self._says("resend"),
            resumed=lambda: self._says("resumed"),
        )

    def answers(self, *answers: bool) -> None:
        """What the engine's next health checks find; after these, it is healthy."""
        self._answers = iter(answers)

    async def hangs(self, *then: bool) -> None:
        self.answers(*[False] * UNWELL, *then)
        for _ in range(UNWELL):
            await self.health.look()

    async def loses(self) -> None:
        """A connection breaks, and the engine is gone for a moment."""
        self.answers(False)
        assert not await self.health.alive(BROKE)
        if (recovery := self.health._recovery) is not None:
            await recovery

    async def _healthy(self) -> bool:
        return next(iter(self._answers), True)

    async def _back(self) -> None:
        self._says("back")

    def _says(self, what: str) -> None:
        self.told.append(what)


async def test_a_connection_that_breaks_is_no_death_if_the_engine_lives() -> None:
    worker = Worker()

    assert await worker.health.alive(BROKE)
    assert (worker.told, worker.stats.engine_losses, worker.health.good) == ([], 0, True)


async def test_the_death_of_an_engine_counts_against_the_rows_that_it_had() -> None:
    """The first one, too, and if only one connection breaks."""
    worker = Worker()
    await worker.loses()

    assert worker.told == ["died: the connection broke", "back", "resumed"]
    assert (worker.stats.engine_losses, worker.health.good) == (1, True)


async def test_the_time_without_an_engine_is_counted_while_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()
    seen: list[float] = []
    monkeypatch.setattr(worker.health.patience, "pause", lambda _: asyncio.sleep(0.01))
    answers = iter([False, False, False, False, True])

    async def healthy() -> bool:
        seen.append(worker.stats.engine_wait_s)
        return next(answers)

    monkeypatch.setattr(worker.health.engine, "healthy", healthy)
    assert not await worker.health.alive(BROKE)

    assert seen[:2] == [0, 0], "of the connection, and of the first probe"
    assert 0 < seen[2] < seen[3] < seen[4] <= worker.stats.engine_wait_s < 5


async def test_all_connections_that_break_are_one_death() -> None:
    worker = Worker()
    worker.answers(False)
    await asyncio.gather(*(worker.health.alive(BROKE) for _ in range(3)))

    assert worker.told.count("died: the connection broke") == worker.stats.engine_losses == 1


async def test_an_engine_that_hangs_and_comes_back_has_killed_no_row() -> None:
    worker = Worker()
    await worker.hangs()
    await asyncio.sleep(0)

    assert worker.told == ["back", "resend", "resumed"]


async def test_after_it_hung_its_checks_count_from_the_first_again() -> None:
    worker = Worker()
    await worker.hangs()
    await asyncio.sleep(0)
    worker.answers(*[False] * (UNWELL - 1))
    for _ in range(UNWELL):
        await worker.health.look()

    assert worker.stats.engine_losses == 1


async def test_one_that_is_well_again_in_between_does_not_hang() -> None:
    worker = Worker()
    for _ in range(3):
        worker.answers(*[False] * (UNWELL - 1), True)
        for _ in range(UNWELL):
            await worker.health.look()

    assert (worker.told, worker.stats.engine_losses) == ([], 0)


async def test_one_that_hung_and_died_has_died_once() -> None:
    worker = Worker()
    await worker.hangs(False)
    await asyncio.gather(*(worker.health.alive(BROKE) for _ in range(2)))

    assert worker.told == ["died: the connection broke", "back", "resumed"]
    await worker.loses()
    assert worker.told.count("died: the connection broke") == 2, "the next death counts as ever"


async def test_after_so_many_losses_in_a_row_the_worker_makes_way() -> None:
    worker = Worker(budget=EngineBudget(losses=3))
    await worker.loses()
    await worker.loses()
    worker.health.answered()
    for _ in range(3):
        assert "given up" not in worker.told
        await worker.loses()

    assert worker.told[-1] == "given up"
    assert not worker.health.good, "nothing is sent any more"


async def test_several_engines_may_be_lost_as_often_each() -> None:
    worker = Worker(budget=EngineBudget(losses=3), engines=2, number=1)
    for _ in range(5):
        await worker.loses()

    assert "given up" not in worker.told
    await worker.loses()
    assert worker.told[-1] == "given up"
    assert worker.told[0] == "died: the connection broke (1)"


async def test_one_of_several_that_hung_and_died_is_the_one_that_died() -> None:
    worker = Worker(engines=2, number=1)
    await worker.hangs(False)
    await worker.health.alive(BROKE)

    assert worker.told[0] == "died: the connection broke (1)"


async def test_the_time_without_one_of_several_engines_counts_as_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def waited_s(engines: int) -> float:
        """By a clock that each look at it moves."""
        worker, times = Worker(engines=engines), itertools.count(0, 10)
        monkeypatch.setattr(worker.health.patience, "pause", lambda _: asyncio.sleep(0))
        worker.answers(False, False)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: float(next(times)))
        await worker.health.alive(BROKE)
        if (recovery := worker.health._recovery) is not None:
            await recovery
        return worker.stats.engine_wait_s

    whole = await waited_s(1)
    assert whole >= 10
    assert [await waited_s(engines) for engines in (2, 4)] == [whole / 2, whole / 4]


async def test_a_loss_that_a_dead_letter_explains_is_not_counted() -> None:
    worker = Worker(buried=1, budget=EngineBudget(losses=2))
    for _ in range(5):
        await worker.loses()

    assert "given up" not in worker.told


async def test_an_engine_that_stays_away_is_given_up() -> None:
    worker = Worker(budget=EngineBudget(absent_s=-1))
    worker.answers(False, False)
    await worker.health.alive(BROKE)

    assert worker.told == ["died: the connection broke", "given up"]
