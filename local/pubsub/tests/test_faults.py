"""Faults that a test asks for, and the statistics."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import PubsubMessage

from tests.integration.pubsub import LEASE_S, PubSub, unique

pytestmark = pytest.mark.integration


@pytest.mark.gate
def test_every_nth_delivery_is_made_twice(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="duplicate", resource=subscription, every=3)
    numbers = pubsub.publish(topic, *[b"x"] * 9)
    received = pubsub.pull(subscription)

    assert len(received) == 12
    assert len({each.ack_id for each in received}) == 12
    assert sorted(pubsub.deliveries(subscription).values()) == [1] * 6 + [2] * 3
    assert pubsub.deliveries(subscription).keys() == set(numbers)
    # One ack is enough for both deliveries of a message.
    firsts = {each.message.message_id: each for each in reversed(received)}
    pubsub.ack(subscription, *firsts.values())
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


def test_a_fault_strikes_one_method_alone(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="unavailable", method="Acknowledge", resource=subscription, times=1)
    pubsub.publish(topic, b"x")
    (received,) = pubsub.pull(subscription)
    with pytest.raises(exceptions.ServiceUnavailable):
        pubsub.ack(subscription, received)
    pubsub.ack(subscription, received)

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


def test_a_setting_can_fail_too(pubsub: PubSub) -> None:
    topic = pubsub.topic()
    name = f"projects/local/subscriptions/s{unique()}"
    pubsub.order(kind="lose_reply", method="CreateSubscription", resource=name, times=1)
    with pytest.raises(exceptions.ServiceUnavailable):
        pubsub.subscriber.create_subscription(name=name, topic=topic, retry=None)

    with pytest.raises(exceptions.AlreadyExists):
        pubsub.subscriber.create_subscription(name=name, topic=topic, retry=None)


def test_a_nack_of_one_of_two_deliveries_leaves_the_other_one(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="duplicate", resource=subscription)
    pubsub.publish(topic, b"x")
    first, second = pubsub.pull(subscription)
    pubsub.nack(subscription, first)
    assert pubsub.data(subscription) == []
    pubsub.ack(subscription, second)

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


def test_exactly_once_delivery_has_no_duplicates(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_exactly_once_delivery=True)
    pubsub.order(kind="duplicate", resource=subscription)
    pubsub.publish(topic, b"x")

    assert pubsub.data(subscription) == [b"x"]


@pytest.mark.gate
def test_dropped_acks_are_answered_and_forgotten(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    pubsub.order(kind="drop_acks", resource=subscription, times=1)
    pubsub.ack(subscription, *pubsub.pull(subscription))
    pubsub.advance(LEASE_S + 1)
    (again,) = pubsub.pull(subscription)
    pubsub.ack(subscription, again)

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


@pytest.mark.gate
def test_a_lost_reply_comes_after_the_work_was_done(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="lose_reply", method="Publish", resource=topic, times=1)
    with pytest.raises(exceptions.ServiceUnavailable):
        pubsub.publish(topic, b"x")
    (received,) = pubsub.pull(subscription)
    pubsub.order(kind="lose_reply", method="Acknowledge", resource=subscription, times=1)
    with pytest.raises(exceptions.ServiceUnavailable):
        pubsub.ack(subscription, received)

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


@pytest.mark.gate
def test_an_unavailable_service_does_nothing(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="unavailable", method="Publish", resource=topic, for_s=60)
    for _ in range(3):
        with pytest.raises(exceptions.ServiceUnavailable):
            pubsub.publish(topic, b"x")
    assert pubsub.data(subscription) == []
    pubsub.advance(61)
    pubsub.publish(topic, b"y")

    assert pubsub.data(subscription) == [b"y"]


@pytest.mark.gate
def test_a_delayed_call_waits(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="delay", method="Publish", resource=topic, delay_s=600, times=1)
    with pytest.raises(exceptions.DeadlineExceeded):
        pubsub.publisher.publish(topic=topic, messages=[PubsubMessage(data=b"x")], retry=None, timeout=5)
    pubsub.order(kind="delay", method="Publish", resource=topic, delay_s=0.1, times=1)
    pubsub.publish(topic, b"y")

    # The client of the first call did not wait for it, so it was given up.
    assert pubsub.data(subscription) == [b"y"]


def test_faults_strike_only_what_they_name_and_can_be_ended(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.order(kind="unavailable", method="Publish", resource="projects/local/topics/another")
    pubsub.order(kind="unavailable", method="Pull", resource=subscription)
    pubsub.publish(topic, b"x")
    with pytest.raises(exceptions.ServiceUnavailable):
        pubsub.pull(subscription)
    assert [fault["done"] for fault in pubsub.faults()] == [0, 1]
    pubsub.end_faults()

    assert pubsub.data(subscription) == [b"x"]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"kind": "fire"}, "there is no fault"),
        ({"kind": "delay"}, "delay needs delay_s"),
        ({"kind": "unavailable", "delay_s": 1}, "no other fault has it"),
        ({"kind": "unavailable", "every": 0}, "at least 1"),
        ({"kind": "unavailable", "verb": "Pull"}, "no field verb"),
    ],
)
def test_an_order_that_is_not_valid_is_refused(pubsub: PubSub, order: dict[str, object], said: str) -> None:
    assert said in pubsub.refused_order(**order)
    assert pubsub.faults() == []


@pytest.mark.gate
def test_statistics_count_outstanding_messages_as_undelivered(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    empty = pubsub.statistics(subscription)
    assert (empty["num_undelivered_messages"], empty["oldest_unacked_message_age_s"]) == (0, 0)
    pubsub.publish(topic, b"1")
    pubsub.advance(100)
    pubsub.publish(topic, b"2", b"3")
    first, second = pubsub.pull(subscription, 2)
    pubsub.nack(subscription, second)
    pubsub.pull(subscription, 1)
    before = pubsub.statistics(subscription)
    pubsub.ack(subscription, first)
    after = pubsub.statistics(subscription)

    assert (before["num_undelivered_messages"], before["outstanding"], before["delivered"], before["acked"]) == (3, 2, 3, 0)
    assert before["oldest_unacked_message_age_s"] >= 100
    assert (after["num_undelivered_messages"], after["outstanding"], after["acked"]) == (2, 1, 1)
    assert after["oldest_unacked_message_age_s"] < before["oldest_unacked_message_age_s"] - 50
    assert sorted(pubsub.deliveries(subscription).values()) == [1, 2]
