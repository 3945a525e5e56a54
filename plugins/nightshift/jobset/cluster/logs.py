"""Reads the log of every container life to its end, several at once, each line once, whatever breaks in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.jobset.cluster.aio import AsyncJobSetApi
from nightshift.jobset.cluster.pods import Life, lives
from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable

STREAMS_MAX: Final = 64
"""Logs that are read at once; each holds a connection. Those of further containers are read when one ends."""
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
TRIES_AFTER_END: Final = 4
"""How often the log of a container that has ended is asked for when its node does not answer."""
SLACK_S: Final = 10.0
"""How much younger than now a line can be that has not arrived yet."""

Sink = Callable[[str, str, str], None]


class Logs:
    """sink: gets (pod, container, line). warn: a logger's method for what a person should know. lines: how many have come."""

    def __init__(self, sink: Sink, warn: Callable[..., Any]) -> None:
        self.lines = 0
        self._sink = sink
        self._warn = warn
        self._begin: str | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running: dict[str, bool] = {}
        self._position: dict[str, str] = {}
        self._done: set[str] = set()
        self._behind: set[str] = set()
        self._fresh = False
        self._streams = asyncio.Semaphore(STREAMS_MAX)

    def begin_at(self, moment: str) -> None:
        """Lines up to this time are in the task's log already. The first call counts."""
        if self._begin is None:
            self._begin = moment

    def update(self, api: AsyncJobSetApi, pod: Mapping[str, Any]) -> None:
        """Starts to read what of this pod is not being read."""
        for life in lives(pod):
            self._running[life.id] = life.running
            if life.id not in self._done and life.id not in self._tasks:
                self._behind.add(life.id)
                self._tasks[life.id] = asyncio.create_task(self._read(api, pod["metadata"]["name"], life))

    @property
    def quiet(self) -> bool:
        """Whether every log that is known of has been read to its end."""
        return not self._tasks

    def read_until(self) -> str:
        """The time up to which every line is in the log; '' when that is not sure, or nothing has come since the last call."""
        if self._behind or not self._fresh:
            return ""
        self._fresh = False
        return datetime.fromtimestamp(time.time() - SLACK_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def interrupt(self) -> None:
        """Stops reading. What was not read to its end goes on where it was, at the next `update`."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _read(self, api: AsyncJobSetApi, pod: str, life: Life) -> None:
        async with self._streams:
            try:
                await self._read_to_the_end(api, pod, life)
                self._done.add(life.id)
                self._running.pop(life.id, None)
                self._position.pop(life.id, None)
                self._behind.discard(life.id)
            finally:
                self._tasks.pop(life.id, None)

    async def _read_to_the_end(self, api: AsyncJobSetApi, pod: str, life: Life) -> None:
        pause, tries = PAUSE_S, 0
        while True:
            ended_before = not self._running[life.id]
            try:
                since = self._position.get(life.id) or self._begin or ""
                async for moment, line in api.follow_log(pod, life.container, since=since, previous=life.previous):
                    self._position[life.id] = moment
                    self._behind.discard(life.id)
                    self._fresh = True
                    self.lines += 1
                    self._sink(pod, life.container, line)
                    pause, tries = PAUSE_S, 0
                if ended_before:
                    return
                if await self._ends(life):
                    # Whether its end ended the stream, or the stream broke a moment before, shows when one looks again.
                    continue
            except JobSetNotFound:
                return
            except (RuntimeUnavailable, RequestRefused) as error:
                self._behind.add(life.id)
                tries += not self._running[life.id]
                if tries >= TRIES_AFTER_END or (life.previous and isinstance(error, RequestRefused)):
                    self._warn("The log of %s in %s cannot be read to its end: %s", life.container, pod, error)
                    return
                pause = min(pause * 2, PAUSE_MAX_S)
            await asyncio.sleep(pause)

    async def _ends(self, life: Life) -> bool:
        """Whether the container has, whose stream has ended; its status says so in a moment."""
        for _ in range(50):
            if not self._running[life.id]:
                return True
            await asyncio.sleep(0.1)
        return False
