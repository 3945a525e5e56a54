"""The subscriber: messages -> requests -> engine -> sink -> acknowledged. One life of one process.

It pulls what the engine can take and no more, and no more bytes than there is room for, wherever they wait; decodes each
message; asks the sink whether it is answered already; collects messages into requests that are full, or whose oldest message
has waited long enough; and has the driver's request loop send them, isolate the bad ones and wait for an engine that is away.
An outcome goes to the sink as soon as it is there, whatever becomes of other messages of its request, and only then is its
message acknowledged.

What is held stays leased, however long engine or sink are away: nothing is given back for want of them, because each return
counts as an attempt. Messages of a revision that the stream does not know are held, too, but only as many as leave room for
others; the rest is given back for a while.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nightshift import exits
from nightshift.driver.backoff import Backoff
from nightshift.driver.drain import DRAIN_IN_FLIGHT_S, DRAIN_SAVED_S
from nightshift.driver.health import EngineBudget, EngineLike
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.request_loop import Life, RequestLoop, RequestLoopCallbacks, RequestLoopLimits
from nightshift.driver.scheduler import Scheduler
from nightshift.driver.stats import Stats
from nightshift.run.chunks import Result
from nightshift.stream.bundling import Bundler
from nightshift.stream.decoding import Decoder, UnknownRevision, memory_of
from nightshift.stream.in_flight import PULL_MOST, HeldMessage, InFlight, Lanes, Place
from nightshift.stream.messages import Answered, Dead, Delivery, Outcome
from nightshift.stream.ports import DeadLetterTopic, Sink, Source, Standing, Unavailable, insist
from nightshift.stream.settle import Settler
from nightshift.stream.stats import StreamStats
from nightshift.tasks.base import BadInput, Filling, Reason, TaskKind

if TYPE_CHECKING:
    from nightshift.driver.traces import RequestTraces

log = logging.getLogger(__name__)

AHEAD: Final = 2
"""Open messages, as a multiple of what the engine may have at once: a part is with it, the rest is ready to go."""
PULLS: Final = 4
"""They are pulled in this many parts: a pull for each message that is done would cost more than all the rest."""
PULLS_MOST: Final = 16
"""Pulls at once, about: a reply brings what Pub/Sub likes, however many are asked for and are there."""
EXTEND_S: Final = 1.0
REPEATED_S: Final = 1.0
PROGRESS_S: Final = 10.0
PROBLEM_MOST: Final = 1000
"""Characters of what is wrong with a message that cannot be read."""
LATER_S: Final = 60
"""Messages that are given back because the engine answers nobody come again after this many seconds."""
UNREAD_S: Final = 600
"""And so do those of a revision that is not known, if too many are held: Pub/Sub has no longer delay."""
PATIENT: Final = EngineBudget(absent_s=float("inf"), losses=float("inf"), few=0, enough=3, refusals_first=8)
"""A stream makes way for no other process, and has no last rows: it waits for an engine however long it is away, and never
judges by tries alone. One or two bad messages may be all that there is; and a request that is wrong for every message must not
make dead letters of a backlog."""


PARENTS: Final = ("googclient_traceparent", "traceparent")
"""Attributes in which a publisher says its trace: Pub/Sub's own clients, and others."""


@dataclass(frozen=True)
class SubscriberLimits(RequestLoopLimits):
    """buffer_bytes: of the messages that are held and their answers, one at least. flush_s: how long one waits for others."""

    buffer_bytes: int = 256 << 20
    flush_s: float = 2.0
    engine: EngineBudget = field(default=PATIENT)


