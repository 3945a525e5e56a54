"""P7: a night of 1,000 workers in virtual time: the real worker, ledger and ranges on the simulator's loop and store."""

from __future__ import annotations

import asyncio
import bisect
import gc
import random
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.report import Report, say
from nightshift import exits
from nightshift.driver import request_loop
from nightshift.driver.engine import Load, Replied, SendResult
from nightshift.driver.stats import Stats
from nightshift.driver.worker import Worker, WorkerLimits
from nightshift.planner.sizing import chunk_seconds
from nightshift.run.ledger import Chunks, Ledger
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from tests.simulation.codecs import LightCodec
from tests.simulation.rows import Kept, Kind, Reader, Rows, ordinals_of
from tests.simulation.storage import Bucket, Client, ClientEvents, Effect, Weather
from tests.simulation.virtual import VirtualLoop

RUN: Final = RunRef("job", "2026-11-20", "0123456789abcdef")
CHUNK_ROWS: Final = 6
SLOWEST, FASTEST = 0.7, 1.3
PREEMPTED_AN_HOUR: Final = 0.2
BACK_AFTER_S: Final = 180.0
LATENCY_S: Final = 0.03
METHOD: Final = f"""
The real Worker, Feeder, Ranges, Scheduler, Commits and Ledger of each worker run in virtual time, on the event loop and the
store of `tests/simulation` (30 ms a request, pages of 1,000 names). Each worker's engine computes one row after another at
its own speed, drawn uniformly from 0.7 to 1.3. A chunk is 6 rows and takes as long as
`nightshift.planner.sizing.chunk_seconds` plans for the night ({chunk_seconds(3 * 3600):.0f} s at three hours,
{chunk_seconds(3600):.0f} s at one). Each worker is preempted at random, 0.2 times an hour (exponential): SIGTERM, a real
drain, and a new worker with the same index after 3 minutes on average (exponential). Ideal = work / mean available capacity,
which is the sum over workers of speed x time up, drains included. Waste = what engines computed beyond each row once. It
includes parts of abandoned rows, and what is still being computed when the last chunk is committed. Two things differ from a
real night. The window is 2 rows (one computed, one waiting), and workers do not read the engine's load. LISTs of more than
1,000 names copy the truth after the time that their pages take, without parsing each name again (`WholeLedger`): the parsing
alone would take an hour on this machine.
"""


class Night(VirtualLoop):
    """A loop that keeps no finished tasks and counts no steps: a night has too many."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(deadline=48 * 3600.0, thread_delays=lambda: (rng.uniform(0, 0.05), rng.uniform(0, 0.05)))
        self.steps = -(10**15)

    def _make_task(self, loop: object, coro: object, **options: object) -> asyncio.Task[object]:
        return asyncio.Task(coro, loop=self, **options)  # type: ignore[arg-type]

    def close_all(self) -> None:
        self._tasks = list(asyncio.all_tasks(self))
        super().close_all()


@dataclass
class Tally:
    """What happened. computed: in rows; capacity: in row seconds at speed 1."""

    left: int
    truth: Chunks
    computed: float = 0.0
    capacity: float = 0.0
    preemptions: int = 0
    done: asyncio.Future[float] = field(init=False)


class Shelf(Bucket):
    """The simulator's bucket; a page is cut out by its bounds, without looking at each name."""

    def page(self, folder: str, after: str, size: int) -> list[str]:
        names = self._names
        start = bisect.bisect_right(names, after) if after else bisect.bisect_left(names, f"{folder}/")
        return names[start : min(start + size, bisect.bisect_left(names, f"{folder}0"))]


