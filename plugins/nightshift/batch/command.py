"""`nightshift batch`: reads the file, finds its run, works until every line has a result, and writes the output."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import uuid
from functools import partial
from typing import Final

import uvloop

from nightshift import exits
from nightshift.batch import paths
from nightshift.batch.engine import About, Server
from nightshift.batch.options import Options
from nightshift.batch.output import ChunkMissing, Incomplete, has_failed, write
from nightshift.batch.preparation import Prepared, Usage, prepared
from nightshift.batch.progress import Progress, format_duration, log_to_stderr, one_line, say, summary
from nightshift.batch.server_health import proxy_not_used
from nightshift.batch.source import LineReader
from nightshift.batch.state import Asked, Batch, Damaged, OtherModel, find_batch, lines_done, open_batch
from nightshift.batch.task_kind import KEY, BatchLines, LineCodec
from nightshift.driver import descriptors
from nightshift.driver.drain import DrainOnSignal
from nightshift.driver.health import EngineBudget
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Stats
from nightshift.driver.worker import Worker, WorkerLimits
from nightshift.fields.text import n
from nightshift.formats import UnreadableFormat
from nightshift.run.inputs import InputChanged
from nightshift.run.ledger import ForeignObject
from nightshift.store import StoreUnavailable, what_to_do

log = logging.getLogger(__name__)

WINDOW_KNOWN: Final = 256
"""Requests in flight at first if the engine's metrics can be read: what vLLM computes at once by default."""
WINDOW_UNKNOWN: Final = 32
WINDOW_MOST: Final = 8192
_AGAIN: Final = "Run the same command again to continue."


def run(options: Options) -> int:
    """Runs the command and returns its exit code: 0, 1 (lines failed, with --fail-on-error), 2 or 75."""
    log_to_stderr()
    try:
        with prepared(options) as found, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_Command(options, found).work())
    except (Damaged, ForeignObject, InputChanged, OtherModel, UnreadableFormat, Usage, WrongEngine) as error:
        say(one_line(str(error)))
        return exits.BAD_INPUT
    except Incomplete as error:
        say(f"the output cannot be written: {error}. Remove that file and run the same command again.")
        return exits.BAD_INPUT
    except BrokenPipeError:
        say(f"whatever read from {paths.shown(options.output, 'standard output')} is gone. {_AGAIN}")
        return exits.RESUME
    except StoreUnavailable as error:
        advice = what_to_do(error.__cause__)
        say(f"{error}. {advice or _AGAIN}")
        return exits.BAD_INPUT if advice else exits.RESUME
    except (ChunkMissing, OSError) as error:
        say(f"{error}. {_AGAIN}")
        return exits.RESUME
    except Exception:
        # Python's own exit code for this is 1, which says that lines failed.
        log.exception("unexpected error")
        return exits.RESUME


class _Command:
    """One run of the command."""

    def __init__(self, options: Options, found: Prepared) -> None:
        self._options = options
        self._found = found
        self._began = time.monotonic()
        self._attempt = f"{os.uname().nodename}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._stats = Stats()

    async def work(self) -> int:
        options = self._options
        drain = DrainOnSignal()
        found = self._found
        asked = Asked(found.place, found.index, options.input, options.model, self._attempt)
        if options.retry_failed and await asyncio.to_thread(find_batch, asked) is None:
            raise Usage(
                f"--retry-failed: there is no earlier run of this input and this --model in {found.place}. To send all lines, "
                "leave it out"
            )
        async with found.server as server:
            if not await server.healthy():
                # A finished run does not need the server.
                batch = None if options.fresh else await asyncio.to_thread(find_batch, asked)
                done = batch is not None and (await lines_done(batch))[0] == batch.plan.rows
                if batch is not None and done and not (options.retry_failed and await self._failed(batch)):
                    return await self._finish(batch)
                if not await self._meet(server, drain):
                    return exits.RESUME
            about = await server.about()
            open_it = partial(open_batch, asked, served=about.served, chunk_rows=options.chunk_rows)
            batch = await asyncio.to_thread(open_it, fresh=options.fresh)
            before, saved = await lines_done(batch)
            if options.retry_failed and before < batch.plan.rows and not batch.retried:
                say("the earlier run is not finished, so it is continued. Once it is, give --retry-failed again")
            elif options.retry_failed and before == batch.plan.rows and await self._failed(batch):
                batch = await asyncio.to_thread(open_it, retried=batch)
                before, saved = await lines_done(batch)
            kept = f"; what run {batch.retried.run.run_id} answered is kept" if batch.retried else ""
            lines = f"{n(batch.plan.rows, 'line')}, {before + saved:,} of them already done{kept}"
            say(f"{found.source.name}: {lines}; progress is kept in {batch.url}")
            if before < batch.plan.rows:
                reader = LineReader(found.source, found.index, batch.plan, options.model)
                worker = self._worker(batch, reader, server, about, known=await server.load() is not None)
                drain.attach(worker.drain)
                progress = Progress(batch.plan.rows, before, self._stats, lambda: server.presence.problem)
                watch = asyncio.create_task(progress.watch())
                try:
                    code = await worker.run()
                finally:
                    watch.cancel()
                if code != exits.DONE:
                    say(f"stopped. {_AGAIN}")
                    return exits.RESUME
        return await self._finish(batch)

    async def _failed(self, batch: Batch) -> bool:
        return await asyncio.to_thread(has_failed, batch.store, batch.run, batch.plan)

    async def _meet(self, server: Server, drain: DrainOnSignal) -> bool:
        """Waits for the server; False if it does not answer in time, or if the command must end first."""
        url, presence = self._options.base_url, server.presence
        say(f"waiting for {url} to answer, at most {format_duration(self._options.wait_s)}: {presence.problem}")
        up = await drain.outrun(presence.wait(self._options.wait_s))
        if not up and not drain.asked.is_set():
            say(f"{url} does not answer: {presence.problem}.{proxy_not_used(url)} {_AGAIN}")
        return up

    def _worker(self, batch: Batch, reader: LineReader, server: Server, about: About, *, known: bool) -> Worker:
        """known: whether the server reports its load."""
        kind = BatchLines()
        most = self._options.max_inflight or WINDOW_MOST
        start = min(WINDOW_KNOWN if known else WINDOW_UNKNOWN, most)
        return Worker(
            plan=batch.plan,
            index=0,
            ledger=batch.ledger,
            reader=reader,
            kind=kind,
            engines=[server],
            codec=LineCodec(
                run_id=batch.run.run_id,
                attempt=self._attempt,
                node=os.uname().nodename,
                model={"asked": self._options.model or "", "served": about.served},
                engine_version=about.version,
                prediction_type=kind.prediction_type,
            ),
            carried=KEY,
            attempt=self._attempt,
            limits=WorkerLimits(
                window_start=start,
                window_most=most,
                requests_most=descriptors.requests_most(
                    descriptors.raise_limit(), self._options.max_inflight or start, fetching=False
                ),
                engine=EngineBudget(rows_ask=True),
            ),
            rng=random.Random(),
            stats=self._stats,
        )

    async def _finish(self, batch: Batch) -> int:
        """Writes the output of a complete run."""
        options = self._options
        counts = await asyncio.to_thread(write, batch.store, batch.run, batch.plan, self._found.target)
        say(summary(counts, self._found.target.name, time.monotonic() - self._began, self._stats))
        if options.clean:
            await asyncio.to_thread(batch.remove)
        return exits.FAILED if options.fail_on_error and counts.failed else exits.DONE
