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
import functools
import logging
import signal
import socket
import sys
from types import FrameType
from typing import Final, cast

import uvicorn
import uvloop

from nightshift import exits
from nightshift.driver import descriptors
from nightshift.stream.batcher.admission import COPIES
from nightshift.stream.batcher.app import Batcher, Limits
from nightshift.stream.batcher.connections import KEEP_ALIVE_S, Connection, Connections
from nightshift.stream.batcher.headers import HeaderRules
from nightshift.stream.batcher.options import Options
from nightshift.stream.batcher.routes import NAMES, Routes

log = logging.getLogger("nightshift.batcher")

ACCEPTING_S: Final = 3.0
ANSWERING_S: Final = 12.0
GONE_S: Final = 13.0
BACKLOG: Final = 2048


class Usage(ValueError):
    """The command is wrong; not retryable."""


def run(options: Options) -> int:
    """Serves until a signal. Returns 0, 1 if callers were left without an answer, or 2 for a wrong command."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    # uvicorn tells each of its own steps, and each request that is not HTTP: the metrics count those.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(options))
    except Usage as error:
        print(f"nightshift batcher: {error}", file=sys.stderr)
        return exits.BAD_INPUT


async def _serve(options: Options) -> int:
    batcher = batcher_of(options)
    listener = _listen(options.host, options.port)
    most = connections_most(options.max_connections, descriptors.raise_limit())
    connections = Connections(most, lambda reason: batcher.metrics.rejected.labels(reason).inc())
    config = uvicorn.Config(
        batcher.app,
        loop="uvloop",
        http=cast(type[asyncio.Protocol], functools.partial(Connection, connections=connections)),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        # What is passed through has the upstream's.
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    server = _Server(config, batcher)
    log.info("listening on http://%s:%d, in front of %s", options.host, listener.getsockname()[1], options.upstream)
    await server.serve(sockets=[listener])
    return exits.FAILED if server.cut_off else 0


def connections_most(wanted: int, limit: int) -> int:
    """How many connections from callers fit into that many file descriptors: one that is passed through needs two."""
    most = max(1, (limit - descriptors.RESERVED) // 2)
    if most < wanted:
        log.warning("%d connections at most, not %d: raise the limit of file descriptors (ulimit -n)", most, wanted)
    return min(most, wanted)


def limits_of(options: Options) -> Limits:
    return Limits(
        batch_items=options.max_batch_size,
        latency_s=options.max_latency,
        upstream=options.max_upstream,
        queue=options.max_queue,
        connections=options.max_connections,
        body_bytes=options.max_body_mb << 20,
        memory_bytes=options.max_memory_mb << 20,
        timeout_s=options.timeout,
    )


def batcher_of(options: Options) -> Batcher:
    """Raises Usage."""
    limits, names = limits_of(options), options.endpoints or NAMES
    if limits.memory_bytes < COPIES * limits.body_bytes:
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
        return Batcher(options.upstream, Routes(names, estimate=options.usage == "estimate"), rules, limits)
    except ValueError as error:
        raise Usage(f"--upstream: {error}") from None


def _listen(host: str, port: int) -> socket.socket:
    """Here and not in uvicorn, which reports an address that is taken with a stack of lines. Raises Usage."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise Usage(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """uvicorn, with a drain in steps. cut_off: callers that were left without an answer."""

    def __init__(self, config: uvicorn.Config, batcher: Batcher) -> None:
        super().__init__(config)
        self._batcher = batcher
        self._loop = asyncio.get_running_loop()
        self._signals = 0
        self.cut_off = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn raises the signals that it has noted again at its end. A drain that was asked for is not such a death.
        self._loop.call_soon_threadsafe(self._signalled, sig)

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            self.cut_off += self._batcher.in_hand
            self._batcher.abandon()
            self.should_exit = self.force_exit = True
            return
        log.info("draining: %d callers in hand", self._batcher.in_hand)
        self._batcher.drain()
        self._loop.call_later(ACCEPTING_S if number == signal.SIGTERM else 0, self._stop)
        self._loop.call_later(ANSWERING_S, self._abandon)
        self._loop.call_later(GONE_S, self._leave)

    def _stop(self) -> None:
        """uvicorn stops accepting, and waits for callers in hand."""
        self.should_exit = True

    def _abandon(self) -> None:
        self.cut_off += self._batcher.abandon()

    def _leave(self) -> None:
        """What is left now is passed through, or too slow to take its answer."""
        self.cut_off += self._batcher.in_hand
        log.warning("drain took too long: %d callers cut off", self.cut_off)
        self.force_exit = True
