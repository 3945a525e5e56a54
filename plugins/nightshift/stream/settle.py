"""What happens to a message once its outcome is known: into the sink, dead letters to their topic, then acknowledged.

In this order, each step done before the next begins, so that a subscriber which dies in between leaves at worst a message that
is delivered again and found to have its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from nightshift.driver.backoff import Backoff
from nightshift.stream.bundling import Bundler
from nightshift.stream.in_flight import HeldMessage, InFlight, Place
from nightshift.stream.messages import Answered, Dead, Outcome
from nightshift.stream.ports import DeadLetterTopic, Sink, Source, insist
from nightshift.stream.remembered_ids import RememberedIds
from nightshift.stream.sink_writes import Pending, Writer
from nightshift.stream.stats import StreamStats

log = logging.getLogger(__name__)

DONE_MOST: Final = 500
"""Messages in one call to Pub/Sub."""
COLLECT_S: Final = {"dead": 0.02, "done": 0.1}
"""How long the first dead letter or acknowledgement waits for others: calls cost more than what they carry. How long an
outcome waits is the sink's business (`nightshift.stream.ports.Collect`)."""
AGAIN_S: Final = 1.0
"""Between two tries of an acknowledgement that Pub/Sub cannot take for now."""
REMEMBERED: Final = 100_000
"""Dead letters that this process has announced, which it does not announce again: about 10 MB."""

T = TypeVar("T")


