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
from typing import Final, TypeVar

from nightshift.driver.backoff import Backoff
from nightshift.stream.bundling import Bundler
from nightshift.stream.in_flight import HeldMessage, InFlight
from nightshift.stream.messages import Answered, Dead, Outcome
from nightshift.stream.ports import DeadLetterTopic, Sink, Source, insist
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


class Settler:
    """settled(messages): called when their outcomes are in the sink. freed(): called when messages are not held any more.

    now(): Unix time in seconds. absent: what is waited for, as `insist` fills it.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        dead_letters: DeadLetterTopic,
        hold: InFlight,
        patience: Backoff,
        stats: StreamStats,
        now: Callable[[], float],
        absent: set[str],
        *,
        settled: Callable[[Sequence[HeldMessage]], None],
        freed: Callable[[], None],
    ) -> None:
        self._source = source
        self._dead_letters = dead_letters
        self._hold = hold
        self._patience = patience
        self._stats = stats
        self._now = now
        self._absent = absent
        self._settled = settled
        self._freed = freed
        self._idle = asyncio.Event()
        """Something may be done: `end` checks whether all is."""
        self._writer = Writer(sink, patience, absent, self._answered, self._kept, self._idle.set)
        collect = sink.collect
        self._aside = collect.aside
        self._outcomes: Bundler[Pending] = Bundler(items_most=collect.rows, size_most=collect.size, wait_s=collect.age_s)
        self._writing = 0
        self._ending = False
        self._enough: asyncio.Future[None] | None = None
        self._dead: deque[tuple[HeldMessage, Dead]] = deque()
        self._announced: dict[str, None] = {}
        self._done: deque[HeldMessage] = deque()
        self._work = {name: asyncio.Event() for name in ("outcomes", *COLLECT_S)}
        self._busy = 0

    def put(self, held: HeldMessage, outcome: Outcome) -> None:
        """Takes an outcome. One for a message that was given back is thrown away."""
        if self._hold.has(held):
            held.judged = True
            size = held.message.size + (outcome.size if isinstance(outcome, Answered) else 0)
            self._outcomes.add((held, outcome), size, asyncio.get_running_loop().time())
            self._work["outcomes"].set()
            if self._outcomes.full:
                self._write_now()

    def announce(self, held: HeldMessage, dead: Dead) -> None:
        """The sink has the message as a dead letter; the topic may not have it."""
        if dead.message.id in self._announced:
            # It was delivered again.
            self.acknowledge(held)
            return
        self._dead.append((held, dead))
        self._work["dead"].set()

    def acknowledge(self, held: HeldMessage) -> None:
        """The message has its outcome."""
        held.settled = True
        self._done.append(held)
        self._work["done"].set()

    @property
    def aside(self) -> int:
        """Messages that have their outcome and wait for nothing but the sink, as far as they leave room for others."""
        if self._outcomes.size >= self._outcomes.size_most:
            return 0
        return min(len(self._outcomes) + self._writing + len(self._dead) + len(self._done), self._aside)

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
        self._write_now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._busy or len(self._outcomes) or len(self._writer) or self._dead or self._done:
                    self._idle.clear()
                    await self._idle.wait()

    async def _write(self) -> None:
        while True:
            batch = await self._next_outcomes()
            await self._writer.take(batch)
            self._writing = 0
            self._busy -= 1
            self._idle.set()

    async def _next_outcomes(self) -> list[Pending]:
        """Waits until as many have come as go together, or for as long as the sink says once there is one."""
        while not len(self._outcomes):
            self._work["outcomes"].clear()
            await self._work["outcomes"].wait()
        if not (self._outcomes.full or self._ending):
            loop = asyncio.get_running_loop()
            self._enough = loop.create_future()
            timer = loop.call_later(self._outcomes.wait_s, self._write_now)
            try:
                await self._enough
            finally:
                timer.cancel()
        batch = self._outcomes.flush()
        assert batch is not None
        self._busy += 1
        self._writing = len(batch)
        return batch

    def _write_now(self) -> None:
        """What has come is written without waiting for more."""
        if self._enough is not None and not self._enough.done():
            self._enough.set_result(None)

    def _answered(self, answered: Sequence[HeldMessage]) -> None:
        """Their answers are in the sink."""
        now = self._now()
        for held in answered:
            self._stats.answered += 1
            self._stats.latency.add(now - held.message.waits_since.timestamp())
            self.acknowledge(held)
        self._settled(answered)

    def _kept(self, dead: Sequence[tuple[HeldMessage, Dead]], others: frozenset[str]) -> None:
        """The sink has these dead letters. One that has another outcome (`others`) is not one, and is not announced."""
        for held, each in dead:
            if each.message.id in others:
                self._stats.over += 1
                self.acknowledge(held)
                continue
            self._stats.dead += 1
            self._stats.dead_reasons[each.reason] += 1
            held.settled = True
            self.announce(held, each)
        self._settled([held for held, _ in dead])

    async def _announce(self) -> None:
        while True:
            batch = await self._next(self._dead, "dead")
            refused = await insist(self._patience, lambda: self._publish(batch), "dead-letter topic", self._absent)  # noqa: B023
            for held, dead in batch:
                if (words := refused.get(dead.message.id)) is not None:
                    self._stats.unannounced += 1
                    said = {"message_id": dead.message.id, "reason": dead.reason, "error": words}
                    log.error("the topic refuses a dead letter; only the sink has it", extra={"fields": said})
                self._announced[dead.message.id] = None
                self.acknowledge(held)
            while len(self._announced) > REMEMBERED:
                del self._announced[next(iter(self._announced))]
            self._busy -= 1
            self._idle.set()

    async def _publish(self, batch: list[tuple[HeldMessage, Dead]]) -> Mapping[str, str]:
        """With those that have come meanwhile: whether others are taken shows if one of them is to blame, or the topic."""
        while self._dead and len(batch) < DONE_MOST:
            batch.append(self._dead.popleft())
        return await self._dead_letters.publish([dead for _, dead in batch])

    async def _acknowledge(self) -> None:
        while True:
            batch = await self._next(self._done, "done")
            taken = await insist(self._patience, lambda: self._acknowledged(batch), "acknowledgements", self._absent)  # noqa: B023
            for held in batch:
                if not self._hold.has(held):
                    continue
                ack_id = self._hold.leases.ack_id(held.message.id)
                if ack_id is not None and ack_id not in taken:
                    self._done.append(held)  # It was delivered once more meanwhile, or was not taken for now.
                    continue
                self._stats.acknowledged += ack_id is not None
                self._hold.let_go(held)
            self._busy -= 1
            self._idle.set()
            self._freed()
            if self._done and not taken:
                await asyncio.sleep(AGAIN_S)

    async def _acknowledged(self, batch: Sequence[HeldMessage]) -> set[str]:
        """Acknowledges those of a batch that are held, by their newest deliveries; returns the ack ids that were taken.

        A message whose lease is over comes again, and has its outcome then. Raises Unavailable.
        """
        messages = [held.message.id for held in batch if self._hold.has(held)]
        sent = {ack_id: message for message in messages if (ack_id := self._hold.leases.ack_id(message)) is not None}
        if not sent:
            return set()
        unsettled = await self._source.acknowledge(list(sent))
        for ack_id in unsettled.over & sent.keys():
            self._hold.leases.lost(sent[ack_id], ack_id)
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
