"""Subscriptions with exactly-once delivery: what clients are told about their acks."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1  # type: ignore[attr-defined]
from google.cloud.pubsub_v1.subscriber._protocol.streaming_pull_manager import _get_ack_errors  # type: ignore[import-untyped]
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus  # type: ignore[import-untyped]
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.integration.emulators import ANONYMOUS
from tests.integration.pubsub import LEASE_S, PATIENCE_S, PubSub, wait_until

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


@pytest.mark.gate
def test_a_stream_confirms_acks_and_deadlines(pubsub: PubSub, pair: tuple[str, str]) -> None:
    topic, subscription = pair
    pubsub.publish(topic, b"1", b"2")
    stream = pubsub.stream(subscription, stream_ack_deadline_seconds=LEASE_S)
    first, second = stream.messages(2)
    stream.modify(600, first)
    moved = stream.response()
    assert list(moved.modify_ack_deadline_confirmation.ack_ids) == [first.ack_id]
    assert moved.subscription_properties.exactly_once_delivery_enabled
    pubsub.advance(LEASE_S + 1)
    stream.ack(first, second)
    found = [stream.response() for _ in range(2)]
    (confirmed,) = [each.acknowledge_confirmation for each in found if each.acknowledge_confirmation]
    (again,) = [each.received_messages[0] for each in found if each.received_messages]

    assert list(confirmed.ack_ids) == [first.ack_id]
    assert list(confirmed.invalid_ack_ids) == [second.ack_id]
    assert again.message == second.message
    stream.break_off()


@pytest.mark.gate
def test_the_client_library_learns_how_an_ack_went(pubsub: PubSub, pair: tuple[str, str]) -> None:
    topic, subscription = pair
    transport = SubscriberGrpcTransport(channel=pubsub.channel, credentials=ANONYMOUS)
    futures: list[Any] = []
    received: list[Any] = []

    def take(message: Any) -> None:
        received.append(message)
        futures.append(message.ack_with_response())

    future = pubsub_v1.SubscriberClient(transport=transport).subscribe(subscription, take)
    pubsub.publish(topic, *[b"x"] * 5)
    wait_until(lambda: len(futures) == 5, "all were delivered")

    assert [each.result(timeout=PATIENCE_S) for each in futures] == [AcknowledgeStatus.SUCCESS] * 5
    with pytest.raises(AcknowledgeError) as caught:
        received[0].ack_with_response().result(timeout=PATIENCE_S)
    assert caught.value.error_code is AcknowledgeStatus.INVALID_ACK_ID
    future.cancel()
    future.result(timeout=PATIENCE_S)


def test_an_acknowledged_message_does_not_come_back_for_the_order(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(enable_exactly_once_delivery=True, enable_message_ordering=True)
    pubsub.publish(topic, b"0", b"1", b"2", key="k")
    received = pubsub.pull(subscription)
    pubsub.ack(subscription, received[1])
    pubsub.nack(subscription, received[0])

    assert pubsub.data(subscription) == [b"0", b"2"]
