"""The heartbeats that an attempt leaves in its run's folder (`nightshift.run.observed.heartbeats`), beside the work.

Nothing here delays the work. A heartbeat that the store does not take is counted and not tried again: the next one, a period
later, says more. The last one, at the end, may take `LAST_S`.

They are the first that an attempt writes, with the right that its chunks need: if the store refuses them for two minutes, the
attempt ends, while its engine starts, before it computes what it cannot keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from nightshift.driver.backoff import Refusals
from nightshift.driver.stats import Stats
from nightshift.run.names import Work
from nightshift.run.observed.heartbeats import Ended, Heartbeat, period_s
from nightshift.store import Objects, StoreRefused

log = logging.getLogger(__name__)

T = TypeVar("T")

WRITE_S: Final = 30.0
"""How long a heartbeat may take."""
LAST_S: Final = 0.8
"""How long the last one may take: after a drain, that is what is left before the process must be gone."""


class Heartbeats:
    """Those of one attempt. birth: what does not change of them; its age is that of the process, now. now: Unix time."""

    def __init__(
        self, objects: Objects, work: Work, birth: Heartbeat, stats: Stats, *, now: Callable[[], float] = time.time
    ) -> None:
        self._objects = objects
        self._work = work
        self._birth = birth
        self._stats = stats
        self._now = now
        self._clock = asyncio.get_running_loop().time
        self._born = self._clock() - birth.age_s
        self._engine_answered: float | None = None
        self._number = 0
        self._not_saved = 0
        self._refusals = Refusals()
        self._refused: asyncio.Future[StoreRefused] = asyncio.get_running_loop().create_future()

    @contextlib.asynccontextmanager
    async def kept(self, ended: Callable[[BaseException | None], Ended]) -> AsyncIterator[None]:
        """Marks the attempt as alive as long as this context is open, and then how it ended. ended: says so of its error."""
        keeping = asyncio.get_running_loop().create_task(self._keep())
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
            raise
        finally:
            keeping.cancel()
            await self._write(ended(failure), LAST_S)

    async def unless_refused(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns. If the store refuses heartbeats meanwhile, the work is cancelled. Raises StoreRefused then."""
        task = asyncio.get_running_loop().create_task(work)
        try:
            either: set[asyncio.Future[Any]] = {task, self._refused}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if task.cancelled():
            raise self._refused.result()
        return task.result()

    def engine_answers(self) -> None:
        """The engine has answered its first health check."""
        self._engine_answered = self._clock()

    async def _keep(self) -> None:
        while True:
            began = self._clock()
            await self._write(None, WRITE_S)
            await asyncio.sleep(max(0.0, began + period_s(began - self._born) - self._clock()))

    async def _write(self, ended: Ended | None, seconds: float) -> None:
        # Never a second try under the same name: the first may have arrived.
        path = self._work.mark_path(self._birth.attempt, self._number)
        self._number += 1
        try:
            async with asyncio.timeout(seconds):
                await self._objects.create(path, self._mark(ended).to_bytes())
            self._refusals.over()
        except Exception as error:
            self._not_saved += 1
            if self._not_saved == 1:
                log.warning("heartbeat not saved", extra={"fields": {"error": f"{type(error).__name__}: {error}"}})
            try:
                self._refusals.judge(error)
            except StoreRefused as refused:
                if not self._refused.done():
                    self._refused.set_result(refused)

    def _mark(self, ended: Ended | None) -> Heartbeat:
        stats, times = self._stats, self._stats.times
        now, age_s = self._now(), self._clock() - self._born
        return replace(
            self._birth,
            age_s=round(age_s, 3),
            born_at=_iso(now - age_s),
            at=_iso(now),
            next_s=0.0 if ended else period_s(age_s),
            ended=ended,
            rows_answered=stats.rows_answered,
            rows_dead=stats.rows_dead,
            rows_from_partials=stats.rows_from_partials,
            rows_lost=stats.rows_lost,
            input_tokens=stats.prompt_tokens,
            output_tokens=stats.output_tokens,
            work_s=round(times.work_s, 3),
            engine_wait_s=round(stats.engine_wait_s, 3),
            start_up_s=self.start_up(),
            not_saved=self._not_saved,
        )

    def start_up(self) -> dict[str, float]:
        """Seconds of the stages that are over (`Heartbeat.start_up_s`)."""
        answered, first = self._engine_answered, self._stats.times.first_request
        if answered is None:
            return {}
        stages = {"weights": round(answered - self._born, 3)}
        return stages if first is None else {**stages, "warm_up": round(max(0.0, first - answered), 3)}


def process_age_s() -> float:
    """Seconds since this process started, imports included; 0 where the kernel does not say (proc_pid_stat(5), field 22)."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
