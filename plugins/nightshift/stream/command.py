"""The command `nightshift stream`: one subscriber of a stream, until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

import uvloop

from nightshift import exits
from nightshift.driver.bootstrap import first_window, meet, version_for
from nightshift.driver.drain import DrainOnSignal
from nightshift.driver.engine import EngineClient
from nightshift.driver.json_log import log_to_stdout
from nightshift.driver.metrics import BuildInfo, StatsCollector, serve_metrics
from nightshift.driver.served import WrongEngine
from nightshift.driver.stats import Stats
from nightshift.driver.tracing import CannotTrace, traces_of
from nightshift.spec import SpecErrors, StreamSpec, load_stream
from nightshift.spec.stream import Messages
from nightshift.stream.decoding import Decoder
from nightshift.stream.names import full_name
from nightshift.stream.options import NO_ENGINE, NO_SINK, Options
from nightshift.tasks.base import TaskKind, WrongModel, load_kind

if TYPE_CHECKING:
    from nightshift.driver.traces import RequestTraces
    from nightshift.stream.ports import Sink, Source
    from nightshift.stream.stats import StreamStats

log = logging.getLogger("nightshift.stream")

AGAIN_S: Final = 5.0
"""Between two tries to open the sink, or to ask Pub/Sub, as the process starts."""
LOCKED_TRIES: Final = 6
"""So often in a row the sink itself must refuse access: its password may be being changed."""
CONNECTION_LIFE_S: Final = 30.0
"""A Service chooses a server for each connection. A subscriber takes up to this long to use a server that has joined."""


def run(options: Options) -> int:
    """Runs the stream; returns the exit code. Bad input is reported on stderr, all else in the log on stdout."""
    try:
        spec = load_stream(options.file)
        lacks_sink = bool(spec.sink.PORTS) and not options.sink_url
        if missing := [*([] if options.engine_url else [NO_ENGINE]), *([NO_SINK] if lacks_sink else [])]:
            print(*missing, sep="\n", file=sys.stderr)
            return exits.BAD_INPUT
        kind = load_kind(spec)
        decoder = Decoder(spec, kind.columns)
        source = spec.source
        place = (
            full_name(source.subscription, "subscriptions", options.project) if isinstance(source, Messages) else source.prefix
        )
        topic = full_name(spec.dead_letters.topic, "topics", options.project)
    except SpecErrors as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    except ValueError as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return exits.BAD_INPUT
    from nightshift.stream import pubsub  # noqa: F401 - before the log begins, whether both are installed

    make = import_module(f"nightshift.stream.{spec.sink.MODULE}").make
    make_sink = partial(make, spec, kind, f"{spec.model.name}@{spec.model.revision}", options.sink_url)

    log_to_stdout()
    started = time.monotonic()
    traces: RequestTraces | None = None
    log.info("started", extra={"fields": {"stream": spec.job, "source": place, "sink": spec.sink.place}})
    try:
        # Never closed, as the driver's: that would wait for threads.
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        traces = traces_of("nightshift-stream", {"nightshift.job": spec.job})
        code = runner.run(_work(options, spec, kind, decoder, (place, topic), make_sink, traces))
    except Exception as error:
        code = _judged(error)
    if traces is not None:
        traces.flush()
    log.info("exit", extra={"fields": {"code": code, "seconds": round(time.monotonic() - started, 1)}})
    return code


def _judged(error: Exception) -> int:
    """The exit code after an error. Parts of a subscriber fail in groups, in which what cannot be helped counts."""
    from nightshift.stream.ports import BadUrl, SinkRefused
    from nightshift.stream.pubsub_client import PubSubRefused

    for each in _each(error):
        if isinstance(each, BadUrl | CannotTrace):
            print(each, file=sys.stderr)
            return exits.BAD_INPUT
        if isinstance(each, WrongEngine | WrongModel | PubSubRefused | SinkRefused):
            log.error("cannot continue", extra={"fields": {"error": f"{type(each).__name__}: {each}"}})
            return exits.CONFIG
    log.error("unexpected error", exc_info=error, extra={"fields": {"error": "; ".join(map(repr, _each(error)))}})
    return exits.RESUME


def _each(error: BaseException) -> list[BaseException]:
    """The error, or those of a group."""
    return [one for part in error.exceptions for one in _each(part)] if isinstance(error, BaseExceptionGroup) else [error]


async def _work(
    options: Options,
    spec: StreamSpec,
    kind: TaskKind,
    decoder: Decoder,
    names: tuple[str, str],
    make_sink: Callable[[], Sink],
    traces: RequestTraces | None,
) -> int:
    from nightshift.stream.dead_letter_message import Announcement
    from nightshift.stream.metrics import StreamCollector, TargetCollector
    from nightshift.stream.pubsub import Subscription, Topic, check_topic
    from nightshift.stream.stats import StreamStats
    from nightshift.stream.subscriber import Subscriber, SubscriberLimits

    drain, stats, counts = DrainOnSignal(), Stats(), StreamStats()
    starting = ["the sink", "Pub/Sub", "the engine"]
    running: list[Subscriber] = []
    if options.metrics_port is not None:
        collectors = BuildInfo("stream"), StatsCollector(stats), StreamCollector(counts), TargetCollector(spec)
        serve_metrics(
            options.metrics_port,
            *collectors,
            address=options.metrics_address,
            missing=lambda: running[0].missing() if running else starting,
        )
    sink = make_sink()
    window, requests = first_window(spec.seats(), kind)
    timeout_s = spec.request.timeout_seconds
    client = EngineClient(options.engine_url, spec.model.name, request_timeout_s=timeout_s, connection_life_s=CONNECTION_LIFE_S)
    async with client as engine:
        topic = Topic(names[1], Announcement(spec.job, spec.source.origin, spec.sink.dead_letters_place))
        source = _source(spec, names[0], counts)
        subscription = source if isinstance(source, Subscription) else None
        if not (
            await _reached("the sink", sink.open, drain)
            and await _reached("Pub/Sub", lambda: check_topic(topic, subscription), drain)
            and await meet([engine], drain, float("inf"))
        ):
            return exits.DONE
        # Behind one address a stream may have servers of two models, one as a canary, and they are replaced one by one.
        await version_for([engine], spec, name_alone=True)
        subscriber = Subscriber(
            kind=kind,
            engine=engine,
            source=source,
            sink=sink,
            dead_letters=topic,
            decoder=decoder,
            ordered=isinstance(spec.source, Messages) and spec.source.ordering,
            limits=SubscriberLimits(window_start=window, requests_most=requests, flush_s=spec.latency.flush_seconds),
            rng=random.Random(),
            stats=stats,
            stream_stats=counts,
            traces=traces,
        )
        drain.attach(subscriber.drain)
        running.append(subscriber)
        return await subscriber.run()


def _source(spec: StreamSpec, name: str, counts: StreamStats) -> Source:
    """name: of the subscription, with its project."""
    if isinstance(spec.source, Messages):
        from nightshift.stream.pubsub import Subscription

        return Subscription(name, counts)
    from nightshift.store import open_store
    from nightshift.stream.folder_objects import WatchedFolder
    from nightshift.stream.folder_source import Watched

    folder = WatchedFolder(open_store(spec.source.prefix), spec.job, spec.source.format)
    return Watched(folder, every_s=spec.source.every_seconds, rng=random.Random())


async def _reached(what: str, call: Callable[[], Awaitable[None]], drain: DrainOnSignal) -> bool:
    """Repeats the call until `what` answers; False if the process must end first. Raises SinkRefused, PubSubRefused."""
    from nightshift.stream.ports import Locked, SinkRefused, Unavailable

    locked = 0
    while not drain.asked.is_set():
        try:
            await call()
            return True
        except Unavailable as error:
            locked = locked + 1 if isinstance(error, Locked) else 0
            if locked == LOCKED_TRIES:
                raise SinkRefused(f"the sink said so {locked} times: {error}") from error
            log.warning(f"waiting for {what}", extra={"fields": {"error": str(error)}})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await drain.asked.wait()
    return False
