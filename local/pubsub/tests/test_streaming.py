"""StreamingPull: through the client library, and request by request."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1  # type: ignore[attr-defined]
from google.pubsub_v1 import SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport, SubscriberGrpcTransport

from tests.integration.emulators import ANONYMOUS
from tests.integration.pubsub import LEASE_S, PATIENCE_S, PubSub, wait_until

pytestmark = pytest.mark.integration


def _client(pubsub: PubSub) -> pubsub_v1.SubscriberClient:
    transport = SubscriberGrpcTransport(channel=pubsub.channel, credentials=ANONYMOUS)
    return pubsub_v1.SubscriberClient(transport=transport)


@pytest.mark.gate
def test_the_client_library_gets_and_acknowledges_everything(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    got: list[bytes] = []

    def take(message: Any) -> None:
        got.append(message.data)
        message.ack()

    client = _client(pubsub)
    future = client.subscribe(subscription, take)
    for batch in range(4):
        pubsub.publish(topic, *[f"{batch}-{n}".encode() for n in range(250)])
    wait_until(lambda: pubsub.statistics(subscription)["acked"] == 1000, "all are acknowledged")
    future.cancel()
    future.result(timeout=PATIENCE_S)

    assert sorted(got) == sorted(f"{batch}-{n}".encode() for batch in range(4) for n in range(250))
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0


@pytest.mark.gate
def test_flow_control_of_the_client_library_is_kept(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *[b"x"] * 60)
    lock, now, most, done = threading.Lock(), [0], [0], threading.Event()
    outstanding: list[int] = []

    def take(message: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            outstanding.append(pubsub.statistics(subscription)["outstanding"])
            now[0] -= 1
        message.ack()
        if len(outstanding) == 60:
            done.set()

    future = _client(pubsub).subscribe(subscription, take, flow_control=pubsub_v1.types.FlowControl(max_messages=5))
    assert done.wait(PATIENCE_S)
    future.cancel()
    future.result(timeout=PATIENCE_S)

    assert max(outstanding) <= 5


async def test_the_asynchronous_client_pulls_and_streams(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"1", b"2")
    async with grpc.aio.insecure_channel(pubsub.emulator.target) as channel:
        client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
        first = await client.pull(subscription=subscription, max_messages=1, retry=None)
        await client.acknowledge(subscription=subscription, ack_ids=[first.received_messages[0].ack_id], retry=None)

        async def requests() -> Any:
            yield {"subscription": subscription, "stream_ack_deadline_seconds": LEASE_S}

        stream = await client.streaming_pull(requests=requests())
        response = await anext(aiter(stream))

    assert [each.message.data for each in (*first.received_messages, *response.received_messages)] == [b"1", b"2"]


@pytest.mark.gate
def test_the_server_sends_no_more_than_max_outstanding_messages(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *[b"x"] * 10)
    stream = pubsub.stream(subscription, max_outstanding_messages=4)
    received = stream.messages(4)
    assert len(received) == 4
    assert stream.silent()
    stream.ack(*received[:2])
    assert len(stream.messages(2)) == 2
    stream.modify(0, received[2])
    assert len(stream.messages(1)) == 1
    assert stream.silent()
    stream.break_off()


@pytest.mark.gate
def test_the_server_stops_at_max_outstanding_bytes(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, *[b"x" * 1000] * 10)
    stream = pubsub.stream(subscription, max_outstanding_bytes=3000)
    received = stream.messages(3)
    assert len(received) == 3
    assert stream.silent()
    stream.ack(received[0])
    assert len(stream.messages(1)) == 1
    stream.break_off()


@pytest.mark.gate
def test_messages_of_a_dead_stream_come_again_at_their_deadline_and_not_before(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(ack_deadline_seconds=600)
    pubsub.publish(topic, b"x")
    stream = pubsub.stream(subscription, stream_ack_deadline_seconds=30)
    (first,) = stream.messages(1)
    stream.break_off()
    pubsub.advance(20)
    assert pubsub.data(subscription) == []
    assert pubsub.statistics(subscription)["outstanding"] == 1
    # The deadline is the stream's, not the subscription's.
    pubsub.advance(11)
    (second,) = pubsub.pull(subscription)

    assert second.message == first.message


def test_the_deadline_of_a_stream_can_be_changed_while_it_is_open(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    stream = pubsub.stream(subscription)
    stream.send(stream_ack_deadline_seconds=600)
    pubsub.publish(topic, b"first")
    (first,) = stream.messages(1)
    stream.ack(first)
    wait_until(lambda: pubsub.statistics(subscription)["acked"] == 1, "the stream has read its requests")
    pubsub.publish(topic, b"second")
    stream.messages(1)
    pubsub.advance(600 - LEASE_S)

    assert pubsub.statistics(subscription)["outstanding"] == 1
    stream.break_off()


def test_a_nack_on_a_stream_brings_the_message_back(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    stream = pubsub.stream(subscription)
    (first,) = stream.messages(1)
    stream.modify(0, first)
    (second,) = stream.messages(1)
    stream.break_off()

    assert second.message == first.message
    assert second.ack_id != first.ack_id


def test_a_message_of_one_stream_can_be_acknowledged_on_another_one(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    first, second = pubsub.stream(subscription), pubsub.stream(pubsub.subscription(topic))
    (received,) = first.messages(1)
    second.break_off()
    third = pubsub.stream(subscription)
    third.ack(received)
    wait_until(lambda: pubsub.statistics(subscription)["num_undelivered_messages"] == 0, "it is acknowledged")
    first.break_off()
    third.break_off()


@pytest.mark.gate
@pytest.mark.parametrize(
    "fields",
    [
        {"subscription": "projects/local/subscriptions/again"},
        {"max_outstanding_messages": 5},
        {"max_outstanding_bytes": 5},
        {"stream_ack_deadline_seconds": 9},
        {"stream_ack_deadline_seconds": 601},
        {"ack_ids": ["nonsense"]},
        {"modify_deadline_ack_ids": ["a", "b"], "modify_deadline_seconds": [10]},
    ],
    ids=str,
)
def test_a_later_request_that_is_not_valid_ends_the_stream(pubsub: PubSub, fields: dict[str, Any]) -> None:
    _, subscription = pubsub.pair()
    stream = pubsub.stream(subscription)
    stream.send(**fields)

    with pytest.raises(exceptions.InvalidArgument):
        stream.response()


@pytest.mark.parametrize("seconds", [0, 9, 601])
def test_a_stream_needs_a_deadline_within_the_bounds(pubsub: PubSub, seconds: int) -> None:
    _, subscription = pubsub.pair()

    with pytest.raises(exceptions.InvalidArgument):
        pubsub.stream(subscription, stream_ack_deadline_seconds=seconds).response()


def test_a_stream_ends_when_its_subscription_is_deleted(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"x")
    stream = pubsub.stream(subscription)
    stream.messages(1)
    pubsub.subscriber.delete_subscription(subscription=subscription, retry=None)

    with pytest.raises(exceptions.NotFound):
        stream.response()


def test_two_streams_share_the_messages(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    streams = [pubsub.stream(subscription, max_outstanding_messages=5) for _ in range(2)]
    pubsub.publish(topic, *[b"%d" % n for n in range(10)])
    got = [each.message.data for stream in streams for each in stream.messages(5)]
    for stream in streams:
        stream.break_off()

    assert sorted(got) == [b"%d" % n for n in range(10)]
