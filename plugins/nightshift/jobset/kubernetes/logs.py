"""Reads the log of every container life to its end, several at once, each line once, even if connections break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.kubernetes.log_slots import Streams
from nightshift.jobset.kubernetes.pods import Life, container_lives
from nightshift.jobset.observation import moment
from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable
from nightshift.jobset.verdict.last_words import Words

PAUSE_S: Final = 0.1
"""Before a broken stream is opened again, doubled each time. Short at first: a deleted pod takes its log with it."""
PAUSE_MAX_S: Final = 30.0
TRIES_AFTER_END: Final = 4
"""How often to ask for the log of a container that has ended when its node does not answer."""
SPOKEN_MOST: Final = 200
"""Containers of which the last lines are kept."""
SLACK_S: Final = 10.0
"""A line may arrive this late."""

Sink = Callable[[str, str, str], None]


class Logs:
    """A log is followed while its container runs if a stream is free for it; else it is read when the container ends.

    sink: gets (pod, container, line). warn: a logger's method for warnings. streams: shared with others; None:
    with everything in the event loop. lines: how many have come.
    """

    def __init__(self, sink: Sink, warn: Callable[..., Any], streams: Streams | None = None) -> None:
        self.lines = 0
        self._given = streams
        self._sink = sink
        self._warn = warn
        self._begin: str | None = None
        self._api: AsyncJobSetApi | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, tuple[str, Life]] = {}
        self._running: dict[str, bool] = {}
        self._position: dict[str, str] = {}
        self._done: set[str] = set()
        self._behind: set[str] = set()
        self._fresh = False
        self._warned = False
        self._spoken: dict[tuple[str, str], Words] = {}

    @cached_property
    def _streams(self) -> Streams:
        return self._given or Streams.here()

    def begin_at(self, moment: str) -> None:
        """Lines up to this time are already in the task's log. Only the first call counts."""
        if self._begin is None:
            self._begin = moment

    def update(self, api: AsyncJobSetApi, pod: Mapping[str, Any]) -> None:
        """Starts reading the logs of this pod that are not being read yet. api: for all logs opened from now on."""
        self._api = api
        name, leaves = pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]
        for life in container_lives(pod):
            self._running[life.id] = life.running
            if life.id in self._done or life.id in self._tasks:
                continue
            self._behind.add(life.id)
            if life.running and not leaves:
                self._waiting[life.id] = (name, life)
            else:
                self._waiting.pop(life.id, None)
                self._start(name, life, ending=True)
        self._fill()
        if self._waiting and not self._warned:
            self._warned = True
            self._warn(
                "More containers run than logs can be followed at once: the other logs are copied when their containers end"
            )

    def spoken(self, pod: str, container: str) -> Words | None:
        """The end of a container's log; of the life that last gave a cause, if one has."""
        return self._spoken.get((pod, container))

    @property
    def quiet(self) -> bool:
        """Whether every known log has been read to its end."""
        return not self._tasks and not self._waiting

    def read_until(self) -> str:
        """The time up to which every line is in the log; '' if that is not certain, or nothing has come since the last call."""
        if self._behind or not self._fresh:
            return ""
        self._fresh = False
        return moment(time.time() - SLACK_S)

    async def interrupt(self) -> None:
        """Stops reading. The next `update` continues unfinished logs where they stopped."""
        self._waiting.clear()
        self._streams.forget(self._fill)
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    def _fill(self) -> None:
        while self._waiting and self._streams.take(self._fill):
            self._start(*self._waiting.pop(next(iter(self._waiting))), ending=False)

    def _start(self, pod: str, life: Life, *, ending: bool) -> None:
        def over(task: asyncio.Task[None]) -> None:
            if self._tasks.get(life.id) is task:
                del self._tasks[life.id]
            if not ending:
                self._streams.give(self._fill)

        task = self._tasks[life.id] = asyncio.create_task(self._read(pod, life, ending=ending))
        # A callback, because a task cancelled before its first step runs no `finally`.
        task.add_done_callback(over)

    async def _read(self, pod: str, life: Life, *, ending: bool) -> None:
        async with self._streams.ending if ending else nullcontext():
            await self._read_to_the_end(pod, life)
        self._done.add(life.id)
        self._running.pop(life.id, None)
        self._position.pop(life.id, None)
        self._behind.discard(life.id)

    async def _read_to_the_end(self, pod: str, life: Life) -> None:
        pause, tries, ended = PAUSE_S, 0, False
        words = Words()
        while True:
            ended_before = not self._running[life.id]
            try:
                since = self._position.get(life.id) or self._begin or ""
                assert self._api is not None
                async for moment, line in self._api.follow_log(pod, life.container, since=since, previous=life.previous):
                    self._position[life.id] = moment
                    self._behind.discard(life.id)
                    self._fresh = True
                    self.lines += 1
                    self._sink(pod, life.container, line)
                    self._hear(words, pod, life.container, line)
                    pause, tries = PAUSE_S, 0
                if ended_before:
                    return
                if ended := await self._ends(life):
                    # The stream ended with the container, or broke a moment before: another try shows which.
                    continue
            except JobSetNotFound:
                if not ended:
                    self._warn(
                        "Pod %s was deleted before all of the log of %s was read: lines may be missing", pod, life.container
                    )
                return
            except (RuntimeUnavailable, RequestRefused) as error:
                ended = False
                self._behind.add(life.id)
                tries += not self._running[life.id]
                if tries >= TRIES_AFTER_END or (life.previous and isinstance(error, RequestRefused)):
                    self._warn("The log of %s in %s could not be read to its end: %s", life.container, pod, error)
                    return
                pause = min(pause * 2, PAUSE_MAX_S)
            await asyncio.sleep(pause)

    def _hear(self, words: Words, pod: str, container: str, line: str) -> None:
        words.add(line)
        if words.cause or (pod, container) not in self._spoken:
            self._spoken.pop((pod, container), None)
            self._spoken[pod, container] = words
            if len(self._spoken) > SPOKEN_MOST:
                self._spoken.pop(next(iter(self._spoken)))

    async def _ends(self, life: Life) -> bool:
        """Whether the container of an ended stream has ended too; its status shows that within moments."""
        for _ in range(50):
            if not self._running[life.id]:
                return True
            await asyncio.sleep(0.1)
        return False
