"""All topics, subscriptions and messages, in memory and in the database. Nothing here knows gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from local.pubsub import filters, limits
from local.pubsub.backlog import Backlog
from local.pubsub.clock import Clock
from local.pubsub.database import Database
from local.pubsub.errors import not_found
from local.pubsub.leases import Message, Settings
from local.pubsub.messages import Subscription, Topic

DELETED_TOPIC: Final = "_deleted-topic_"


class Bell:
    """Wakes those who wait for something to happen in a subscription."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Returns when the bell rings, or after that many seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            self._waiting.discard(future)


@dataclass(eq=False)
class TopicState:
    id: int
    resource: Any


@dataclass(eq=False)
class SubscriptionState:
    """acked, dead_lettered: messages since this process started; pulls: calls."""

    id: int
    resource: Any
    backlog: Backlog
    matches: filters.Filter
    bell: Bell = field(default_factory=Bell)
    pulls: int = 0
    acked: int = 0
    dead_lettered: int = 0


Owner = TypeVar("Owner", TopicState, SubscriptionState)


def settings_of(subscription: Any) -> Settings:
    """What delivery depends on, of a Subscription."""
    dead_letters = subscription.dead_letter_policy.max_delivery_attempts or limits.ATTEMPTS_LEAST
    return Settings(
        ordered=subscription.enable_message_ordering,
        exactly_once=subscription.enable_exactly_once_delivery,
        retain_acked=subscription.retain_acked_messages,
        attempts_most=dead_letters if subscription.dead_letter_policy.dead_letter_topic else None,
        backoff=limits.backoff_of(subscription.retry_policy) if subscription.HasField("retry_policy") else None,
    )


class State:
    """messages: all that a subscription holds, by id. Raises `local.pubsub.errors.Refusal` for names that are not there."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.clock = clock
        self.topics: dict[str, TopicState] = {}
        self.subscriptions: dict[str, SubscriptionState] = {}
        self._database = database
        self._messages: dict[int, Message] = {}
        # Ids go on growing over restarts, also those of messages that no subscription held.
        self._last_id = time.time_ns() // 1000
        with database.transaction():
            self._load()

    def topic(self, name: str) -> TopicState:
        limits.check_name(name, "topics")
        return _find(self.topics, name)

    def subscription(self, name: str) -> SubscriptionState:
        limits.check_name(name, "subscriptions")
        return _find(self.subscriptions, name)

    def subscriptions_of(self, topic: str) -> list[SubscriptionState]:
        return [each for each in self.subscriptions.values() if each.resource.topic == topic and not each.resource.detached]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._database.transaction():
            yield

    def new_ids(self, count: int) -> range:
        first = self._last_id + 1
        self._last_id += count
        return range(first, first + count)

    def add_topic(self, resource: Any) -> None:
        number = self._database.add_owner("topic", resource.name, resource.SerializeToString())
        self.topics[resource.name] = TopicState(number, resource)

    def add_subscription(self, resource: Any) -> None:
        number = self._database.add_owner("subscription", resource.name, resource.SerializeToString())
        self.subscriptions[resource.name] = _subscription(number, resource)

    def changed(self, owner: TopicState | SubscriptionState) -> None:
        """Stores an owner whose resource has changed."""
        self._database.change_owner(owner.id, owner.resource.SerializeToString())

    def remove(self, owner: TopicState | SubscriptionState) -> None:
        """Removes an owner; the caller takes it out of its dictionary first."""
        if isinstance(owner, SubscriptionState):
            self.release(owner.id, list(owner.backlog.entries))
        self._database.remove_owner(owner.id)

    def store(self, messages: Iterable[Message]) -> None:
        """Stores new messages; a subscription must then hold each."""
        rows = []
        for message in messages:
            self._messages[message.id] = message
            rows.append((message.id, round(message.published * 1e6), message.key, message.body))
        self._database.add_messages(rows)

    def hold(self, owner: int, messages: Sequence[Message]) -> None:
        """A subscription begins to hold messages that it did not hold."""
        for message in messages:
            message.holders += 1
        self._database.hold(owner, ((message.id, False, 0) for message in messages))

    def release(self, owner: int, numbers: Iterable[int]) -> None:
        """A subscription lets go of messages. Those that none holds any more are deleted."""
        numbers = list(numbers)
        self._database.release(owner, numbers)
        orphans = []
        for number in numbers:
            message = self._messages[number]
            message.holders -= 1
            if not message.holders:
                orphans.append(number)
                del self._messages[number]
        self._database.remove_messages(orphans)

    def save(self, subscription: SubscriptionState) -> None:
        """Stores what has changed in a subscription's backlog."""
        backlog = subscription.backlog
        dirty, backlog.dirty = backlog.dirty, set()
        kept = [entry for number in dirty if (entry := backlog.entries.get(number))]
        self._database.hold(subscription.id, ((entry.message.id, entry.acked, entry.attempts) for entry in kept))
        self.release(subscription.id, dirty - {entry.message.id for entry in kept})

    def _load(self) -> None:
        for number, published_us, key, body in self._database.messages():
            self._messages[number] = Message(number, published_us / 1e6, key, body)
            self._last_id = max(self._last_id, number)
        for number, kind, body in self._database.owners():
            if kind == "topic":
                topic = TopicState(number, Topic.FromString(body))
                self.topics[topic.resource.name] = topic
            elif kind == "subscription":
                self._load_subscription(number, body)

    def _load_subscription(self, number: int, body: bytes) -> None:
        rows = self._database.held(number)
        for message, _, _ in rows:
            self._messages[message].holders += 1
        subscription = _subscription(number, Subscription.FromString(body))
        self.subscriptions[subscription.resource.name] = subscription
        # Acknowledged out of order, and kept for the case that an earlier one comes back: the answer to the ack holds.
        over = [] if subscription.backlog.settings.retain_acked else [message for message, acked, _ in rows if acked]
        self.release(number, over)
        gone = set(over)
        left = [(self._messages[message], bool(acked), attempts) for message, acked, attempts in rows if message not in gone]
        subscription.backlog.fill(left)


def _subscription(number: int, resource: Any) -> SubscriptionState:
    return SubscriptionState(number, resource, Backlog(number, settings_of(resource)), filters.parse(resource.filter))


def _find(places: Mapping[str, Owner], name: str) -> Owner:
    try:
        return places[name]
    except KeyError:
        raise not_found(name) from None