@dataclass(eq=False, kw_only=True)
class Subscriber:
    """now(): Unix time in seconds, for latencies. ordered: messages of one ordering key are answered one after the other."""

    kind: TaskKind
    engine: EngineLike
    source: Source
    sink: Sink
    dead_letters: DeadLetterTopic
    decoder: Decoder
    ordered: bool
    limits: SubscriberLimits
    rng: random.Random
    stats: Stats
    stream_stats: StreamStats
    now: Callable[[], float] = time.time
    traces: RequestTraces | None = None

    def __post_init__(self) -> None:
        self._absent: set[str] = set()
        self._stop = asyncio.Event()
        self._pulling, self._bundling = asyncio.Event(), asyncio.Event()
        self._patience = Backoff(self.rng, self._stop)
        self._life = Life()
        self._hold = InFlight(self.limits.buffer_bytes, self.stream_stats)
        self._lanes: Lanes[HeldMessage] = Lanes()
        size_most = (self.kind.chars_per_request if isinstance(self.kind, Filling) else None) or float("inf")
        self._bundler: Bundler[HeldMessage] = Bundler(
            items_most=self.kind.rows_per_request, size_most=size_most, wait_s=self.limits.flush_s
        )
        self._fetching: dict[asyncio.Task[None] | None, None] = {}
        self._reply = float(PULL_MOST)
        self._unread: dict[str, HeldMessage] = {}
        """By lane, what all others of it wait for."""
        self._leaving: dict[HeldMessage, None] = {}
        self._numbers = itertools.count()
        self._bundles: dict[int, list[HeldMessage]] = {}
        self._scheduler = Scheduler(self.kind, self._outcome)
        self._settler = Settler(
            self.source,
            self.sink,
            self.dead_letters,
            self._hold,
            self._patience,
            self.stream_stats,
            self.now,
            self._absent,
            settled=self._settled,
            freed=self._moved,
        )
        callbacks = RequestLoopCallbacks(
            moved=self._moved, given_up=self._give_back_later, spawn=self._life.spawn, traces=self.traces
        )
        if self.traces is not None:
            self.traces.parents_of = self._parents
        parts = self._scheduler, self.limits, self._patience, self.stats, callbacks
        self._pump = RequestLoop(self.kind, [self.engine], *parts)

    def missing(self) -> list[str]:
        """What keeps it from its work now, in words. Another thread may ask."""
        return [*tuple(self._absent), *([] if self._pump.engine_answers else ["the engine"])]

    def drain(self) -> None:
        """From now on it pulls and sends nothing more, stores what is answered and gives the rest back."""
        if not self._stop.is_set():
            log.info("draining", extra={"fields": self.stream_stats.snapshot()})
        self._pump.send_no_more()
        self._life.end()

    async def run(self) -> int:
        """Works until it is drained; returns the exit code: DONE if nothing is held any more.

        Raises errors that a retry cannot fix: WrongEngine, WrongModel.
        """
        parts = (self._pull(), self._bundle(), self._keep_leases(), *self._pump.watches(), self._report())
        settling = self._life.spawn(self._settler.run())
        try:
            await self._life.lead(*parts, ended=self._stop.is_set(), last=self._pump.send_no_more)
        finally:
            await self._land(asyncio.get_running_loop().time(), settling)
            log.info("stopped", extra={"fields": self.stream_stats.snapshot()})
        return exits.RESUME if len(self._hold) else exits.DONE

    async def _land(self, began: float, settling: asyncio.Task[None]) -> None:
        """Gives back what has not been sent, waits for what has, stores and acknowledges that, and gives back the rest."""
        for task in filter(None, self._fetching):
            task.cancel()
        extending = self._life.spawn(self._keep_leases())
        waiting = {id(held) for bundle in iter(self._bundler.flush, None) for held in bundle}
        await self._give_back([held for held in self._hold if id(held) in waiting], 0, began + DRAIN_IN_FLIGHT_S)
        await self._pump.land(began + DRAIN_IN_FLIGHT_S)
        await self._settler.end(began + DRAIN_SAVED_S - 1)
        for task in (settling, extending):
            task.cancel()
        await self._give_back([held for held in self._hold if held.place is not Place.SETTLED], 0, began + DRAIN_SAVED_S)

    async def _pull(self) -> None:
        """Begins as many pulls as it takes to get what the engine can take; none while it cannot take any."""
        while True:
            # In order, what a later reply brings must not come before an earlier one.
            while not (self.ordered and self._fetching) and (room := self._room()):
                self._hold.asked += room
                task = self._life.spawn(self._fetch(room))
                self._fetching[task] = None
            self._pulling.clear()
            await self._pulling.wait()

    async def _fetch(self, asked: int) -> None:
        """One pull, and what becomes of its messages."""

        async def once() -> list[Delivery]:
            # A repeated call asks for what fits by then.
            nonlocal asked
            self._hold.asked -= asked
            asked = self._room()
            self._hold.asked += asked
            return await self.source.pull(asked) if asked else []

        try:
            deliveries = await insist(self._patience, once, "pull", self._absent)
            fresh = self._hold.take(deliveries, asyncio.get_running_loop().time())
            if deliveries and not fresh:
                # All of it was held already. To pull at once again might bring the same for ever.
                await asyncio.sleep(REPEATED_S)
        finally:
            self._hold.asked -= asked
        if not deliveries:
            self._reply = float(PULL_MOST)
        elif len(deliveries) < asked:
            self._reply = (self._reply + len(deliveries)) / 2
        else:
            self._reply = max(self._reply, len(deliveries))
        for held in fresh:
            self._decode(held)
        self._pulling.set()
        if fresh:
            await self._admit(fresh)
        self._fetching.pop(asyncio.current_task())
        self._bundling.set()
        self._pulling.set()

    def _room(self) -> int:
        """How many messages one more pull is to ask for now.

        If replies bring few, several pulls share the room: each asks for twice of what the last ones brought.
        """
        rows = AHEAD * self._pump.room
        share = max(math.ceil(rows / PULLS_MOST), int(2 * self._reply))
        if rows - self._hold.open < min(max(1, rows // PULLS), share):
            rows = self._pump.needed
        return min(self._hold.room(rows), share)

    async def _admit(self, fresh: list[HeldMessage]) -> None:
        """Lets those messages in that have no outcome yet, and whose leases are not over."""
        asked = [(held.message, None if held.row is None else held.key) for held in fresh]
        knowing = insist(self._patience, lambda: self.sink.known(asked), "what is known of messages", self._absent)
        standings, _ = await asyncio.gather(knowing, self._extend())
        for held, standing in zip(fresh, standings, strict=True):
            if self._hold.leases.ack_id(held.message.id) is None:
                self.stream_stats.late += 1
                self._hold.let_go(held)
            elif isinstance(standing, Dead):
                # It may be in the table of dead letters only.
                self._settler.announce(held, standing)
            elif standing is Standing.OVER:
                self.stream_stats.over += 1
                self._settler.acknowledge(held)
            elif held.problem:
                self._settler.put(held, Dead(held.message, str(Reason.BAD_INPUT), held.problem, None, 0))
            else:
                held.lane = held.message.ordering_key if self.ordered else ""
                if self._lanes.enter(held.lane, held):
                    self._wait(held)
                else:
                    self._put_aside(held, self._unread.get(held.lane))

    def _decode(self, held: HeldMessage) -> None:
        """Reads the message, at once: the next pull takes only what then still fits."""
        try:
            held.row = self.decoder.row(held.message)
            held.key = self.decoder.key(held.message, held.row)
            self._hold.move(held, Place.OPEN, memory_of(held.row))
        except UnknownRevision as error:
            held.revision = error.revision
        except Exception as error:  # Whatever a library raises for a message concerns that message alone.
            said = isinstance(error, BadInput) and str(error)
            # Some errors repeat all the data.
            held.row, held.problem = None, (said or f"the message cannot be read: {error!r}")[:PROBLEM_MOST]

    def _wait(self, held: HeldMessage) -> None:
        """The message waits for others of its request; or, of an unknown revision, for a process that can read it."""
        if held.revision is not None:
            self.stream_stats.unread += 1
            if (what := f"schema revision {held.revision}") not in self._absent:
                self._absent.add(what)
                remedy = "if source.avro_schema is right for it, name it in source.avro_revisions; else change both"
                said = {"revision": held.revision, "remedy": remedy}
                log.error("messages are held: the stream does not know the revision of their schema", extra={"fields": said})
            if held.lane:
                self._unread[held.lane] = held
            self._put_aside(held, held)
            return
        self._hold.move(held, Place.OPEN)
        self._bundler.add(held, len(held.message.data), asyncio.get_running_loop().time())

    def _put_aside(self, held: HeldMessage, blocked_by: HeldMessage | None) -> None:
        """It takes no place of the engine. blocked_by: what keeps it waiting until the stream's file is another, if that is so:
        if such messages crowd out others, it is given back, with those behind it."""
        self._hold.move(held, Place.ASIDE)
        if blocked_by is not None and self._hold.crowded_aside:
            self._leaving[blocked_by] = None

    async def _bundle(self) -> None:
        """Opens bundles that are due, one after the other: what the engine has no room for yet goes on collecting."""
        loop = asyncio.get_running_loop()
        while True:
            while self._may_open and (bundle := self._due(loop.time())) is not None:
                self._open(bundle)
            self.stream_stats.waiting = len(self._bundler)
            due = self._bundler.next_due if self._may_open else None
            self._bundling.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._bundling.wait()
            except TimeoutError:
                continue

    @property
    def _may_open(self) -> bool:
        return self._pump.hungry and not self._hold.full(self._scheduler.rows_in_flight)

    def _due(self, now: float) -> list[HeldMessage] | None:
        """The next bundle. No time is waited for while the engine has nothing to do; nor, for a free place, if no other message
        can come."""
        if (bundle := self._bundler.due(now)) is not None:
            return bundle
        comes = self._fetching or self._room()
        at_once = self._pump.idle_place and not (self._scheduler.rows_in_flight and comes)
        return self._bundler.flush() if at_once else None

    def _open(self, bundle: list[HeldMessage]) -> None:
        number = next(self._numbers)
        self._bundles[number] = bundle
        rows = [held.row for held in bundle]
        for held in bundle:
            held.row = None
        names = [held.message.id for held in bundle]
        self._scheduler.open_chunk(number, range(len(bundle)), iter(rows), {}, names)  # type: ignore[arg-type]
        self._pump.run()

    def _outcome(self, chunk: OpenChunk, result: Result) -> None:
        """One message has its outcome; others of its request need not."""
        if self.traces is not None:
            self.traces.judged(chunk, result)
        held = self._bundles[chunk.number][result.ordinal]
        outcome: Outcome
        if result.reason is None:
            outcome = Answered(held.message, held.key, result.prediction, result.attempts, result.reasoning)
        else:
            outcome = Dead(held.message, result.reason, result.message or "", result.status, result.attempts, held.key)
        self._settler.put(held, outcome)

    def _parents(self, number: int, ordinals: Sequence[int]) -> list[str]:
        """What published these messages, if it is traced."""
        bundle = self._bundles.get(number, [])
        attributes = (bundle[ordinal].message.attributes for ordinal in ordinals if ordinal < len(bundle))
        return [parent for each in attributes if (parent := next(filter(None, map(each.get, PARENTS)), None))]

    def _moved(self) -> None:
        while (chunk := self._scheduler.pop_finished()) is not None:
            del self._bundles[chunk.number]
        self._pulling.set()
        self._bundling.set()

    def _settled(self, done: Sequence[HeldMessage]) -> None:
        """Their outcomes are in the sink."""
        for held in done:
            if (following := self._lanes.leave(held.lane)) is not None:
                self._wait(following)
        self._moved()

    async def _keep_leases(self) -> None:
        """Extends the leases of all that is held, for ever, but for what has to leave."""
        while True:
            leaving, self._leaving = list(self._leaving), {}
            await self._give_back(leaving, UNREAD_S, None)
            await self._extend()
            await asyncio.sleep(EXTEND_S)

    async def _extend(self) -> None:
        """Extends the leases that are due."""
        loop, leases = asyncio.get_running_loop(), self._hold.leases
        if not (due := leases.due(loop.time())):
            return
        try:
            unsettled = await self.source.extend(list(due), leases.lease_s(loop.time()))
        except Unavailable as error:
            self._absent.add("leases")
            log.warning("leases not extended", extra={"fields": {"messages": len(due), "error": str(error)}})
            leases.failed(due.values(), loop.time())
            return
        self._absent.discard("leases")
        for ack_id in unsettled.over & due.keys():
            leases.lost(due[ack_id], ack_id)
        leases.failed([due[ack_id] for ack_id in unsettled.for_now & due.keys()], loop.time())
        self.stream_stats.extended += len(due) - len(unsettled.over) - len(unsettled.for_now)
        if unsettled.over:
            log.warning("leases were over", extra={"fields": {"messages": len(unsettled.over)}})

    def _give_back_later(self) -> None:
        """The engine has answered nobody for too long: the messages that it had are left to the subscription's own policy."""
        failing = [held for bundle in self._bundles.values() for held in bundle if held.place is Place.OPEN]
        log.error("returning messages: the engine answers no request", extra={"fields": {"messages": len(failing)}})
        for number in list(self._bundles):
            self._scheduler.abandon(number)
            self._pump.call_back_chunk(number)
            del self._bundles[number]
        self._life.spawn(self._give_back(failing, LATER_S, None))
        self._pump.forgive()

    async def _give_back(self, messages: Sequence[HeldMessage], seconds: int, deadline: float | None) -> None:
        """Lets others have these messages, and those that wait behind them in order, after `seconds`.

        If that fails, their leases run out.
        """
        for held in messages:
            self._unread.pop(held.lane, None)
        behind = [other for held in messages for other in self._lanes.close(held.lane)]
        leaving = [held for held in dict.fromkeys((*messages, *behind)) if self._hold.has(held)]
        ack_ids = [ack_id for held in leaving for ack_id in self._hold.let_go(held)]
        self.stream_stats.given_back += len(leaving)
        if not ack_ids:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self.source.extend(ack_ids, seconds)
        except (TimeoutError, Unavailable) as error:
            log.warning("not given back", extra={"fields": {"messages": len(leaving), "error": str(error)}})

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            log.info("progress", extra={"fields": {**self.stream_stats.snapshot(), **self.stats.snapshot()}})