@dataclass(eq=False)
class Settler:
    """settled(messages): called when their outcomes are in the sink. freed(): called when messages are not held any more.

    now(): Unix time in seconds. absent: what is waited for, as `insist` fills it.
    """

    source: Source
    sink: Sink
    dead_letters: DeadLetterTopic
    hold: InFlight
    patience: Backoff
    stats: StreamStats
    now: Callable[[], float]
    absent: set[str]
    _: KW_ONLY
    settled: Callable[[Sequence[HeldMessage]], None]
    freed: Callable[[], None]
    _ending: bool = field(init=False, default=False)
    _busy: int = field(init=False, default=0)
    _enough: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """What has come is written without waiting for more."""
    _dead: deque[tuple[HeldMessage, Dead]] = field(init=False, default_factory=deque)
    _announced: RememberedIds = field(init=False, default_factory=lambda: RememberedIds(REMEMBERED))
    _done: deque[HeldMessage] = field(init=False, default_factory=deque)
    _idle: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Something may be done: `end` checks whether all is."""

    def __post_init__(self) -> None:
        collect = self.sink.collect
        self._outcomes: Bundler[Pending] = Bundler(items_most=collect.rows, size_most=collect.size, wait_s=collect.age_s)
        self._writer = Writer(self.sink, self.patience, self.absent, self._answered, self._kept, self._idle.set)
        self._work = {name: asyncio.Event() for name in ("outcomes", *COLLECT_S)}

    def put(self, held: HeldMessage, outcome: Outcome) -> None:
        """Takes an outcome. One for a message that was given back is thrown away."""
        if self.hold.has(held):
            size = outcome.size if isinstance(outcome, Answered) else 0
            self.hold.move(held, Place.JUDGED, size)
            self._outcomes.add((held, outcome), held.message.size + size, asyncio.get_running_loop().time())
            self._work["outcomes"].set()
            if self._outcomes.full or self.hold.heavy:
                self._enough.set()

    def announce(self, held: HeldMessage, dead: Dead) -> None:
        """The sink has the message as a dead letter; the topic may not have it."""
        if dead.message.id in self._announced:
            # It was delivered again.
            self.acknowledge(held)
            return
        self.hold.move(held, Place.SETTLED, 0)
        self._dead.append((held, dead))
        self._work["dead"].set()

    def acknowledge(self, held: HeldMessage) -> None:
        """The message has its outcome."""
        self.hold.move(held, Place.SETTLED, 0)
        self._done.append(held)
        self._work["done"].set()

    async def run(self) -> None:
        """Works for ever. Raises what Pub/Sub refuses for good."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in (self._write(), self._writer.run(), self._announce(), self._acknowledge()):
                    group.create_task(part)
        except BaseExceptionGroup as errors:
            # One of them says why; a group does not show whether it is for good.
            raise errors.exceptions[0] from None

    async def end(self, deadline: float) -> None:
        """Collects no more, and waits until nothing is left to do, until `deadline` (the loop's time)."""
        self._ending = True
        self._enough.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._busy or len(self._outcomes) or len(self._writer) or self._dead or self._done:
                    self._idle.clear()
                    await self._idle.wait()

    async def _write(self) -> None:
        while True:
            batch = await self._next_outcomes()
            await self._writer.take(batch)
            self._busy -= 1
            self._idle.set()

    async def _next_outcomes(self) -> list[Pending]:
        """Waits until as many have come as go together, or for as long as the sink says once there is one."""
        while not len(self._outcomes):
            self._work["outcomes"].clear()
            await self._work["outcomes"].wait()
        if not (self._outcomes.full or self._ending):
            self._enough.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._outcomes.wait_s):
                    await self._enough.wait()
        batch = self._outcomes.flush()
        assert batch is not None
        self._busy += 1
        return batch

    def _answered(self, answered: Sequence[HeldMessage]) -> None:
        """Their answers are in the sink."""
        now = self.now()
        for held in answered:
            self.stats.answered += 1
            self.stats.latency.add(now - held.message.waits_since.timestamp())
            self.acknowledge(held)
        self.settled(answered)

    def _kept(self, dead: Sequence[tuple[HeldMessage, Dead]], others: frozenset[str]) -> None:
        """The sink has these dead letters. One that has another outcome (`others`) is not one, and is not announced."""
        for held, each in dead:
            if each.message.id in others:
                self.stats.over += 1
                self.acknowledge(held)
                continue
            self.stats.dead += 1
            self.stats.dead_reasons[each.reason] += 1
            self.announce(held, each)
        self.settled([held for held, _ in dead])

    async def _announce(self) -> None:
        while True:
            batch = await self._next(self._dead, "dead")
            refused = await insist(self.patience, lambda: self._publish(batch), "dead-letter topic", self.absent)  # noqa: B023
            for held, dead in batch:
                if (words := refused.get(dead.message.id)) is not None:
                    self.stats.unannounced += 1
                    said = {"message_id": dead.message.id, "reason": dead.reason, "error": words}
                    log.error("the topic refuses a dead letter; only the sink has it", extra={"fields": said})
                self.acknowledge(held)
            self._announced.add(dead.message.id for _, dead in batch)
            self._busy -= 1
            self._idle.set()

    async def _publish(self, batch: list[tuple[HeldMessage, Dead]]) -> Mapping[str, str]:
        """With those that have come meanwhile: whether others are taken shows if one of them is to blame, or the topic."""
        while self._dead and len(batch) < DONE_MOST:
            batch.append(self._dead.popleft())
        return await self.dead_letters.publish([dead for _, dead in batch])

    async def _acknowledge(self) -> None:
        while True:
            batch = await self._next(self._done, "done")
            taken = await insist(self.patience, lambda: self._acknowledged(batch), "acknowledgements", self.absent)  # noqa: B023
            for held in batch:
                if not self.hold.has(held):
                    continue
                ack_id = self.hold.leases.ack_id(held.message.id)
                if ack_id is not None and ack_id not in taken:
                    self._done.append(held)  # It was delivered once more meanwhile, or was not taken for now.
                    continue
                self.stats.acknowledged += ack_id is not None
                self.hold.let_go(held)
            self._busy -= 1
            self._idle.set()
            self.freed()
            if self._done and not taken:
                await asyncio.sleep(AGAIN_S)

    async def _acknowledged(self, batch: Sequence[HeldMessage]) -> set[str]:
        """Acknowledges those of a batch that are held, by their newest deliveries; returns the ack ids that were taken.

        A message whose lease is over comes again, and has its outcome then. Raises Unavailable.
        """
        messages = [held.message.id for held in batch if self.hold.has(held)]
        sent = {ack_id: message for message in messages if (ack_id := self.hold.leases.ack_id(message)) is not None}
        if not sent:
            return set()
        unsettled = await self.source.acknowledge(list(sent))
        for ack_id in unsettled.over & sent.keys():
            self.hold.leases.lost(sent[ack_id], ack_id)
        return sent.keys() - unsettled.over - unsettled.for_now

    async def _next(self, queue: deque[T], name: str) -> list[T]:
        """Waits for work, and takes what there is of it."""
        while not queue:
            self._work[name].clear()
            await self._work[name].wait()
        if len(queue) < DONE_MOST:
            await asyncio.sleep(COLLECT_S[name])
        self._busy += 1
        return [queue.popleft() for _ in range(min(len(queue), DONE_MOST))]
