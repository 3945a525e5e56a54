"""Retry delays, delivery attempts and dead letters."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.integration.pubsub import LEASE_S, PubSub

pytestmark = pytest.mark.integration


def _policy(topic: str, attempts: int = 5) -> dict[str, Any]:
    return {"dead_letter_topic": topic, "max_delivery_attempts": attempts}


def _fail(pubsub: PubSub, subscription: str) -> int:
    """Takes one message and gives it back; returns which delivery it was."""
    (received,) = pubsub.pull(subscription, 1)
    pubsub.nack(subscription, received)
    return received.delivery_attempt


@pytest.mark.gate
def test_delays_double_from_the_shortest_to_the_longest(pubsub: PubSub) -> None:
    policy = {"minimum_backoff": timedelta(seconds=100), "maximum_backoff": timedelta(seconds=500)}
    topic, subscription = pubsub.pair(retry_policy=policy)
    pubsub.publish(topic, b"x")
    for delay in (100, 200, 400, 500, 500):
        assert _fail(pubsub, subscription) == 0
        pubsub.advance(delay - 60)
        assert pubsub.data(subscription) == []
        pubsub.advance(61)

    assert pubsub.data(subscription) == [b"x"]


def test_a_deadline_is_followed_by_the_delay_too(pubsub: PubSub) -> None:
    policy = {"minimum_backoff": timedelta(seconds=60), "maximum_backoff": timedelta(seconds=60)}
    topic, subscription = pubsub.pair(retry_policy=policy)
    pubsub.publish(topic, b"x")
    pubsub.pull(subscription)
    pubsub.advance(LEASE_S + 1)
    assert pubsub.data(subscription) == []
    pubsub.advance(61)

    assert pubsub.data(subscription) == [b"x"]


def test_a_delayed_message_holds_its_key_up(pubsub: PubSub) -> None:
    policy = {"minimum_backoff": timedelta(seconds=30), "maximum_backoff": timedelta(seconds=30)}
    topic, subscription = pubsub.pair(retry_policy=policy, enable_message_ordering=True)
    pubsub.publish(topic, b"0", b"1", key="k")
    _fail(pubsub, subscription)
    assert pubsub.data(subscription) == []
    pubsub.advance(31)

    assert pubsub.data(subscription) == [b"0", b"1"]


@pytest.mark.gate
def test_a_message_that_fails_too_often_goes_to_the_dead_letter_topic(pubsub: PubSub) -> None:
    dead, letters = pubsub.pair()
    topic, subscription = pubsub.pair(dead_letter_policy=_policy(dead))
    (number,) = pubsub.publish(topic, b"poison", key="k", kind="a")
    attempts = [_fail(pubsub, subscription) for _ in range(5)]

    assert attempts == [1, 2, 3, 4, 5]
    assert pubsub.data(subscription) == []
    (letter,) = pubsub.pull(letters)
    attributes = dict(letter.message.attributes)
    assert (letter.message.data, letter.message.ordering_key, attributes.pop("kind")) == (b"poison", "k", "a")
    assert letter.message.message_id != number
    assert letter.delivery_attempt == 0
    datetime.fromisoformat(attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime"))
    assert attributes == {
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": subscription.rpartition("/")[2],
        "CloudPubSubDeadLetterSourceSubscriptionProject": "local",
    }
    statistics = pubsub.statistics(subscription)
    assert (statistics["num_undelivered_messages"], statistics["dead_lettered"]) == (0, 1)


@pytest.mark.gate
def test_a_deadline_counts_as_an_attempt_and_an_extension_does_not(pubsub: PubSub) -> None:
    dead, letters = pubsub.pair()
    topic, subscription = pubsub.pair(dead_letter_policy=_policy(dead))
    pubsub.publish(topic, b"x")
    for attempt in range(1, 6):
        (received,) = pubsub.pull(subscription)
        assert received.delivery_attempt == attempt
        pubsub.modify(subscription, 20, received)
        pubsub.advance(21)

    assert pubsub.data(letters) == [b"x"]


def test_an_ordered_key_goes_on_after_its_dead_letter(pubsub: PubSub) -> None:
    dead, letters = pubsub.pair()
    topic, subscription = pubsub.pair(dead_letter_policy=_policy(dead), enable_message_ordering=True)
    pubsub.publish(topic, b"poison", b"good", key="k")
    for _ in range(5):
        _fail(pubsub, subscription)

    assert pubsub.data(letters) == [b"poison"]
    (left,) = pubsub.pull(subscription)
    assert (left.message.data, left.delivery_attempt) == (b"good", 1)


def test_a_message_stays_if_its_dead_letter_topic_is_gone(pubsub: PubSub) -> None:
    dead = pubsub.topic()
    topic, subscription = pubsub.pair(dead_letter_policy=_policy(dead))
    pubsub.publish(topic, b"x")
    pubsub.publisher.delete_topic(topic=dead, retry=None)
    attempts = [_fail(pubsub, subscription) for _ in range(7)]

    assert attempts == [1, 2, 3, 4, 5, 6, 7]
    assert pubsub.data(subscription) == [b"x"]
