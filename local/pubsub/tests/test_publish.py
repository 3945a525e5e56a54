"""Publishing: the limits of a request and of a message, ids, times, and what a subscription gets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import PubsubMessage

from tests.integration.pubsub import PubSub

pytestmark = pytest.mark.integration


def _publish(pubsub: PubSub, topic: str, *messages: PubsubMessage) -> None:
    pubsub.publisher.publish(topic=topic, messages=list(messages), retry=None)


@pytest.mark.gate
def test_a_message_arrives_as_it_was_published(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    (number,) = pubsub.publish(topic, b"\x00data", key="k", a="1", b="ü")
    (received,) = pubsub.pull(subscription)

    message = received.message
    assert (message.data, message.ordering_key, dict(message.attributes)) == (b"\x00data", "k", {"a": "1", "b": "ü"})
    assert message.message_id == number
    assert received.delivery_attempt == 0


def test_publish_times_are_those_of_the_service(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    own = PubsubMessage(data=b"1", publish_time=datetime(2001, 1, 1, tzinfo=UTC), message_id="mine")
    _publish(pubsub, topic, own)
    pubsub.advance(60)
    pubsub.publish(topic, b"2")
    messages: list[Any] = [each.message for each in pubsub.pull(subscription)]
    first, second = messages

    assert first.message_id != "mine"
    assert first.publish_time > datetime(2026, 1, 1, tzinfo=UTC)
    assert second.publish_time - first.publish_time >= timedelta(seconds=60)


def test_each_subscription_gets_each_message(pubsub: PubSub) -> None:
    topic, first = pubsub.pair()
    second = pubsub.subscription(topic)
    pubsub.publish(topic, b"x")
    pubsub.ack(first, *pubsub.pull(first))

    assert pubsub.data(second) == [b"x"]


def test_a_subscription_gets_nothing_that_was_published_before_it(pubsub: PubSub) -> None:
    topic = pubsub.topic()
    pubsub.publish(topic, b"early")

    assert pubsub.data(pubsub.subscription(topic)) == []


@pytest.mark.gate
def test_ids_are_unique_in_a_topic(pubsub: PubSub) -> None:
    topic, _ = pubsub.pair()
    numbers = [number for _ in range(3) for number in pubsub.publish(topic, *[b"x"] * 1000)]

    assert len(set(numbers)) == 3000


@pytest.mark.gate
def test_a_request_has_at_most_a_thousand_messages(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    with pytest.raises(exceptions.InvalidArgument, match="1000"):
        pubsub.publish(topic, *[b"x"] * 1001)

    assert pubsub.data(subscription) == []


@pytest.mark.gate
def test_a_request_has_at_most_ten_million_bytes(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    with pytest.raises(exceptions.InvalidArgument, match="10000000 bytes"):
        pubsub.publish(topic, b"x" * 5_000_000, b"x" * 5_000_000)
    with pytest.raises(exceptions.InvalidArgument, match="10000000 bytes"):
        pubsub.publish(topic, b"x" * 10_000_000)
    pubsub.publish(topic, b"x" * 9_900_000)

    assert [len(each) for each in pubsub.data(subscription)] == [9_900_000]


def test_large_messages_come_in_several_responses(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    for _ in range(4):
        pubsub.publish(topic, b"x" * 1_500_000)
    counts = [len(pubsub.pull(subscription)) for _ in range(3)]

    assert counts == [2, 2, 0]


@pytest.mark.gate
@pytest.mark.parametrize(
    "message",
    [
        PubsubMessage(),
        PubsubMessage(ordering_key="only"),
        PubsubMessage(data=b"x", attributes={str(n): "v" for n in range(101)}),
        PubsubMessage(data=b"x", attributes={"k" * 257: "v"}),
        PubsubMessage(data=b"x", attributes={"ü" * 129: "v"}),
        PubsubMessage(data=b"x", attributes={"": "v"}),
        PubsubMessage(data=b"x", attributes={"goog-k": "v"}),
        PubsubMessage(data=b"x", attributes={"k": "v" * 1025}),
        PubsubMessage(data=b"x", ordering_key="k" * 1025),
    ],
    ids=["empty", "a key alone", "101 attributes", "key", "key in bytes", "no key", "reserved", "value", "ordering key"],
)
def test_a_message_that_is_not_valid_is_refused(pubsub: PubSub, message: PubsubMessage) -> None:
    topic, subscription = pubsub.pair()
    with pytest.raises(exceptions.InvalidArgument):
        _publish(pubsub, topic, PubsubMessage(data=b"good"), message)

    assert pubsub.data(subscription) == []


def test_a_message_at_the_limits_is_taken(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    attributes = {f"{n:03}" + "k" * 253: "v" * 1024 for n in range(100)}
    _publish(pubsub, topic, PubsubMessage(attributes=attributes, ordering_key="k" * 1024))

    assert [dict(each.message.attributes) for each in pubsub.pull(subscription)] == [attributes]


@pytest.mark.gate
def test_a_request_has_one_ordering_key(pubsub: PubSub) -> None:
    topic, _ = pubsub.pair()

    with pytest.raises(exceptions.InvalidArgument, match="same ordering key"):
        _publish(pubsub, topic, PubsubMessage(data=b"1", ordering_key="a"), PubsubMessage(data=b"2", ordering_key="b"))
    with pytest.raises(exceptions.InvalidArgument, match="same ordering key"):
        _publish(pubsub, topic, PubsubMessage(data=b"1", ordering_key="a"), PubsubMessage(data=b"2"))


def test_a_request_without_messages_is_refused(pubsub: PubSub) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        _publish(pubsub, pubsub.topic())
