"""`nightshift batcher`: serves until a signal, and then answers the callers that it has.

A drain takes 13 s at most, within the 15 s that a Spot machine leaves. Counted from SIGTERM:

- at once, ``/nightshift/readyz`` fails, and no caller waits for others any more;
- until 3 s, new callers are still served: it takes a moment until no caller is sent here (`ACCEPTING_S`);
- until 12 s, callers in hand get their answers (`ANSWERING_S`); who has none then gets a 503;
- at 13 s, the process exits (`GONE_S`).

SIGINT (Ctrl-C) stops accepting at once. A second signal ends the process without waiting.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from dataclasses import replace
from typing import Final

import uvloop

from nightshift import exits
from nightshift.batcher.app import COPIES, Batcher
from nightshift.batcher.headers import HeaderRules
from nightshift.batcher.options import Options
from nightshift.batcher.routes import NAMES, Routes
from nightshift.driver import descriptors

log = logging.getLogger("nightshift.batcher")

ACCEPTING_S: Final = 3.0
ANSWERING_S: Final = 12.0
GONE_S: Final = 13.0
BACKLOG: Final = 2048
POLL_S: Final = 0.02
TOLD_S: Final = 0.1


class Usage(ValueError):
    """The command is wrong; not retryable."""


def run(options: Options) -> int:
    """Serves until a signal. Returns 0, 1 if callers were left without an answer, or 2 for a wrong command."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except Usage as error:
        print(f"nightshift batcher: {error}", file=sys.stderr)
        return exits.BAD_INPUT


async def _serve(options: Options) -> int:
    most = connections_most(options.max_connections, descriptors.raise_limit())
    loop = asyncio.get_running_loop()
    async with batcher_of(replace(options, max_connections=most)) as batcher:
        try:
            server = await loop.create_server(batcher.server, options.host, options.port, backlog=BACKLOG)
        except OSError as error:
            raise Usage(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from None
        signals = asyncio.Queue[int]()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, signals.put_nowait, number)
        port = server.sockets[0].getsockname()[1]
        log.info("listening on http://%s:%d, in front of %s", options.host, port, options.upstream)
        return exits.FAILED if await _drained(batcher, server, signals) else 0


def connections_most(wanted: int, limit: int) -> int:
    """How many connections from callers fit into that many file descriptors: one that is passed through needs two."""
    most = max(1, (limit - descriptors.RESERVED) // 2)
    if most < wanted:
        log.warning("%d connections at most, not %d: raise the limit of file descriptors (ulimit -n)", most, wanted)
    return min(most, wanted)


def batcher_of(options: Options) -> Batcher:
    """Raises Usage."""
    names = options.endpoints or NAMES
    if options.max_memory_mb < COPIES * options.max_body_mb:
        raise Usage(f"--max-memory-mb must be at least {COPIES} times --max-body-mb, so that one request fits")
    if options.upstream.rstrip("/").endswith("/v1"):
        raise Usage("--upstream: leave out /v1; the path of each request is appended to the URL unchanged")
    if wrong := [name for name in names if name not in NAMES]:
        raise Usage(f"--endpoints: {wrong[0]!r} is not a valid endpoint; choose from {','.join(NAMES)}")
    try:
        rules = HeaderRules(options.key_header, options.ignore_header)
    except ValueError as error:
        raise Usage(f"--key-header, --ignore-header: {error}") from None
    try:
        return Batcher(options, Routes(names, estimate=options.usage == "estimate"), rules)
    except ValueError as error:
        raise Usage(f"--upstream: {error}") from None


async def _drained(batcher: Batcher, server: asyncio.Server, signals: asyncio.Queue[int]) -> int:
    """Waits for a signal, and drains until all is over or another comes; how many callers were left without an answer."""
    number = await signals.get()
    log.info("draining: %d callers in hand", batcher.in_hand)
    batcher.drain()
    steps = asyncio.create_task(_drain(batcher, server, ACCEPTING_S if number == signal.SIGTERM else 0))
    await asyncio.wait((steps, asyncio.create_task(signals.get())), return_when=asyncio.FIRST_COMPLETED)
    if steps.done():
        return steps.result()
    steps.cancel()
    cut_off = batcher.in_hand
    batcher.abandon()
    await asyncio.sleep(TOLD_S)  # For those answers.
    return cut_off


async def _drain(batcher: Batcher, server: asyncio.Server, accepting_s: float) -> int:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(accepting_s)
    server.close()
    batcher.stop()
    await _empty(batcher, began + ANSWERING_S)
    cut_off = batcher.abandon()
    await _empty(batcher, began + GONE_S)
    if batcher.in_hand:
        # What is left now is passed through, or too slow to take its answer.
        cut_off += batcher.in_hand
        log.warning("drain took too long: %d callers cut off", cut_off)
    return cut_off


async def _empty(batcher: Batcher, until: float) -> None:
    """Waits until every caller has its answer, but no longer than until then (loop time)."""
    while batcher.in_hand and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - the time counts, too
        await asyncio.sleep(POLL_S)
