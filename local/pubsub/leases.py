"""What a subscription knows about its messages: entries, leases, and who holds them. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_LIFE: Final = secrets.token_hex(4)
_PAD: Final = "RkhRNxkIaE5RA7E" * 12
_NUMBER: Final = 16
ACK_ID_CHARACTERS: Final = len(_LIFE) + 2 * _NUMBER + len(_PAD)
"""220: as long as those that users of Pub/Sub have seen, so that a request with too many of them is refused here, too."""


@dataclass(slots=True)
class Message:
    """published: seconds since 1970. key: its ordering key. body: a serialized PubsubMessage with id and publish time.

    holders: how many subscriptions keep it.
    """

    id: int
    published: float
    key: str
    body: bytes
    holders: int = 0


@dataclass(slots=True, eq=False)
class Entry:
    """One message in one subscription.

    attempts: deliveries that ended with a nack or at a deadline while there was a dead-letter policy. failures: all of them.
    queued: whether it waits in the heap of messages that can be delivered.
    """

    message: Message
    acked: bool = False
    attempts: int = 0
    failures: int = 0
    ready_at: float = 0.0
    queued: bool = False
    leases: list[Lease] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Consumer:
    """Who gets messages: one answer to a Pull.

    deadline_s: of its deliveries. more: ordering keys of which it has messages and could get later ones.
    """

    deadline_s: int
    more: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lease:
    """One delivery. deadline: seconds since 1970. attempt: which delivery of the message it is, from 1."""

    ack_id: str
    entry: Entry
    consumer: Consumer
    deadline: float
    attempt: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a subscription, as far as delivery depends on them. backoff: shortest and longest delay in seconds.

    attempts_most: deliveries before a message becomes a dead letter; None: it has no policy for them.
    """

    ordered: bool = False
    exactly_once: bool = False
    retain_acked: bool = False
    attempts_most: int | None = None
    backoff: tuple[float, float] | None = None


def new_ack_id(owner: int, delivery: int) -> str:
    return f"{_LIFE}{owner:016x}{delivery:016x}{_PAD}"


def is_ack_id(text: str) -> bool:
    """Whether this emulator, in any of its runs, could have given it out."""
    return len(text) == ACK_ID_CHARACTERS and text.endswith(_PAD)


Repeats = Callable[[Entry], bool]
"""Whether a delivery is to be made twice; for faults that a test asked for."""


def once(_: Entry) -> bool:
    return False
