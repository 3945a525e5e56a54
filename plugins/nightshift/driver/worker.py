"""The asynchronous shell: keeps the engines busy, commits finished chunks, and drains on a signal.

A feeder opens chunks ahead of need; the pump keeps as many rows in flight as the window allows, over all open chunks (no
barrier between them). Time is the event loop's, randomness comes from `rng`, and store and engine are passed in, so a simulator
can run this code unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nightshift import exits
from nightshift.driver.backoff import Backoff
from nightshift.driver.codec import ChunkRefused
from nightshift.driver.commits import Codec, Commits
from nightshift.driver.drain import DRAIN_IN_FLIGHT_S, DRAIN_SAVED_S
from nightshift.driver.feeder import Feeder, Opened, Reader, names_of, rows_of
from nightshift.driver.health import EngineLike
from nightshift.driver.known_good_rows import Completed, recalled
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.request_loop import Life, RequestLoop, RequestLoopCallbacks, RequestLoopLimits
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.stats import Stats
from nightshift.driver.work_stealing import Ranges
from nightshift.fields.text import n
from nightshift.run import tolerance
from nightshift.run.chunks import Saved
from nightshift.run.ledger import Chunks, Ledger
from nightshift.run.plan import Plan
from nightshift.store import StoreRefused, StoreUnavailable
from nightshift.tasks.base import TaskKind

if TYPE_CHECKING:
    from nightshift.driver.traces import RequestTraces

log = logging.getLogger(__name__)

PROGRESS_S: Final = 10.0
CHECKS_A_CHUNK: Final = 4
CHECK_S: Final = (1.0, 10.0)
"""While helping, a worker checks the ledger this often per chunk, within these limits: two may compute the same chunk, and
the sooner one of them stops the better. An owner checks a third as often."""

ANSWER_BYTES: Final = 128 << 20
"""If the open chunks will have this many bytes of answers, with those that wait for the store, no further chunk is opened."""

BUFFER_BYTES: Final = 256 << 20
"""Of input rows, if nothing else is said."""


@dataclass(frozen=True)
class WorkerLimits(RequestLoopLimits):
    """buffer_bytes: input rows held at once, one chunk at least.

    dead_letters: how many the whole run may have; None if this worker does not judge.
    """

    buffer_bytes: int = BUFFER_BYTES
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class _Input:
    """What is kept of an open chunk's input. carried: the columns that its file has, too. size: bytes of all its columns.

    opened: when (the loop's time).
    """

    carried: pa.Table
    size: int
    opened: float


@dataclass(eq=False, kw_only=True)
class Worker:
    """One attempt. index: the home shard; None for a worker that only helps.

    carried: the input's columns that a chunk has, too. named_by: those of them that a row's seed comes from; none: no seeds.

    completed: the runs that the run completes, if it is a redo.
    """

    plan: Plan
    index: int | None
    ledger: Ledger
    reader: Reader
    kind: TaskKind
    engines: Sequence[EngineLike]
    codec: Codec
    carried: tuple[str, ...]
    named_by: tuple[str, ...] = ()
    completed: Completed | None = None
    attempt: str
    limits: WorkerLimits
    rng: random.Random
    stats: Stats
    traces: RequestTraces | None = None
    dead_letters: int | None = field(init=False, default=None)
    """Of committed chunks, once this worker has counted them."""

    def __post_init__(self) -> None:
        self._helper = self.index is None
        self._stop, self._changed = asyncio.Event(), asyncio.Event()
        self._patience = Backoff(self.rng, self._stop)
        self._life = Life()
        self._ranges = Ranges(self.plan, self.index, Chunks(self.plan.chunk_count), self.rng)
        self._scheduler = Scheduler(self.kind, self.traces.judged if self.traces else None)
        self._feeder = Feeder(
            self._ranges,
            self.ledger,
            self.reader,
            self.codec,
            self._patience,
            self.stats,
            carried=list(self.carried),
            news=self._drop_what_others_did,
        )
        self._commits = Commits(
            self.ledger,
            self.codec,
            self.attempt,
            self._patience,
            self.stats,
            ended=self._ended,
            failed=self._failed,
            given_up=self._store_given_up,
            changed=lambda: self._pump.run(),
        )
        self._pump = self._make_pump()
        self._inputs: dict[int, _Input] = {}
        self._chunk_s = 0.0

    def _make_pump(self) -> RequestLoop:
        return RequestLoop(
            self.kind,
            self.engines,
            self._scheduler,
            self.limits,
            self._patience,
            self.stats,
            RequestLoopCallbacks(
                recall=lambda: recalled(self.kind, self._feeder, self._scheduler, self._pump.sender, self.completed),
                back=lambda: self._feeder.look_around(self._scheduler.open_numbers()),
                moved=self._moved,
                given_up=self.drain,
                spawn=self._life.spawn,
                traces=self.traces,
            ),
        )

    @property
    def committed(self) -> Chunks:
        """Committed chunks of the run, as far as this worker needs to know: of its home range all."""
        return self._ranges.committed

    def drain(self) -> None:
        """From now on it sends nothing more, saves what is finished and returns. Calling it again is harmless."""
        if not self._stop.is_set():
            log.info("draining", extra={"fields": self._scheduler.statistics()})
        self._send_no_more()
        self._life.end()

    def _store_given_up(self, error: StoreUnavailable) -> None:
        if isinstance(error, StoreRefused):
            self._life.end(error)
        else:
            self.drain()

    def _send_no_more(self) -> None:
        self._pump.send_no_more()
        self._changed.set()

    async def run(self) -> int:
        """Works until everything is committed or the worker must stop; returns the exit code.

        Raises errors that a retry cannot fix: InputChanged, WrongEngine, WrongModel, ForeignObject, ToleranceExceeded,
        StoreRefused, ChunkRefused.
        """
        loop = asyncio.get_running_loop()
        parts = (self._feed(), *self._pump.watches(), self._keep_house(), self._report())
        try:
            await self._life.lead(*parts, ended=self._stop.is_set(), last=self._send_no_more)
        finally:
            # Whatever ended the work, finished rows must not be lost.
            began = loop.time()
            await self._pump.land(began + DRAIN_IN_FLIGHT_S)
            unfinished = [(chunk, self._inputs[chunk.number].carried) for chunk in self._scheduler.unfinished()]
            saving = self._life.spawn(self._commits.save(unfinished, began + DRAIN_SAVED_S))
            await self._commits.end(began + DRAIN_SAVED_S)
            await saving
            self._log_progress("stopped" if self._work_left else "done")
        return exits.RESUME if self._work_left else exits.DONE

    @property
    def _work_left(self) -> bool:
        """A helper's work is the whole run, an owner's its home range."""
        return not (self._ranges.all_committed if self._helper else self._ranges.home_committed)

    async def _feed(self) -> None:
        """Keeps the next chunk ready for when the open ones have sent their last row."""
        await self._feeder.look_again(self._ranges.home)
        home, left = self._ranges.home, self._ranges.committed.count_missing(self._ranges.home)
        log.info("resumed", extra={"fields": {"home_chunks": len(home), "open_chunks": left}})
        while True:
            opened = await self._feeder.next_chunk()
            if opened is None:
                if self._scheduler.idle and self._commits.idle:
                    break
                # All that is left is open here; another worker may still commit some of it.
                await self._wait_for_change()
                continue
            if not self._room_for(opened):
                while not self._room_for(opened) and opened.number not in self._ranges.committed:
                    await self._wait_for_change()
                await self._feeder.look_again(range(opened.number, opened.number + 1))
            saved = {} if opened.number in self._ranges.committed else await self._feeder.saved(opened)
            if opened.number in self._ranges.committed:
                self._ranges.closed(opened.number)
            else:
                self._open(opened, saved)
        self._life.end()

    def _room_for(self, opened: Opened) -> bool:
        held = sum(each.size for each in self._inputs.values())
        answers = self._scheduler.answer_bytes + self._commits.answer_bytes
        return (
            self._scheduler.hungry
            and not self._commits.crowded
            and not self._pump.crowded
            and (held == 0 or held + opened.table.nbytes <= self.limits.buffer_bytes)
            and answers < ANSWER_BYTES
        )

    def _open(self, opened: Opened, known: dict[str, Saved]) -> None:
        number, table = opened.number, opened.table
        opened_at = asyncio.get_running_loop().time()
        self._inputs[number] = _Input(table.select(list(self.carried)), table.nbytes, opened_at)
        ordinals = self.plan.chunk_range(number)
        names = names_of(table.select(list(self.named_by)), ordinals) if self.named_by else None
        self._scheduler.open_chunk(number, ordinals, rows_of(table, self.kind.columns), known, names)
        self.stats.rows_from_partials += sum(len(saved.results) for saved in known.values())
        self._pump.run()

    def _moved(self) -> None:
        """Commits what is finished."""
        while (chunk := self._scheduler.pop_finished()) is not None:
            # Those of earlier attempts are counted as taken from partials.
            dead = [
                result for ordinal, result in chunk.results.items() if result.reason is not None and ordinal not in chunk.theirs
            ]
            self.stats.rows_dead += len(dead)
            self.stats.dead.update(str(result.reason) for result in dead)
            self._commits.start(chunk, self._inputs[chunk.number].carried)
        self.stats.chunks_open = len(self._inputs)
        self._changed.set()

    def _ended(self, chunk: OpenChunk, ours: bool) -> None:
        """The chunk is in the ledger."""
        self._chunk_s = asyncio.get_running_loop().time() - self._inputs[chunk.number].opened
        self._ranges.committed.add(chunk.number)
        self._ranges.closed(chunk.number)
        del self._inputs[chunk.number]
        if not ours:
            self._ranges.lost(chunk.number)

    def _failed(self, chunk: int, error: BaseException) -> None:
        """It stays open, so it is not chosen again here, but nothing of it is kept."""
        self._inputs.pop(chunk, None)
        if isinstance(error, ChunkRefused):
            self._life.end(error)

    async def _keep_house(self) -> None:
        """Follows what others commit, and stops the worker early if the run has too many dead letters."""
        least, most = CHECK_S
        while True:
            # Random, so that a thousand workers do not list the ledger at once.
            every_s = min(max(self._chunk_s / CHECKS_A_CHUNK, least), most) * (1 if self._feeder.helping else 3)
            await asyncio.sleep(self.rng.uniform(0.7, 1.3) * every_s)
            await self._feeder.look_around(self._scheduler.open_numbers())
            await self._judge()

    def _drop_what_others_did(self) -> None:
        """Drops open chunks that another worker has committed."""
        for number in self._scheduler.open_numbers():
            if number in self._ranges.committed and (chunk := self._scheduler.abandon(number)) is not None:
                log.info("committed elsewhere", extra={"fields": {"chunk": number, "rows": len(chunk.results)}})
                self._ranges.lost(number)
                self._ranges.closed(number)
                del self._inputs[number]
                self._commits.lost(chunk)
                self._pump.call_back_chunk(number)
        self._pump.run()

    async def _judge(self) -> None:
        allowed = self.limits.dead_letters
        if allowed is None:
            return
        noted = await self._patience.outlast(lambda: self.ledger.dead_letters_noted(allowed), "dead letters")
        self.dead_letters = noted
        tolerance.judge(noted, allowed, f"committed chunks already have {n(noted, 'dead letter')} or more")

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._log_progress("progress")

    def _log_progress(self, message: str) -> None:
        log.info(message, extra={"fields": {**self.stats.snapshot(), **self._scheduler.statistics()}})
