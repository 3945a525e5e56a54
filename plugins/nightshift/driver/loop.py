"""The asynchronous shell: keeps the engine busy, commits finished chunks, and drains when it is told to stop.

One reader feeds the scheduler, `window` senders keep that many requests in flight over all open chunks (no barrier between
chunks), and finished chunks are encoded and committed beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from nightshift import chunks, exits
from nightshift.chunks import Provenance, Result
from nightshift.driver.engine import Busy, Engine, Failed, Gone, Refused, Replied
from nightshift.driver.reader import InputReader
from nightshift.driver.scheduler import Group, OpenChunk, Scheduler, judge_reply
from nightshift.ledger import Ledger
from nightshift.plan import Plan
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import InvalidReply, Reason, TaskKind

log = logging.getLogger(__name__)

ENGINE_BUDGET_S: Final = 300.0
"""How long an engine may stay away (a restart loads the weights again) before the worker gives its place to a new one."""
ENGINE_LOSSES: Final = 5
"""Times in a row that the engine may vanish without answering a single row in between."""
COMMIT_BUDGET_S: Final = 600.0
COMMITS_AT_ONCE: Final = 4
COMMITS_WAITING: Final = 8
"""Finished chunks that may wait for the store; with more, no further chunk is opened, so that an outage fills no memory."""
BACKOFF_S: Final = 0.5
BACKOFF_MAX_S: Final = 20.0
# A drain has 15 s in all (Spot); these two leave three for the process itself.
DRAIN_IN_FLIGHT_S: Final = 6.0
DRAIN_SAVE_S: Final = 6.0
PROGRESS_S: Final = 10.0


class Worker:
    """One attempt at one shard. `provenance(chunk, chunk's results)` stamps what it commits."""

    def __init__(
        self,
        *,
        plan: Plan,
        index: int,
        ledger: Ledger,
        reader: InputReader,
        kind: TaskKind,
        engine: Engine,
        window: int,
        key_columns: tuple[str, ...],
        attempt: str,
        provenance: Callable[[OpenChunk], Provenance],
    ) -> None:
        self._plan = plan
        self._home = plan.shard(index) if plan.chunk_count else range(0)
        self._ledger = ledger
        self._reader = reader
        self._kind = kind
        self._engine = engine
        self._window = window
        self._key_columns = list(key_columns)
        self._attempt = attempt
        self._provenance = provenance
        self._scheduler = Scheduler(kind)
        self._keys: dict[int, pa.Table] = {}
        self._open: set[int] = set()
        self._feeding = True
        self._commits: set[asyncio.Task[None]] = set()
        self._commit_slots = asyncio.Semaphore(COMMITS_AT_ONCE)
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._engine_lock = asyncio.Lock()
        self._losses = 0
        self._rows_done = 0

    def drain(self) -> None:
        """Tells the worker to send nothing more, save what is finished and return. May be called again; harmless."""
        if not self._stop.is_set():
            log.info("draining", extra={"fields": self._scheduler.statistics()})
        self._stop.set()
        self._changed.set()

    async def run(self) -> int:
        """Works until the home range is committed or the worker must stop; returns the exit code.

        Raises InputChanged and WrongEngine, which no repetition can cure.
        """
        committed = await self._ledger.committed()
        partials = await self._ledger.partials()
        self._open = {chunk for chunk in self._home if chunk not in committed}
        log.info(
            "resumed",
            extra={"fields": {"home_chunks": len(self._home), "open_chunks": len(self._open), "partials": len(partials)}},
        )
        progress = asyncio.create_task(self._report_progress())
        try:
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(self._feed(sorted(self._open), partials))]
                workers += [group.create_task(self._send()) for _ in range(self._window)]
                group.create_task(self._end(workers))
        except ExceptionGroup as errors:
            # Whatever ended the work, rows that are finished are not lost with it.
            self.drain()
            raise errors.exceptions[0] from None
        finally:
            progress.cancel()
            await self._save()
            self._log_progress("stopped" if self._open else "done")
        return exits.RESUME if self._open else exits.DONE

    async def _feed(self, open_chunks: list[int], partials: dict[int, list[str]]) -> None:
        """Opens chunks so that the senders always find a window's worth of groups ready."""
        for chunk in open_chunks:
            rows = await asyncio.to_thread(self._reader.read, chunk)
            known = await self._read_partials(chunk, partials.get(chunk, ()))
            while self._enough_open() and not self._stop.is_set():
                await self._wait_for_change()
            if self._stop.is_set():
                return
            self._keys[chunk] = rows.select(self._key_columns)
            first = self._plan.chunk_range(chunk).start
            self._scheduler.open_chunk(chunk, first, rows.select(self._kind.columns).to_pylist(), known)
            self._collect()
        self._feeding = False
        self._changed.set()

    def _enough_open(self) -> bool:
        return self._scheduler.statistics()["ready_groups"] >= self._window or len(self._commits) >= COMMITS_WAITING

    async def _read_partials(self, chunk: int, paths: list[str] | tuple[()]) -> list[Result]:
        """Rows that earlier attempts saved. A torn or foreign partial is left out: it only saves work."""
        known: list[Result] = []
        for path in paths:
            body = await self._ledger.read_partial(path)
            try:
                table, provenance = chunks.decode(body or b"")
                if (provenance.run_id, provenance.chunk) != (self._plan.run_id, chunk):
                    raise chunks.NotAChunk(f"it is of chunk {provenance.chunk} of run {provenance.run_id}")
                known += chunks.results_of(table)
            except chunks.NotAChunk as error:
                log.warning("partial ignored", extra={"fields": {"path": path, "error": str(error)}})
        return known

    async def _send(self) -> None:
        """One slot of the window: takes a group, sends it, hands its outcome to the scheduler; until there is no more."""
        wait = BACKOFF_S
        while not self._stop.is_set():
            group = self._scheduler.next_group()
            if group is None:
                if not self._feeding and not self._scheduler.statistics()["rows_in_flight"]:
                    return
                await self._wait_for_change()
                continue
            settled = await self._send_one(group)
            self._collect()
            wait = BACKOFF_S if settled else min(wait * 2, BACKOFF_MAX_S)
            if not settled:
                # Full jitter: many slots that failed together must not come back together.
                await self._pause(random.uniform(0, wait))

    async def _send_one(self, group: Group) -> bool:
        """Sends one group; False when the slot should wait before its next try."""
        outcome = await self._engine.send(self._kind.endpoint, self._kind.body(group.payloads))
        if isinstance(outcome, Failed) and not await self._engine.healthy():
            outcome = Gone(outcome.message)
        match outcome:
            case Replied(body):
                return self._take(group, body)
            case Refused(reason, message):
                self._scheduler.refused(group, reason, message)
                return True
            case Failed(message):
                log.warning("engine error", extra={"fields": {"rows": len(group.rows), "error": message[:200]}})
                self._scheduler.failed(group, Reason.ENGINE_ERROR, message)
            case Busy(_, retry_after):
                self._scheduler.returned(group)
                await self._pause(min(retry_after or 0.0, BACKOFF_MAX_S))
            case Gone(message):
                self._scheduler.returned(group)
                await self._await_engine(message)
        return False

    def _take(self, group: Group, body: dict[str, object]) -> bool:
        judged = judge_reply(self._kind, group, body)
        if isinstance(judged, InvalidReply):
            self._scheduler.failed(group, Reason.INVALID_OUTPUT, str(judged))
            return False
        self._scheduler.answered(group, *judged)
        self._losses = 0
        self._rows_done += len(group.rows)
        return True

    async def _await_engine(self, message: str) -> None:
        """Waits for a lost engine's restart; the first slot that noticed waits for all. Stops the worker when it stays away."""
        seen = self._losses
        async with self._engine_lock:
            if self._stop.is_set() or self._losses != seen:
                return
            self._losses += 1
            log.warning("engine lost", extra={"fields": {"error": message, "losses": self._losses}})
            waiting = asyncio.create_task(self._engine.wait_healthy(ENGINE_BUDGET_S))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not waiting.done():
                waiting.cancel()
            elif not waiting.result() or self._losses >= ENGINE_LOSSES:
                log.error("engine given up", extra={"fields": {"losses": self._losses}})
                self.drain()
            else:
                log.info("engine back")

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        """Waits for feeder and senders; after a drain began, for a bounded time, then cancels them."""
        stopping = asyncio.create_task(self._stop.wait())
        everyone = asyncio.create_task(asyncio.wait(workers))
        await asyncio.wait({stopping, everyone}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if everyone.done():
            return
        _, late = await asyncio.wait(workers, timeout=DRAIN_IN_FLIGHT_S)
        for task in late:
            task.cancel()

    async def _save(self) -> None:
        """Lets running commits end and, after a drain, saves the finished rows of open chunks; in bounded time then."""
        self._collect()
        while self._commits and not self._stop.is_set():
            await self._wait_for_change()
        saves = [asyncio.create_task(self._save_partial(chunk)) for chunk in self._scheduler.unfinished()]
        pending = [*self._commits, *saves]
        if not pending:
            return
        _, late = await asyncio.wait(pending, timeout=DRAIN_SAVE_S)
        for task in late:
            task.cancel()
        for task in saves:
            if task.done() and not task.cancelled() and (error := task.exception()):
                log.error("not saved", extra={"fields": {"error": str(error)}})

    async def _save_partial(self, chunk: OpenChunk) -> None:
        body = await asyncio.to_thread(self._encode, chunk)
        await self._ledger.save_partial(chunk.number, self._attempt, body)
        log.info("partial saved", extra={"fields": {"chunk": chunk.number, "rows": len(chunk.results)}})

    def _collect(self) -> None:
        """Starts the commit of every finished chunk and wakes whoever waits."""
        while (chunk := self._scheduler.pop_finished()) is not None:
            task = asyncio.create_task(self._commit(chunk))
            self._commits.add(task)
            task.add_done_callback(self._commit_ended)
        self._changed.set()

    def _commit_ended(self, task: asyncio.Task[None]) -> None:
        self._commits.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()):
            # The chunk stays open, so the worker will ask to be resumed; the others go on.
            log.error("not committed", exc_info=error)

    async def _commit(self, chunk: OpenChunk) -> None:
        async with self._commit_slots:
            body = await asyncio.to_thread(self._encode, chunk)
            deadline = time.monotonic() + COMMIT_BUDGET_S
            wait = BACKOFF_S
            while True:
                try:
                    won = await self._ledger.commit(chunk.number, body)
                    break
                except StoreUnavailable as error:
                    log.warning("commit not answered", extra={"fields": {"chunk": chunk.number, "error": str(error)}})
                    if time.monotonic() > deadline:
                        self.drain()
                        return
                    if self._stop.is_set():
                        await asyncio.sleep(BACKOFF_S)
                    else:
                        await self._pause(random.uniform(0, wait))
                    wait = min(wait * 2, BACKOFF_MAX_S)
        self._open.discard(chunk.number)
        del self._keys[chunk.number]
        log.info("committed", extra={"fields": {"chunk": chunk.number, "rows": len(chunk.results), "first_writer": won}})

    def _encode(self, chunk: OpenChunk) -> bytes:
        results = chunk.in_order()
        keys = self._keys[chunk.number]
        if len(results) < chunk.expected:
            first = self._plan.chunk_range(chunk.number).start
            keys = keys.take([result.ordinal - first for result in results])
        return chunks.encode(keys, results, self._kind.prediction_type, self._provenance(chunk))

    async def _pause(self, seconds: float) -> None:
        """Sleeps, but not on after a drain has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self._log_progress("progress")

    def _log_progress(self, message: str) -> None:
        counts = {"rows_answered": self._rows_done, "chunks_open": len(self._open), **self._scheduler.statistics()}
        log.info(message, extra={"fields": counts})
