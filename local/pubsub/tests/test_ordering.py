"""Messages with an ordering key, in a subscription with message ordering."""

from __future__ import annotations

import pytest

from tests.integration.pubsub import LEASE_S, PubSub

pytestmark = pytest.mark.integration


def _numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(start, end)]


@pytest.mark.gate
def test_messages_of_a_key_come_in_the_order_of_publishing(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    for n in range(30):
        pubsub.publish(topic, b"%d" % n, key="k")
    got = []
    while batch := pubsub.pull(subscription, 7):
        got += [each.message.data for each in batch]
        pubsub.ack(subscription, *batch)

    assert got == _numbers(0, 30)


@pytest.mark.gate
def test_one_batch_of_a_key_is_outstanding_at_a_time(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.publish(topic, *_numbers(0, 6), key="k")
    first = pubsub.pull(subscription, 3)
    assert [each.message.data for each in first] == _numbers(0, 3)
    assert pubsub.data(subscription) == []
    pubsub.ack(subscription, *first[:2])
    assert pubsub.data(subscription) == []
    pubsub.ack(subscription, first[2])

    assert pubsub.data(subscription) == _numbers(3, 6)


@pytest.mark.gate
def test_other_keys_and_messages_without_one_are_not_held_up(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.publish(topic, b"a1", b"a2", key="a")
    pubsub.publish(topic, b"b1", key="b")
    pubsub.publish(topic, b"free")
    assert pubsub.data(subscription, 1) == [b"a1"]

    assert sorted(pubsub.data(subscription)) == [b"b1", b"free"]


@pytest.mark.gate
def test_a_nack_brings_back_all_later_messages_of_the_key_the_acknowledged_ones_too(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.publish(topic, *_numbers(0, 5), key="k")
    received = pubsub.pull(subscription, 4)
    pubsub.ack(subscription, received[0], received[2])
    pubsub.nack(subscription, received[1])

    assert pubsub.data(subscription) == _numbers(1, 5)


@pytest.mark.gate
def test_a_deadline_brings_back_all_later_messages_of_the_key(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.publish(topic, *_numbers(0, 4), key="k")
    received = pubsub.pull(subscription)
    pubsub.modify(subscription, 600, received[0], received[2], received[3])
    pubsub.advance(LEASE_S + 1)
    # The first is still out, so nothing of the key is delivered to another consumer.
    assert pubsub.data(subscription) == []
    pubsub.ack(subscription, received[0])

    assert pubsub.data(subscription) == _numbers(1, 4)


def test_what_is_acknowledged_in_order_does_not_come_back(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    pubsub.publish(topic, *_numbers(0, 3), key="k")
    received = pubsub.pull(subscription)
    pubsub.ack(subscription, received[0])
    pubsub.nack(subscription, received[1])

    assert pubsub.data(subscription) == _numbers(1, 3)
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 2


def test_without_the_setting_a_key_holds_nothing_up(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *_numbers(0, 2), key="k")
    assert len(pubsub.pull(subscription, 1)) == 1

    assert pubsub.data(subscription) == [b"1"]


def test_many_keys_stay_in_order_through_nacks(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_message_ordering=True)
    for n in range(20):
        for key in "abcde":
            pubsub.publish(topic, b"%d" % n, key=key)
    got: dict[str, list[int]] = {key: [] for key in "abcde"}
    turn = 0
    while batch := pubsub.pull(subscription, 13):
        given_back = set()
        for received in batch:
            turn += 1
            key = received.message.ordering_key
            # What follows a nacked message in the batch comes again, too.
            if turn % 7 == 0 and key not in given_back:
                pubsub.nack(subscription, received)
                given_back.add(key)
            if key not in given_back:
                pubsub.ack(subscription, received)
                got[key].append(int(received.message.data))

    assert turn > 100
    assert got == {key: list(range(20)) for key in "abcde"}
