"""Seeking to a time, and how long messages are kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from tests.integration.pubsub import LEASE_S, PubSub

pytestmark = pytest.mark.integration


def _seek(pubsub: PubSub, subscription: str, time: Any) -> None:
    pubsub.subscriber.seek(request={"subscription": subscription, "time": time}, retry=None)


def _take(pubsub: PubSub, subscription: str) -> list[Any]:
    """Acknowledges everything; returns when it was published."""
    received = pubsub.pull(subscription)
    pubsub.ack(subscription, *received)
    return [each.message.publish_time for each in received]


@pytest.mark.gate
def test_seeking_back_brings_retained_messages_again(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(retain_acked_messages=True)
    pubsub.publish(topic, b"1")
    pubsub.advance(60)
    pubsub.publish(topic, b"2")
    first, second = _take(pubsub, subscription)
    assert pubsub.data(subscription) == []
    _seek(pubsub, subscription, first + (second - first) / 2)
    assert pubsub.data(subscription) == [b"2"]
    _seek(pubsub, subscription, first)

    assert pubsub.data(subscription) == [b"1", b"2"]


@pytest.mark.gate
def test_without_retention_acknowledged_messages_are_gone(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"1")
    (published,) = _take(pubsub, subscription)
    _seek(pubsub, subscription, published - timedelta(minutes=1))

    assert pubsub.data(subscription) == []


@pytest.mark.gate
def test_seeking_to_the_future_purges(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"1")
    (outstanding,) = pubsub.pull(subscription)
    pubsub.publish(topic, b"2")
    _seek(pubsub, subscription, outstanding.message.publish_time + timedelta(days=1))
    pubsub.advance(LEASE_S + 1)
    assert pubsub.data(subscription) == []
    pubsub.publish(topic, b"3")

    assert pubsub.data(subscription) == [b"3"]


def test_a_seek_ends_all_leases(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(ack_deadline_seconds=600)
    pubsub.publish(topic, b"1")
    (old,) = pubsub.pull(subscription)
    _seek(pubsub, subscription, old.message.publish_time)
    pubsub.ack(subscription, old)

    assert pubsub.data(subscription) == [b"1"]


def test_a_seek_needs_a_target(pubsub: PubSub) -> None:
    _, subscription = pubsub.pair()

    with pytest.raises(exceptions.InvalidArgument):
        pubsub.subscriber.seek(request={"subscription": subscription}, retry=None)
    with pytest.raises(exceptions.MethodNotImplemented, match="This emulator has no snapshots"):
        pubsub.subscriber.seek(request={"subscription": subscription, "snapshot": "projects/p/snapshots/s"}, retry=None)


@pytest.mark.gate
def test_messages_are_dropped_at_the_end_of_their_retention(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(message_retention_duration=timedelta(minutes=10))
    pubsub.publish(topic, b"1")
    pubsub.advance(500)
    pubsub.publish(topic, b"2")
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 2
    pubsub.advance(110)

    assert pubsub.data(subscription) == [b"2"]
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1


def test_a_message_is_dropped_while_it_is_outstanding_too(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(
        message_retention_duration=timedelta(minutes=10), ack_deadline_seconds=600, enable_message_ordering=True
    )
    pubsub.publish(topic, b"1", key="k")
    pubsub.advance(500)
    pubsub.pull(subscription)
    pubsub.publish(topic, b"2", key="k")
    pubsub.advance(110)

    assert pubsub.data(subscription) == [b"2"]


def test_retained_messages_end_with_the_retention_too(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(retain_acked_messages=True, message_retention_duration=timedelta(minutes=10))
    pubsub.publish(topic, b"1")
    (published,) = _take(pubsub, subscription)
    pubsub.advance(610)
    _seek(pubsub, subscription, published)

    assert pubsub.data(subscription) == []
