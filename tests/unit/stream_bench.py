"""A subscriber in virtual time between parts that a test steers: its subscription, engine, sink and topic."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from nightshift.driver.engine import Load, Refused, Replied, SendResult
from nightshift.driver.stats import Stats
from nightshift.driver.traces import RequestTraces
from nightshift.stream.messages import Answered, Dead, Delivery, Message
from nightshift.stream.ports import Collect, Standing, Unavailable, Unsettled, Unwritable
from nightshift.stream.stats import StreamStats
from nightshift.stream.subscriber import Subscriber, SubscriberLimits
from nightshift.tasks.base import Answer, Answers, BadInput, InvalidReply, Reason, RowName
from tests.simulation.virtual import VirtualLoop

BEGAN: Final = datetime(2026, 11, 20, tzinfo=UTC)
OVER_S: Final = 3600.0
"""Virtual time after which a test that still waits has failed."""
GARBAGE: Final = "garbage"
AT_ONCE: Final = Collect(rows=500, size=float("inf"), age_s=0.02)
"""As a database has it."""
Reply = Callable[[list[str]], Awaitable[SendResult]]


class Kind:
    """A task kind whose payload is the message's text, and whose answer is the same in capitals."""

    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("text",)
    prediction_type = pa.string()

    def __init__(self, rows_per_request: int) -> None:
        self.rows_per_request = rows_per_request

    def render(self, row: Mapping[str, Any], name: RowName) -> str:
        return str(row["text"])

    def request(self, payloads: Sequence[str], retry: int) -> tuple[str, bytes]:
        return "/texts", json.dumps(payloads).encode()

    def answers(self, reply: Any, payloads: Sequence[str]) -> Answers:
        if reply == GARBAGE:
            raise InvalidReply(GARBAGE)
        return Answers([Answer(text) for text in reply], len(payloads), len(payloads))


class FillingKind(Kind):
    """The same, with a bound on the characters of a request."""

    def __init__(self, rows_per_request: int, chars_per_request: int) -> None:
        super().__init__(rows_per_request)
        self.chars_per_request: int | None = chars_per_request

    def chars(self, payload: Any) -> int:
        return len(payload)


async def capitals(texts: list[str]) -> SendResult:
    return Replied([text.upper() for text in texts])


async def refuses_bad(texts: list[str]) -> SendResult:
    """An engine that refuses every request with a text that begins with bad."""
    bad = [text for text in texts if text.startswith("bad")]
    return Refused(Reason.REJECTED, "I do not like it", 400) if bad else await capitals(texts)


class Engine:
    """requests: the texts of each, with the time when it was sent. sent: when each was, canaries too; headers: with what.
    reported: load.

    well: whether it passes its health check.
    """

    def __init__(self, loop: VirtualLoop, reply: Reply) -> None:
        self._loop = loop
        self.reply = reply
        self.requests: list[tuple[float, list[str]]] = []
        self.sent: list[float] = []
        self.headers: list[object] = []
        self.reported = Load(1, 0, 0.1, 0)
        self.well = True

    @property
    def asked(self) -> list[list[str]]:
        return [texts for _, texts in self.requests]

    async def send(self, path: str, body: bytes, *, canary: bool = False, headers: object = None) -> SendResult:
        texts = json.loads(body)
        self.headers.append(headers)
        self.sent.append(self._loop.time())
        if not canary:
            self.requests.append((self._loop.time(), texts))
        await asyncio.sleep(0.01)
        return await self.reply(texts)

    async def healthy(self) -> bool:
        return self.well

    def ask_restart(self) -> None:
        pass

    async def load(self) -> Load | None:
        return self.reported if self.well else None


class Source:
    """acknowledged: ack ids in order; asked: those of each call. given_back, extended: ack ids with the seconds.

    gate: acknowledging waits for it. reply_most: messages of one reply; pull_s: seconds until it comes. pulls, pulls_most:
    calls under way now, and at most so far; wanted: messages that those of now ask for. away: a pull fails once there is a
    message. over, for_now: ack ids of which that is said.
    """

    def __init__(self) -> None:
        self._waiting: list[Delivery] = []
        self._came = asyncio.Event()
        self.acknowledged: list[str] = []
        self.acknowledging = 0
        self.asked: list[list[str]] = []
        self.over: set[str] = set()
        self.for_now: set[str] = set()
        self.given_back: list[tuple[str, int]] = []
        self.extended: list[tuple[str, int]] = []
        self.away = False
        self.reply_most = 1000
        self.pull_s = 0.0
        self.pulls = self.pulls_most = self.wanted = 0
        self.gate = asyncio.Event()
        self.gate.set()

    def deliver(self, *deliveries: Delivery) -> None:
        self._waiting += deliveries
        self._came.set()

    async def pull(self, most: int) -> list[Delivery]:
        self.pulls += 1
        self.pulls_most = max(self.pulls, self.pulls_most)
        self.wanted += most
        try:
            return await self._pulled(min(most, self.reply_most))
        finally:
            self.pulls -= 1
            self.wanted -= most

    async def _pulled(self, most: int) -> list[Delivery]:
        if self.pull_s:
            await asyncio.sleep(self.pull_s)
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        if self.away:
            raise Unavailable("Pub/Sub is away")
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken

    async def acknowledge(self, ack_ids: Sequence[str]) -> Unsettled:
        self.acknowledging += 1
        self.asked.append(list(ack_ids))
        await self.gate.wait()
        unsettled = self._unsettled(ack_ids)
        self.acknowledged += [each for each in ack_ids if each not in unsettled.over | unsettled.for_now]
        return unsettled

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> Unsettled:
        given_back = seconds == 0
        (self.given_back if given_back else self.extended).extend((ack_id, seconds) for ack_id in ack_ids)
        return self._unsettled(ack_ids)

    def _unsettled(self, ack_ids: Sequence[str]) -> Unsettled:
        return Unsettled(frozenset(ack_ids) & self.over, frozenset(ack_ids) & self.for_now)