class WholeLedger(Ledger):
    """The ledger, except that a LIST of many thousand names copies what it would find, page by page, instead of parsing it."""

    truth: Chunks

    async def refresh(self, known: Chunks, chunks: range) -> None:
        if len(chunks) <= 1000:
            await super().refresh(known, chunks)
            return
        for start in range(0, len(self.truth._present), 1000):
            # If a name of this page is missing, fewer pages would do: this is never faster than a real LIST.
            await asyncio.sleep(LATENCY_S)
            page = slice(start, start + 1000)
            known._present[page] = self.truth._present[page]


class Engine:
    """Computes one row after the other, each in `row_s` seconds."""

    def __init__(self, loop: Night, tally: Tally, rows: Rows, row_s: float) -> None:
        self._loop = loop
        self._tally = tally
        self._rows = rows
        self._row_s = row_s
        self._queue: deque[tuple[asyncio.Future[SendResult], int]] = deque()
        self._current: tuple[asyncio.Future[SendResult], int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = 0.0

    async def send(self, path: str, body: bytes, *, canary: bool = False, headers: object = None) -> SendResult:
        (ordinal,) = ordinals_of(body)
        reply: asyncio.Future[SendResult] = self._loop.create_future()
        request = (reply, ordinal)
        self._queue.append(request)
        self._fill()
        try:
            return await reply
        except asyncio.CancelledError:
            self._drop(request)
            raise

    async def healthy(self) -> bool:
        return True

    def ask_restart(self) -> None:
        pass

    async def load(self) -> Load | None:
        return None

    def close(self) -> None:
        """The pod is gone."""
        self._queue.clear()
        if self._current is not None:
            self._drop(self._current)

    def under_way(self) -> float:
        """The part of a row that is being computed."""
        return (self._loop.time() - self._began) / self._row_s if self._current else 0.0

    def _fill(self) -> None:
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._began = self._loop.time()
            self._timer = self._loop.call_later(self._row_s, self._finish)

    def _finish(self) -> None:
        assert self._current is not None
        reply, ordinal = self._current
        self._current = None
        self._tally.computed += 1
        if not reply.done():
            reply.set_result(Replied([self._rows.prediction(ordinal)]))
        self._fill()

    def _drop(self, request: tuple[asyncio.Future[SendResult], int]) -> None:
        if self._current is request:
            assert self._timer is not None
            self._timer.cancel()
            self._tally.computed += self.under_way()
            self._current = None
            self._fill()
        elif request in self._queue:
            self._queue.remove(request)


class World:
    """All workers of one night."""

    def __init__(self, workers: int, hours: float, seed: int) -> None:
        chunk_s = chunk_seconds(hours * 3600)
        chunks = round(workers * hours * 3600 / chunk_s)
        self.row_s = chunk_s / CHUNK_ROWS
        rows = chunks * CHUNK_ROWS
        self._rng = random.Random(seed)
        self.loop = Night(random.Random(seed + 1))
        self.plan = Plan(RUN.run_id, rows, CHUNK_ROWS, workers, (InputFile("inputs/a.parquet", rows, (rows,), 1, "e"),))
        self.rows = Rows(rows, {})
        self.tally = Tally(chunks, Chunks(chunks))
        self._speeds = [self._rng.uniform(SLOWEST, FASTEST) for _ in range(workers)]
        self._bucket = Shelf()
        self._bucket.observe = self._arrived
        self._prefix = f"{RUN.prefix}/ledger/chunk-"
        self._up: dict[int, tuple[float, Engine]] = {}
        self._pods = 0

    async def run(self) -> float:
        """The makespan in seconds."""
        self.tally.done = self.loop.create_future()
        for index in range(self.plan.workers):
            self.loop.call_later(self._rng.uniform(0, 5), self._start, index)
        makespan = await self.tally.done
        for index in list(self._up):
            self.tally.computed += self._up[index][1].under_way()
            self._count(index)
        return makespan

    def _arrived(self, effect: Effect, _: bytes) -> None:
        self._bucket.effects.clear()
        if effect.won and effect.path.startswith(self._prefix):
            self.tally.truth.add(int(effect.path[len(self._prefix) : len(self._prefix) + 8]))
            self.tally.left -= 1
            if not self.tally.left:
                self.tally.done.set_result(effect.time)

    def _start(self, index: int) -> None:
        self._pods += 1
        name = f"{index}.{self._pods}"
        engine = Engine(self.loop, self.tally, self.rows, self.row_s / self._speeds[index])
        client = Client(self.loop, self._bucket, lambda: WEATHER, random.Random(f"{name} store"), name, ClientEvents())
        ledger = WholeLedger(client, RUN, self.plan)
        ledger.truth = self.tally.truth
        kept = Kept()
        worker = Worker(
            plan=self.plan,
            index=index,
            ledger=ledger,
            reader=Reader(self.plan, self.rows, lambda: 0.0, random.Random(name), kept, lambda _: None),
            kind=Kind(self.rows, 1, kept),
            engines=[engine],
            codec=LightCodec(RUN.run_id, name),
            carried=("id",),
            attempt=name,
            limits=WorkerLimits(window_start=2, window_most=2),
            rng=random.Random(f"{name} worker"),
            stats=Stats(),
        )
        self._up[index] = (self.loop.time(), engine)
        timer = self.loop.call_later(self._rng.expovariate(PREEMPTED_AN_HOUR / 3600), self._preempt, worker)
        self.loop.create_task(self._life(index, worker, engine, timer))

    def _preempt(self, worker: Worker) -> None:
        self.tally.preemptions += 1
        worker.drain()

    async def _life(self, index: int, worker: Worker, engine: Engine, timer: asyncio.TimerHandle) -> None:
        code = await worker.run()
        timer.cancel()
        engine.close()
        self._count(index)
        if code != exits.DONE:
            self.loop.call_later(self._rng.expovariate(1 / BACK_AFTER_S), self._start, index)

    def _count(self, index: int) -> None:
        """Adds the time that a worker was up."""
        since, _ = self._up.pop(index)
        self.tally.capacity += (self.loop.time() - since) * self._speeds[index]


WEATHER: Final = Weather(latency_s=LATENCY_S)


def measure(report: Report, folder: Path, quick: bool) -> None:
    nights = [(60, 0.5)] if quick else [(1000, 1.0), (1000, 3.0)]
    for workers, hours in nights:
        began = time.monotonic()
        makespan, ideal, waste, preemptions = simulate(workers, hours, seed=7)
        name = f"{workers:,} workers, {hours:g} h"
        ratio = makespan / ideal
        report.add(f"makespan / ideal, {name}", f"{ratio:.4f}", "<= 1.05", ratio <= 1.05)
        report.add(f"waste, {name}", f"{waste:.2%}", "< 2%", waste < 0.02)
        report.note(
            f"{name}: makespan {makespan:,.0f} s, ideal {ideal:,.0f} s, {preemptions:,} preemptions, seed 7; "
            f"simulated in {time.monotonic() - began:.0f} s"
        )


def simulate(workers: int, hours: float, seed: int) -> tuple[float, float, float, int]:
    """(makespan, ideal) in virtual seconds, waste as a share of the rows, preemptions."""
    watch, request_loop.WATCH_S = request_loop.WATCH_S, 60.0  # type: ignore[misc]
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
    world = World(workers, hours, seed)
    asyncio.set_event_loop(world.loop)
    try:
        makespan = world.loop.run_until_complete(world.run())
    finally:
        world.loop.close_all()
        request_loop.WATCH_S = watch  # type: ignore[misc]
        gc.set_threshold(700, 10, 10)
        asyncio.set_event_loop(None)
    tally = world.tally
    say(f"{workers} workers, {hours} h: computed {tally.computed:,.0f} of {world.plan.rows:,} rows")
    work = world.plan.rows * world.row_s
    return makespan, work / (tally.capacity / makespan), tally.computed / world.plan.rows - 1, tally.preemptions
