"""Commits finished chunks in the background, and saves unfinished ones when the worker must stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from nightshift.driver.backoff import Backoff
from nightshift.driver.budget import ByteBudget
from nightshift.driver.codec import dead_reasons
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.stats import Stats
from nightshift.run.chunks import Saved
from nightshift.run.ledger import Ledger
from nightshift.store import StoreUnavailable

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
WAITING_MOST: Final = 8
"""Finished chunks that may wait for the store. With more, no chunk is opened, so an outage does not fill the memory."""
WAITING_BYTES: Final = 64 << 20
"""The same in bytes of their answers."""
ENCODED_BYTES: Final = 64 << 20
"""Answers that are encoded and stored at once; a chunk that has more goes alone."""


class Codec(Protocol):
    """`nightshift.driver.codec.ParquetCodec`, or a lighter one in the simulator."""

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes: ...

    def decode(self, body: bytes, chunk: int, first: int, keys: pa.Table) -> Saved: ...

    def first_answered(self, body: bytes, rows: int | None = None) -> int | None: ...


@dataclass(eq=False)
class Commits:
    """The commits in progress of one worker.

    ended(chunk, ours): called when the chunk is in the ledger, written by this worker or by another. failed(number, error):
    called when the chunk can neither be encoded nor committed here: for an unforeseen reason, and the next attempt then does
    it, or ChunkRefused.
    given_up(error): called when the store did not take a chunk in time, or refuses it. changed(): called after each of them.
    """

    ledger: Ledger
    codec: Codec
    attempt: str
    patience: Backoff
    stats: Stats
    _: KW_ONLY
    ended: Callable[[OpenChunk, bool], None]
    failed: Callable[[int, BaseException], object]
    given_up: Callable[[StoreUnavailable], None]
    changed: Callable[[], None]
    _slots: asyncio.Semaphore = field(init=False, default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _encoded: ByteBudget = field(init=False, default_factory=lambda: ByteBudget(ENCODED_BYTES))
    _running: dict[int, asyncio.Task[None]] = field(init=False, default_factory=dict)
    _bytes: dict[int, int] = field(init=False, default_factory=dict)

    @property
    def idle(self) -> bool:
        return not self._running

    @property
    def crowded(self) -> bool:
        return len(self._running) >= WAITING_MOST or self.answer_bytes >= WAITING_BYTES

    @property
    def answer_bytes(self) -> int:
        """Bytes of the answers in the chunks that wait."""
        return sum(self._bytes.values())

    def start(self, chunk: OpenChunk, keys: pa.Table) -> None:
        """Commits a finished chunk in the background."""
        self._bytes[chunk.number] = chunk.answer_bytes
        self._run(chunk.number, self._commit(chunk, keys))

    def lost(self, chunk: OpenChunk) -> None:
        """Another worker has committed a chunk that was open here: notes in the background what was computed for nothing."""
        self._run(chunk.number, self._note(chunk, ours=False))

    def _run(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running[number] = task
        task.add_done_callback(lambda done: self._finish(number, done))

    async def end(self, deadline: float) -> None:
        """Waits for commits in progress until `deadline` (the loop's time), then cancels them."""
        tasks = list(self._running.values())
        await _all_until(tasks, deadline)

    async def save(self, unfinished: list[tuple[OpenChunk, pa.Table]], deadline: float) -> None:
        """Saves the finished rows of open chunks as partials, as many as the store takes until `deadline`."""
        loop = asyncio.get_running_loop()
        await _all_until([loop.create_task(self._save(chunk, keys)) for chunk, keys in unfinished], deadline)

    async def _commit(self, chunk: OpenChunk, keys: pa.Table) -> None:
        async with self._slots, self._encoded.hold(chunk.answer_bytes):
            body = await asyncio.to_thread(self.codec.encode, chunk, keys)
            try:
                ours = await self.patience.outlast(lambda: self.ledger.commit(chunk.number, body), f"chunk {chunk.number}")
            except StoreUnavailable as error:
                self.given_up(error)
                return
        if ours:
            self.stats.chunks_committed += 1
            self.stats.bytes_committed += len(body)
        self.ended(chunk, ours)
        log.info("committed", extra={"fields": {"chunk": chunk.number, "rows": chunk.expected, "first_writer": ours}})
        await self._note(chunk, ours)

    async def _note(self, chunk: OpenChunk, ours: bool) -> None:
        """Notes what became of the chunk. Even if that fails, the chunk is done."""
        if not ours:
            self.stats.chunks_lost += 1
            self.stats.rows_lost += chunk.computed
        try:
            if not ours and chunk.computed:
                await self.ledger.note_lost(chunk.number, self.attempt, chunk.computed)
            elif ours and (reasons := dead_reasons(chunk)):
                await self.ledger.note_dead(chunk.number, reasons)
        except StoreUnavailable as error:
            log.warning("note not saved", extra={"fields": {"chunk": chunk.number, "error": str(error)}})

    def _finish(self, number: int, task: asyncio.Task[None]) -> None:
        del self._running[number]
        self._bytes.pop(number, None)
        if not task.cancelled() and (error := task.exception()):
            # The worker will ask to be resumed; the other chunks continue.
            log.error("commit failed", exc_info=error, extra={"fields": {"chunk": number}})
            self.failed(number, error)
        self.changed()

    async def _save(self, chunk: OpenChunk, keys: pa.Table) -> None:
        async with self._encoded.hold(chunk.answer_bytes):
            body = await asyncio.to_thread(self.codec.encode, chunk, keys)
            await self.patience.outlast(
                lambda: self.ledger.save_partial(chunk.number, self.attempt, body), f"partial of chunk {chunk.number}"
            )
        log.info("partial saved", extra={"fields": {"chunk": chunk.number, "rows": chunk.computed}})


async def _all_until(tasks: list[asyncio.Task[None]], deadline: float) -> None:
    if not tasks:
        return
    await asyncio.wait(tasks, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
    for task in tasks:
        if not task.done():
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.error("save failed", extra={"fields": {"error": str(error)}})