class Sink:
    """refused: ids whose answers are unwritable. away: it takes no outcome. standings: what it knows of messages, by id.

    answered_elsewhere: ids of messages that another has answered meanwhile. locked: ids whose rows another holds. unburied: ids
    that it refuses as dead letters.
    """

    def __init__(self, collect: Collect) -> None:
        self.collect = collect
        self.answered_elsewhere: frozenset[str] = frozenset()
        self.refused: set[str] = set()
        self.locked: set[str] = set()
        self.unburied: set[str] = set()
        self.away = False
        self.standings: dict[str, Standing | Dead] = {}
        self.rows: dict[str, Any] = {}
        self.dead: dict[str, Dead] = {}
        self.writes: list[list[str]] = []
        self.tries = 0

    async def open(self) -> None:
        """It is open from the start."""

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        return [self.standings.get(message.id, Standing.NEW) for message, _ in messages]

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        self._take()
        if bad := [each.message.id for each in answered if each.message.id in self.refused]:
            raise Unwritable(f"the database refuses {bad}")
        written = [each for each in answered if each.message.id not in self.locked]
        self.writes.append([each.message.id for each in written])
        self.rows |= {each.message.id: each.prediction for each in written}
        return frozenset(each.message.id for each in answered) & self.locked

    async def sound(self) -> bool:
        return any(name not in self.refused for name in self.rows)

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        self._take()
        if bad := [each.message.id for each in dead if each.message.id in self.unburied]:
            raise Unwritable(f"the database refuses the dead letters {bad}")
        others = frozenset(each.message.id for each in dead) & self.answered_elsewhere
        self.dead |= {each.message.id: each for each in dead if each.message.id not in others}
        return others

    def _take(self) -> None:
        self.tries += 1
        if self.away:
            raise Unavailable("the database is away")


class Topic:
    """published: dead letters. away: nothing is answered. refused: ids of messages that it does not take."""

    def __init__(self) -> None:
        self.published: list[Dead] = []
        self.away = False
        self.refused: set[str] = set()
        self.tries = 0

    async def publish(self, dead: Sequence[Dead]) -> dict[str, str]:
        self.tries += 1
        if self.away:
            raise Unavailable("the topic is away")
        self.published += [each for each in dead if each.message.id not in self.refused]
        return {each.message.id: "InvalidArgument: no" for each in dead if each.message.id in self.refused}


class Decoder:
    """The column text is the data; data that begins with ? is unreadable. raises: what reading a message raises, by its id."""

    def __init__(self) -> None:
        self.raises: dict[str, Exception] = {}

    def row(self, message: Message) -> Mapping[str, Any]:
        if (error := self.raises.get(message.id)) is not None:
            raise error
        text = message.data.decode()
        if text.startswith("?"):
            raise BadInput("the message is a question")
        return {"text": text}

    def key(self, message: Message, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (message.id,)


class Bench:
    """One subscriber that runs. The id of a message is its text, unless a test says another."""

    def __init__(
        self,
        loop: VirtualLoop,
        *,
        kind: Kind | None = None,
        reply: Reply = capitals,
        flush_s: float = 0.5,
        ordered: bool = False,
        collect: Collect = AT_ONCE,
        window: int = 32,
        buffer_bytes: int = 256 << 20,
        traces: RequestTraces | None = None,
    ) -> None:
        self.loop = loop
        self.engine = Engine(loop, reply)
        self.source, self.sink, self.topic = Source(), Sink(collect), Topic()
        self.stats = StreamStats()
        self.decoder = Decoder()
        self.subscriber = Subscriber(
            kind=kind or Kind(4),
            engine=self.engine,
            source=self.source,
            sink=self.sink,
            dead_letters=self.topic,
            decoder=self.decoder,  # type: ignore[arg-type]
            ordered=ordered,
            limits=SubscriberLimits(window_start=window, flush_s=flush_s, buffer_bytes=buffer_bytes),
            rng=random.Random(1),
            stats=Stats(),
            stream_stats=self.stats,
            now=lambda: BEGAN.timestamp() + loop.time(),
            traces=traces,
        )
        self._running: asyncio.Task[int] | None = None
        self._deliveries = 0

    def start(self) -> asyncio.Task[int]:
        self._running = self.loop.create_task(self.subscriber.run())
        return self._running

    def deliver(self, *texts: str, lane: str = "", attributes: Mapping[str, str] | None = None) -> list[str]:
        """Delivers a message for each text; returns the ack ids."""
        published = BEGAN + timedelta(seconds=self.loop.time())
        deliveries = []
        for text in texts:
            self._deliveries += 1
            message = Message(text, text.encode(), attributes or {}, lane, published)
            deliveries.append(Delivery(f"{text} #{self._deliveries}", message))
        self.source.deliver(*deliveries)
        return [delivery.ack_id for delivery in deliveries]

    async def until(self, fact: Callable[[], object]) -> None:
        """Waits for a fact in virtual time; the loop's deadline ends a test that waits in vain."""
        while not fact():
            assert self._running is not None
            if self._running.done():
                raise AssertionError(f"the subscriber has ended: {self._running!r}")
            await asyncio.sleep(0.05)

    async def end(self) -> int:
        self.subscriber.drain()
        assert self._running is not None
        return await self._running


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    """Runs a test in virtual time. Raises what its callbacks raised, too."""
    loop = VirtualLoop(deadline=OVER_S)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main(loop))
        errors = loop.errors
    finally:
        asyncio.set_event_loop(None)
        loop.close_all()
    assert errors == []
