"""How long a worker or a subscriber works: until it is told to end, or one of its tasks fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Life:
    """One life, and the tasks that it is made of."""

    def __init__(self) -> None:
        self._over: asyncio.Future[None] | None = None

    def begin(self, *, ended: bool) -> None:
        """ended: it was told to end before it began."""
        self._over = asyncio.get_running_loop().create_future()
        if ended:
            self._over.set_result(None)

    async def to_its_end(self) -> None:
        """Waits until it ends. Raises what ended it."""
        assert self._over is not None, "begin comes first"
        await self._over

    def spawn(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose failure ends this life."""
        task = asyncio.get_running_loop().create_task(part)
        task.add_done_callback(self._spawned_ended)
        return task

    def end(self, error: BaseException | None = None) -> None:
        """Ends it, with an error or without. Only the first call counts."""
        if self._over is None or self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)

    def _spawned_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.end(error)
