"""Pull, acknowledgements, deadlines and nacks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import requests
from google.api_core import exceptions
from google.pubsub_v1.types import ReceivedMessage

from tests.integration.emulators import start_pubsub
from tests.integration.pubsub import LEASE_S, PubSub

pytestmark = pytest.mark.integration


@pytest.mark.gate
def test_an_acknowledged_message_is_not_delivered_again(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"1", b"2")
    first, second = pubsub.pull(subscription)
    pubsub.ack(subscription, first)
    pubsub.advance(LEASE_S + 1)

    assert pubsub.data(subscription) == [second.message.data]
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1


@pytest.mark.gate
def test_max_messages_is_kept_and_must_be_positive(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *[b"x"] * 5)

    assert len(pubsub.pull(subscription, 3)) == 3
    assert len(pubsub.pull(subscription, 3)) == 2
    for wrong in (0, -1):
        with pytest.raises(exceptions.InvalidArgument, match="max_messages"):
            pubsub.pull(subscription, wrong)


@pytest.mark.gate
def test_a_reply_has_fewer_messages_than_are_there(pubsub: PubSub) -> None:
    pubsub.replies(full=False)
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *[b"x"] * 1000)
    sizes = []
    while got := pubsub.pull(subscription, 100):
        sizes.append(len(got))
        pubsub.ack(subscription, *got)

    assert sum(sizes) == 1000
    assert 20 < len(sizes) < 80, "about 25 in each"
    assert max(sizes) <= 100
    assert len(set(sizes)) > 10


@pytest.mark.gate
def test_sizes_of_replies_follow_from_a_seed(tmp_path: Path) -> None:
    def sizes(folder: str, seed: int) -> list[int]:
        emulator = start_pubsub(tmp_path / folder)
        pubsub = PubSub(emulator)
        try:
            pubsub.replies(seed=seed)
            topic, subscription = pubsub.pair()
            pubsub.publish(topic, *[b"x"] * 300)
            return [len(pubsub.pull(subscription, 100)) for _ in range(8)]
        finally:
            pubsub.close()
            emulator.stop()

    first = sizes("first", 1)
    assert sizes("again", 1) == first
    assert sizes("other", 2) != first


def test_a_setting_of_replies_that_is_not_there_is_refused(pubsub: PubSub) -> None:
    for wrong in ({"size": 3}, {"full": "yes"}, {"seed": "x"}):
        with pytest.raises(requests.HTTPError, match="400"):
            pubsub.replies(**wrong)


@pytest.mark.gate
def test_a_pull_waits_for_a_message(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    got: list[bytes] = []

    def wait() -> None:
        reply = pubsub.subscriber.pull(subscription=subscription, max_messages=1, timeout=60, retry=None)
        got.extend(each.message.data for each in reply.received_messages)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    pubsub.publish(topic, b"late")
    waiting.join(60)

    assert got == [b"late"]


def test_a_client_that_gives_up_waiting_takes_no_message_with_it(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    with pytest.raises(exceptions.DeadlineExceeded):
        pubsub.subscriber.pull(subscription=subscription, max_messages=1, timeout=0.3, retry=None)
    pubsub.publish(topic, b"x")

    assert pubsub.data(subscription) == [b"x"]


@pytest.mark.gate
def test_an_outstanding_message_comes_again_at_its_deadline_and_not_before(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(ack_deadline_seconds=30)
    pubsub.publish(topic, b"x")
    (first,) = pubsub.pull(subscription)
    pubsub.advance(20)
    assert pubsub.data(subscription) == []
    pubsub.advance(11)

    (second,) = pubsub.pull(subscription)
    assert second.message == first.message


@pytest.mark.gate
def test_the_ack_id_is_another_one_with_each_delivery(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    ids = set()
    for _ in range(4):
        (received,) = pubsub.pull(subscription)
        ids.add(received.ack_id)
        pubsub.nack(subscription, received)

    assert len(ids) == 4


@pytest.mark.gate
def test_a_deadline_can_be_moved_up_to_600_seconds(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    (received,) = pubsub.pull(subscription)
    pubsub.modify(subscription, 600, received)
    pubsub.advance(540)
    assert pubsub.data(subscription) == []
    pubsub.modify(subscription, 120, received)
    pubsub.advance(60)
    assert pubsub.data(subscription) == []
    pubsub.advance(61)

    assert pubsub.data(subscription) == [b"x"]


def test_a_deadline_can_be_shortened(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(ack_deadline_seconds=600)
    pubsub.publish(topic, b"x")
    (received,) = pubsub.pull(subscription)
    pubsub.modify(subscription, 5, received)
    pubsub.advance(6)

    assert pubsub.data(subscription) == [b"x"]


@pytest.mark.parametrize("seconds", [-1, 601])
def test_a_deadline_out_of_bounds_is_refused(pubsub: PubSub, seconds: int) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")

    with pytest.raises(exceptions.InvalidArgument, match="ack_deadline"):
        pubsub.modify(subscription, seconds, *pubsub.pull(subscription))


@pytest.mark.gate
def test_a_nack_brings_a_message_back_at_once(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    pubsub.nack(subscription, *pubsub.pull(subscription))

    assert pubsub.data(subscription) == [b"x"]


@pytest.mark.gate
def test_a_late_ack_is_accepted_and_the_message_comes_again(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    (late,) = pubsub.pull(subscription)
    pubsub.advance(LEASE_S + 1)
    pubsub.ack(subscription, late)
    pubsub.modify(subscription, 60, late)

    assert pubsub.data(subscription) == [b"x"]


def test_an_ack_may_be_repeated(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    received = pubsub.pull(subscription)
    pubsub.ack(subscription, *received)
    pubsub.ack(subscription, *received)

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


@pytest.mark.gate
def test_a_malformed_ack_id_is_refused_and_nothing_is_done(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    (received,) = pubsub.pull(subscription)

    with pytest.raises(exceptions.InvalidArgument, match="invalid ack ID"):
        pubsub.ack(subscription, received, ReceivedMessage(ack_id="nonsense"))
    assert pubsub.statistics(subscription)["outstanding"] == 1


@pytest.mark.gate
def test_a_request_with_ack_ids_has_at_most_half_a_mebibyte(pubsub: PubSub) -> None:
    """2,500 ids, which clients once sent, are too many for ids of today's length."""
    topic, subscription = pubsub.pair()
    for _ in range(3):
        pubsub.publish(topic, *[b"x"] * 1000)
    received = [each for _ in range(3) for each in pubsub.pull(subscription, 1000)]
    assert len(received) == 3000

    with pytest.raises(exceptions.InvalidArgument, match="524288 bytes"):
        pubsub.ack(subscription, *received[:2500])
    with pytest.raises(exceptions.InvalidArgument, match="524288 bytes"):
        pubsub.modify(subscription, 60, *received[:2500])
    pubsub.ack(subscription, *received[:2000])
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1000


def test_a_request_without_ack_ids_is_refused(pubsub: PubSub) -> None:
    _, subscription = pubsub.pair()

    with pytest.raises(exceptions.InvalidArgument):
        pubsub.ack(subscription)
