"""Polling: outages are waited out, a deadline is kept, everything else passes through."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import pytest

from nightshift.triggers import polling
from nightshift.triggers.polling import DeadlinePassed, poll

pytestmark = pytest.mark.unit

LOG = logging.getLogger("test")


class OutOfReach(Exception):
    pass


def asking(*answers: str | Exception) -> Callable[[], str]:
    """Gives these answers one after another; the last one for ever."""
    rest: Iterator[str | Exception] = iter(answers)

    def ask() -> str:
        answer = next(rest, answers[-1])
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


async def polled(ask: Callable[[], str], seconds: float = 60) -> str:
    return await poll(
        ask,
        final=lambda answer: answer == "done",
        interval_s=0.001,
        deadline=time.time() + seconds,
        unavailable=OutOfReach,
        log=LOG,
        settle_s=0,
    )


async def test_it_asks_until_the_answer_is_final() -> None:
    assert await polled(asking("at work", "at work", "done")) == "done"


async def test_an_outage_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert await polled(asking("at work", OutOfReach("no route"), OutOfReach("no route"), "at work", "done")) == "done"

    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


async def test_the_deadline_ends_the_wait_for_work() -> None:
    with pytest.raises(DeadlinePassed):
        await polled(asking("at work"), seconds=0.02)


async def test_the_deadline_ends_an_outage() -> None:
    with pytest.raises(DeadlinePassed):
        await polled(asking(OutOfReach("no route")), seconds=0.02)


async def test_a_final_answer_counts_though_the_deadline_has_passed() -> None:
    assert await polled(asking("done"), seconds=-1) == "done"


async def test_pauses_double_up_to_a_minute_and_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only the pauses move: a real one would take five minutes."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "time", lambda: sum(pauses))

    with pytest.raises(DeadlinePassed):
        await poll(
            asking(OutOfReach("no route")),
            final=bool,
            interval_s=2,
            deadline=300,
            unavailable=OutOfReach,
            log=LOG,
        )

    assert pauses == [polling.SETTLE_S, 4, 8, 16, 32, 60, 60, 60, 50]


async def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError):
        await polled(asking(ZeroDivisionError()))
