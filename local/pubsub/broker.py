"""Publishing, delivering, acknowledging, dead letters and retention: each call is one transaction."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

from local.pubsub import limits
from local.pubsub.errors import failed_precondition, invalid
from local.pubsub.leases import Consumer, Entry, Lease, Message, Repeats, is_ack_id
from local.pubsub.messages import PubsubMessage, ReceivedMessage
from local.pubsub.state import State, SubscriptionState

RESPONSE_MESSAGES: Final = 1000
RESPONSE_BYTES: Final = 3_500_000
"""Of one response, one larger message aside. The service may always return fewer than asked for. With PUBSUB_EMULATOR_HOST,
Google's clients for Python take responses of 4 MiB at most."""
SWEEP_S: Final = 5.0
DEAD_LETTER: Final = "CloudPubSubDeadLetterSource"


class Broker:
    def __init__(self, state: State) -> None:
        self.state = state
        self._next_sweep = 0.0

    def publish(self, request: Any) -> list[str]:
        """A PublishRequest; returns the ids of its messages once they are stored."""
        limits.check_publish(request)
        self.state.topic(request.topic)
        with self.state.transaction():
            return self._publish(request.topic, request.messages)

    def take(self, subscription: SubscriptionState, consumer: Consumer, most: int, repeats: Repeats) -> list[Any]:
        """Up to N ReceivedMessages for a consumer. Raises Refusal if the subscription is detached."""
        if subscription.resource.detached:
            raise failed_precondition("The subscription is detached from its topic.")
        self._pass_time(subscription)
        now = self.state.clock.now()
        leases = subscription.backlog.take(consumer, min(most, RESPONSE_MESSAGES), RESPONSE_BYTES, now, repeats)
        return [self._received(subscription, lease) for lease in leases]

    def acknowledge(self, subscription: SubscriptionState, ack_ids: Sequence[str]) -> dict[str, str]:
        """Returns what failed, by ack id. Raises Refusal if one is malformed."""
        self._check_ids(ack_ids)
        failed = subscription.backlog.acknowledge(ack_ids, self.state.clock.now())
        subscription.acked += len(ack_ids) - len(failed)
        self.settle(subscription)
        return failed

    def modify(self, subscription: SubscriptionState, ack_ids: Sequence[str], seconds: int) -> dict[str, str]:
        """Returns what failed, by ack id. Raises Refusal if one is malformed, or the time is not valid."""
        self._check_ids(ack_ids)
        limits.check_deadline(seconds, least=0)
        failed = subscription.backlog.modify(ack_ids, seconds, self.state.clock.now())
        self.settle(subscription)
        return failed

    def settle(self, subscription: SubscriptionState) -> None:
        """Stores what has changed, forwards dead letters, and wakes those who wait."""
        backlog = subscription.backlog
        if not backlog.dirty and not backlog.dead:
            subscription.bell.ring()
            return
        with self.state.transaction():
            dead, backlog.dead = backlog.dead, []
            for entry in dead:
                self._forward(subscription, entry)
            self.state.save(subscription)
        subscription.bell.ring()

    def tick(self) -> None:
        """Carries out what time brings; call it several times a second."""
        now = self.state.clock.now()
        for subscription in list(self.state.subscriptions.values()):
            self._pass_time(subscription)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            self._expire(now)

    def _pass_time(self, subscription: SubscriptionState) -> None:
        now = self.state.clock.now()
        if subscription.backlog.due(now):
            subscription.backlog.advance(now)
            self.settle(subscription)

    def _publish(self, topic: str, messages: Sequence[Any]) -> list[str]:
        # In whole microseconds, as in a publish time, so that a seek to it finds the message.
        now_us = int(self.state.clock.now() * 1e6)
        new = []
        for number, message in zip(self.state.new_ids(len(messages)), messages, strict=True):
            message.message_id = str(number)
            message.publish_time.FromMicroseconds(now_us)
            new.append((Message(number, now_us / 1e6, message.ordering_key, message.SerializeToString()), message.attributes))
        readers = []
        for subscription in self.state.subscriptions_of(topic):
            wanted = [each for each, attributes in new if subscription.matches(attributes)]
            if wanted:
                readers.append((subscription, wanted))
        self.state.store({each.id: each for _, wanted in readers for each in wanted}.values())
        for subscription, wanted in readers:
            self.state.hold(subscription.id, wanted)
            for each in wanted:
                subscription.backlog.add(each)
            subscription.bell.ring()
        return [str(each.id) for each, _ in new]

    def _forward(self, subscription: SubscriptionState, entry: Entry) -> None:
        """Publishes a dead letter and acknowledges the original; page: Handle message failures."""
        policy = subscription.resource.dead_letter_policy
        if policy.dead_letter_topic not in self.state.topics:
            subscription.backlog.put_back(entry)
            return
        original = PubsubMessage.FromString(entry.message.body)
        published = datetime.datetime.fromtimestamp(entry.message.published, datetime.UTC)
        _, project, _, name = subscription.resource.name.split("/")
        copy = PubsubMessage(data=original.data, attributes=original.attributes, ordering_key=original.ordering_key)
        copy.attributes[f"{DEAD_LETTER}DeliveryCount"] = str(entry.attempts)
        copy.attributes[f"{DEAD_LETTER}Subscription"] = name
        copy.attributes[f"{DEAD_LETTER}SubscriptionProject"] = project
        copy.attributes[f"{DEAD_LETTER}TopicPublishTime"] = published.isoformat(timespec="milliseconds")
        self._publish(policy.dead_letter_topic, [copy])
        subscription.backlog.discard(entry)
        subscription.dead_lettered += 1

    def _expire(self, now: float) -> None:
        """Drops messages that are older than their retention."""
        for subscription in self.state.subscriptions.values():
            subscription.backlog.expire(now - subscription.resource.message_retention_duration.ToSeconds())
            if subscription.backlog.dirty:
                self.settle(subscription)

    def _received(self, subscription: SubscriptionState, lease: Lease) -> Any:
        received = ReceivedMessage(ack_id=lease.ack_id)
        received.message.MergeFromString(lease.entry.message.body)
        if subscription.backlog.settings.attempts_most is not None:
            received.delivery_attempt = lease.attempt
        return received

    def _check_ids(self, ack_ids: Sequence[str]) -> None:
        for ack_id in ack_ids:
            if not is_ack_id(ack_id):
                raise invalid(f"You have passed an invalid ack ID to the service (ack_id={ack_id[:80]}).")
