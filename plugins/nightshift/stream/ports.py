"""What a subscriber needs of the world: where messages come from, where outcomes go. `nightshift.stream.pubsub` and the
modules that `nightshift.spec.sinks` names are the real ones; a simulator has others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

from nightshift.driver.backoff import Backoff
from nightshift.stream.messages import Answered, Dead, Delivery, Message

log = logging.getLogger(__name__)

T = TypeVar("T")

SAY_EVERY: Final = 10
"""Failed tries of one call between two lines in the log, after the first."""


class Unavailable(Exception):
    """Pub/Sub or the database does not answer now. The same call may succeed later, and may have succeeded already."""


class Locked(Unavailable):
    """What answers is the server itself, and it does not let us in. Somebody may be changing a password at this moment."""


class BadUrl(ValueError):
    """NIGHTSHIFT_SINK_URL is not an address of the sink's kind. Its password is not in the message."""


class SinkRefused(Exception):
    """The sink refuses for good: it is not what the stream needs, or this account may not use it."""


class Unwritable(Exception):
    """The sink refuses at least one of these rows as it is."""


class Standing(Enum):
    """What the sink knows of a message."""

    NEW = auto()
    OVER = auto()
    """It is answered, or a newer message of its key is."""


@dataclass(frozen=True)
class Unsettled:
    """Ack ids of a call that had no effect for them; for all others it had. over: their leases are, and stay so. for_now: the
    same call may succeed for them."""

    over: frozenset[str] = frozenset()
    for_now: frozenset[str] = frozenset()


class Source(Protocol):
    """A subscription. Every method raises Unavailable, and may have had its effect then."""

    async def pull(self, most: int) -> list[Delivery]:
        """Up to `most` messages; waits a moment if there is nothing, and may return nothing."""
        ...

    async def acknowledge(self, ack_ids: Sequence[str]) -> Unsettled:
        """The messages need not be delivered again. They may be, all the same."""
        ...

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> Unsettled:
        """Their leases end in `seconds`; 0 gives them back now. A lease that is over stays so."""
        ...


class DeadLetterTopic(Protocol):
    """The topic of dead letters."""

    async def publish(self, dead: Sequence[Dead]) -> Mapping[str, str]:
        """Returns the ids of those that the topic does not take as they are, with its words.

        Raises Unavailable; some of them may have been published then.
        """
        ...


@dataclass(frozen=True)
class Collect:
    """How outcomes are collected for one `Sink.write`. rows: the most. size: bytes of their messages and answers, unless one
    is larger alone.

    age_s: how long the first waits for others, in seconds, once what was before it is written.
    """

    rows: int
    size: float
    age_s: float


class Sink(Protocol):
    """Where outcomes are kept. Every method raises Unavailable, and may have had its effect then: a repetition is harmless.

    A message may be written more than once: by this process, whose first write had its effect although it raised Unavailable,
    or by another one to which it was delivered too. Its outcomes may differ then. At the least, a sink guarantees that an
    outcome which is written is not lost, that of all outcomes of one message id exactly one counts, the same for every reader,
    and that of the answers to one key that of the newest message counts. Its docstring says which of an id's outcomes.
    """

    collect: Collect

    async def open(self) -> None:
        """Called once, before anything else. Raises SinkRefused if it can never take this stream's outcomes; Locked."""
        ...

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        """What is known of each message, given with its key if that could be read."""
        ...

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        """Keeps these answers. Returns the ids of those that are not kept now, though others are: another transaction holds
        their rows, for one.

        Raises Unwritable; some of them may have been kept then.
        """
        ...

    async def sound(self) -> bool:
        """Whether it would still take an answer that it took before, from this process or another with its model."""
        ...

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        """Keeps these dead letters. Returns the ids of those that are not kept, because they have another outcome already, or
        their key has a newer answer. Raises Unwritable; some of them may have been kept then.
        """
        ...


async def insist(patience: Backoff, call: Callable[[], Awaitable[T]], what: str, absent: set[str]) -> T:
    """Repeats a call until it is answered, however long that takes: what is held stays leased meanwhile.

    absent: has `what` in it while that is waited for.
    """
    tries = 0
    while True:
        try:
            reply = await call()
        except Unavailable as error:
            # Of several calls that miss the same thing, one says so first.
            first = tries == 0 and what not in absent
            absent.add(what)
            if first or (tries and tries % SAY_EVERY == 0):
                log.warning("no answer", extra={"fields": {"what": what, "tries": tries + 1, "error": str(error)}})
        else:
            absent.discard(what)
            return reply
        tries += 1
        await patience.rest(tries)
