"""Messages on their way through a stream, and what becomes of each. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from nightshift.driver.budget import bytes_of

T = TypeVar("T")

PROBLEM: Final = "nightshift_problem"
"""The attribute that says why an object of a watched folder cannot be read. Its message has no data."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a subscription, or row of a folder, the same in every delivery.

    id: Pub/Sub's, or of object, version and row. published: in UTC, to the microsecond; when the object was created.
    Of a redriven dead letter, both are those of `nightshift.stream.redriven_ids`; again: when it was published again.
    """

    id: str
    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str
    published: datetime
    again: datetime | None = None

    @property
    def waits_since(self) -> datetime:
        """When its way through the stream began."""
        return self.again or self.published

    @property
    def size(self) -> int:
        """About the bytes that it takes in memory."""
        return len(self.data) + sum(len(key) + len(value) for key, value in self.attributes.items())


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it was delivered once. ack_id: differs with each delivery."""

    ack_id: str
    message: Message


@dataclass(frozen=True, slots=True)
class Answered:
    """A message whose row has a prediction. key: the values of the key columns as text; the message's id if there are none.

    reasoning: the model's, if it wrote some and the stream keeps it.
    """

    message: Message
    key: tuple[str, ...]
    prediction: Any
    tries: int
    reasoning: str | None = None

    @property
    def size(self) -> int:
        """About the bytes that the answer takes in memory."""
        return bytes_of(self.prediction) + bytes_of(self.reasoning)


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that cannot be answered. reason: one word, as in a nightly dead letter. text: the engine's words, or ours.

    status: of the engine's reply, if there was one. tries: requests that it was sent in. key: as in `Answered`; None if it
    could not be read.
    """

    message: Message
    reason: str
    text: str
    status: int | None
    tries: int
    key: tuple[str, ...] | None = None


Outcome = Answered | Dead


def in_parts(items: Iterable[T], size_of: Callable[[T], int], *, most: int, bytes_most: float) -> Iterator[list[T]]:
    """Items in order, in parts that go together: of `most` at most, and of `bytes_most`, unless it is one that is larger."""
    part: list[T] = []
    size = 0
    for item in items:
        own = size_of(item)
        if part and (len(part) == most or size + own > bytes_most):
            yield part
            part, size = [], 0
        part.append(item)
        size += own
    if part:
        yield part
