"""Subscriptions with exactly-once delivery: what clients learn about their acks."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber._protocol.streaming_pull_manager import _get_ack_errors  # type: ignore[import-untyped]

from tests.integration.pubsub import LEASE_S, PubSub

pytestmark = pytest.mark.integration

INVALID = "PERMANENT_FAILURE_INVALID_ACK_ID"


@pytest.fixture
def pair(pubsub: PubSub) -> tuple[str, str]:
    return pubsub.pair(enable_exactly_once_delivery=True)


@pytest.mark.gate
def test_an_ack_after_the_deadline_fails_and_says_which(pubsub: PubSub, pair: tuple[str, str]) -> None:
    topic, subscription = pair
    pubsub.publish(topic, b"1", b"2")
    late, good = pubsub.pull(subscription)
    pubsub.modify(subscription, 600, good)
    pubsub.advance(LEASE_S + 1)

    with pytest.raises(exceptions.InvalidArgument, match="acknowledgement ids") as caught:
        pubsub.ack(subscription, late, good)
    assert dict(_get_ack_errors(caught.value) or {}) == {late.ack_id: INVALID}
    # The others of the request are acknowledged.
    assert pubsub.data(subscription) == [b"1"]
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1


def test_a_thousand_failed_acks_are_all_named(pubsub: PubSub, pair: tuple[str, str]) -> None:
    topic, subscription = pair
    pubsub.publish(topic, *[b"x"] * 1000)
    late = pubsub.pull(subscription, 1000)
    pubsub.advance(LEASE_S + 1)

    with pytest.raises(exceptions.InvalidArgument) as caught:
        pubsub.ack(subscription, *late)
    assert dict(_get_ack_errors(caught.value) or {}) == {each.ack_id: INVALID for each in late}


@pytest.mark.gate
def test_only_the_latest_ack_id_is_valid(pubsub: PubSub, pair: tuple[str, str]) -> None:
    topic, subscription = pair
    pubsub.publish(topic, b"x")
    (first,) = pubsub.pull(subscription)
    pubsub.nack(subscription, first)
    (second,) = pubsub.pull(subscription)

    for call in (pubsub.ack, pubsub.nack):
        with pytest.raises(exceptions.InvalidArgument) as caught:
            call(subscription, first)
        assert dict(_get_ack_errors(caught.value) or {}) == {first.ack_id: INVALID}
    pubsub.ack(subscription, second)
    with pytest.raises(exceptions.InvalidArgument):
        pubsub.ack(subscription, second)
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


def test_an_acknowledged_message_does_not_come_back_for_the_order(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_exactly_once_delivery=True, enable_message_ordering=True)
    pubsub.publish(topic, b"0", b"1", b"2", key="k")
    received = pubsub.pull(subscription)
    pubsub.ack(subscription, received[1])
    pubsub.nack(subscription, received[0])

    assert pubsub.data(subscription) == [b"0", b"2"]
