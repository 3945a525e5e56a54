"""Seeking to a time and to a snapshot, and how long messages are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from tests.integration.pubsub import LEASE_S, PubSub, unique

pytestmark = pytest.mark.integration

DAY_S = 86_400


def _snapshot(pubsub: PubSub, subscription: str) -> str:
    name = f"projects/local/snapshots/n{unique()}"
    return pubsub.subscriber.create_snapshot(name=name, subscription=subscription, retry=None).name


def _seek(pubsub: PubSub, subscription: str, time: Any = None, snapshot: str = "") -> None:
    target = {"time": time} if time else {"snapshot": snapshot}
    pubsub.subscriber.seek(request={"subscription": subscription, **target}, retry=None)


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


@pytest.mark.gate
def test_a_snapshot_brings_back_what_was_unacknowledged_and_what_came_later(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"before")
    _take(pubsub, subscription)
    pubsub.publish(topic, b"open")
    snapshot = _snapshot(pubsub, subscription)
    pubsub.publish(topic, b"after")
    _take(pubsub, subscription)
    _seek(pubsub, subscription, snapshot=snapshot)

    assert pubsub.data(subscription) == [b"open", b"after"]


def test_a_snapshot_serves_other_subscriptions_of_its_topic_only(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    other = pubsub.subscription(topic, filter='attributes.kind = "a"')
    _, stranger = pubsub.pair()
    snapshot = _snapshot(pubsub, subscription)
    pubsub.publish(topic, b"a", kind="a")
    pubsub.publish(topic, b"b", kind="b")
    _take(pubsub, other)
    _seek(pubsub, other, snapshot=snapshot)

    assert pubsub.data(other) == [b"a"]
    with pytest.raises(exceptions.InvalidArgument, match="topic"):
        _seek(pubsub, stranger, snapshot=snapshot)


def test_a_seek_needs_a_target(pubsub: PubSub) -> None:
    _, subscription = pubsub.pair()

    with pytest.raises(exceptions.InvalidArgument):
        pubsub.subscriber.seek(request={"subscription": subscription}, retry=None)


@pytest.mark.gate
def test_a_snapshot_lives_as_long_as_its_oldest_message_would(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(message_retention_duration=timedelta(days=31))
    pubsub.publish(topic, b"old")
    pubsub.advance(3 * DAY_S)
    name = _snapshot(pubsub, subscription)
    expires = pubsub.subscriber.get_snapshot(snapshot=name, retry=None).expire_time
    (old,) = pubsub.pull(subscription)
    assert expires - old.message.publish_time == pytest.approx(timedelta(days=7), abs=timedelta(seconds=1))
    pubsub.advance(4 * DAY_S)

    with pytest.raises(exceptions.NotFound):
        pubsub.subscriber.get_snapshot(snapshot=name, retry=None)


def test_a_backlog_that_is_too_old_has_no_snapshot(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(message_retention_duration=timedelta(days=31))
    pubsub.publish(topic, b"old")
    pubsub.advance(7 * DAY_S - 3000)

    with pytest.raises(exceptions.FailedPrecondition):
        _snapshot(pubsub, subscription)


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


@pytest.mark.gate
def test_a_topic_retains_messages_for_subscriptions_that_come_later(pubsub: PubSub) -> None:
    topic = pubsub.topic(message_retention_duration=timedelta(hours=1))
    before = datetime(2026, 1, 1, tzinfo=UTC)
    pubsub.publish(topic, b"1", kind="a")
    pubsub.publish(topic, b"2", kind="b")
    late = pubsub.subscription(topic, filter='attributes.kind = "b"')
    assert pubsub.data(late) == []
    _seek(pubsub, late, before)
    assert pubsub.data(late) == [b"2"]
    pubsub.advance(3700)
    later = pubsub.subscription(topic)
    _seek(pubsub, later, before)

    assert pubsub.data(later) == []


def test_retained_messages_end_with_the_retention_too(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(retain_acked_messages=True, message_retention_duration=timedelta(minutes=10))
    pubsub.publish(topic, b"1")
    (published,) = _take(pubsub, subscription)
    pubsub.advance(610)
    _seek(pubsub, subscription, published)

    assert pubsub.data(subscription) == []
