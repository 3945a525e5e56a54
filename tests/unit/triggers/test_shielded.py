"""Work that goes on when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from nightshift.triggers.shielded import run_shielded

pytestmark = pytest.mark.unit
LOG = logging.getLogger(__name__)


async def test_who_waits_hears_of_the_end() -> None:
    ended = []

    async def work() -> None:
        await asyncio.sleep(0)
        ended.append(True)

    await run_shielded(work(), LOG)

    assert ended


async def test_it_goes_on_when_who_waits_is_cancelled_as_often_as_that_may_be() -> None:
    begun, go, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await go.wait()
        ended.set()

    async def trigger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await run_shielded(work(), LOG)

    waiting = asyncio.create_task(trigger())
    await asyncio.sleep(0)
    waiting.cancel()
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not ended.is_set()

    go.set()
    await asyncio.wait_for(ended.wait(), 10)


async def test_an_error_reaches_the_log_when_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    go, ends = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        ends.set()
        raise ValueError("of no use")

    waiting = asyncio.create_task(run_shielded(work(), LOG))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await ends.wait()
    gc.collect()

    assert caplog.messages == ["ValueError: of no use"]


async def test_an_error_reaches_who_waits() -> None:
    async def work() -> None:
        raise ValueError("of no use")

    with pytest.raises(ValueError, match="of no use"):
        await run_shielded(work(), LOG)
