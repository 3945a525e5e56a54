"""What both JobSet triggers do while they wait: follow JobSets, watch their run, and stop at whatever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

Found = TypeVar("Found")


async def first_ending(
    following: Sequence[Coroutine[Any, Any, Found]],
    needed: Coroutine[Any, Any, None] | None,
    note: Callable[[], Awaitable[Any]] | None = None,
) -> tuple[int, Found] | None:
    """The number and the result of the first of `following` to end; None if `needed` ends first. Cancels the others.

    needed: ends when the task has a decision to make. note: called then, while the others still follow.
    """
    tasks = [asyncio.create_task(each) for each in following]
    watching = [asyncio.create_task(needed)] if needed else []
    try:
        await asyncio.wait([*tasks, *watching], return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task.done():
                return number, task.result()
        watching[0].result()
        if note:
            await note()
        return None
    finally:
        for each in (*tasks, *watching):
            each.cancel()
        await asyncio.gather(*tasks, *watching, return_exceptions=True)
