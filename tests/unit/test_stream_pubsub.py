"""What goes to Pub/Sub in one request, and what its errors mean. Nothing is connected."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, TransportError
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1.types import PubsubMessage, PullResponse, ReceivedMessage
from google.rpc.error_details_pb2 import ErrorInfo

from nightshift.stream.announcement import Announcement
from nightshift.stream.messages import Dead, Delivery, Message
from nightshift.stream.parts import Unavailable
from nightshift.stream.pubsub import MessageRefused, PubSubRefused, Subscription, Topic
from nightshift.stream.redriven import attributes_of

pytestmark = pytest.mark.unit

NAME = "projects/p/subscriptions/s"
PUBLISHED = datetime(2026, 11, 20, 12, 30, 0, 123456, tzinfo=UTC)
REQUEST_BYTES_MOST = 10_000_000
"""Pub/Sub's "Quotas and limits": of a publish request."""


class Client:
    """In place of Google's. requests: what was sent; each call raises the next error, if there is one."""

    def __init__(self, *errors: Exception) -> None:
        self.requests: list[Any] = []
        self.errors = list(errors)
        self.reply = PullResponse()

    async def _call(self, request: Any, *, retry: Any, **options: float) -> PullResponse:
        assert retry is None, "the library does not retry: the subscriber does"
        assert options["timeout"] > 0
        self.requests.append(request)
        if self.errors:
            raise self.errors.pop(0)
        return self.reply

    pull = acknowledge = modify_ack_deadline = publish = _call


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")


def a_subscription(client: Client) -> Subscription:
    subscription = Subscription(NAME)
    subscription._client = client  # type: ignore[assignment]
    return subscription


def a_topic(client: Client) -> Topic:
    topic = Topic("projects/p/topics/t", Announcement("texts", ("subscription", "texts-sub"), "the table texts_dead_letters"))
    topic._client = client  # type: ignore[assignment]
    return topic


def a_death(name: str, key: str = "", data: bytes = b"data") -> Dead:
    return Dead(Message(name, data, {"tenant": "t"}, key, PUBLISHED), "rejected", "no", 400, 1)


def an_error(kind: type[exceptions.GoogleAPICallError], **failures: str) -> exceptions.GoogleAPICallError:
    """As the library raises it. failures: by ack id, or what else an ErrorInfo has."""
    details = [ErrorInfo(reason="R", domain="pubsub.googleapis.com", metadata=failures)] if failures else []
    return kind("said by the server", details=details)


async def test_a_pull_asks_for_so_many_and_gives_messages_as_they_were_published() -> None:
    client = Client()
    published = Timestamp()
    published.FromDatetime(PUBLISHED)
    message = PubsubMessage(data=b"\xff", attributes={"a": "b"}, message_id="17", ordering_key="k", publish_time=published)
    client.reply = PullResponse(received_messages=[ReceivedMessage(ack_id="ack", message=message)])
    found = await a_subscription(client).pull(7)

    assert found == [Delivery("ack", Message("17", b"\xff", {"a": "b"}, "k", PUBLISHED))]
    assert [(request.subscription, request.max_messages) for request in client.requests] == [(NAME, 7)]


async def test_a_redriven_message_has_its_own_id_and_the_time_of_the_original() -> None:
    client = Client()
    again = Timestamp()
    again.FromDatetime(PUBLISHED + timedelta(days=3))
    attributes = attributes_of("17", PUBLISHED, {"a": "b"})
    message = PubsubMessage(data=b"x", attributes=attributes, message_id="99", publish_time=again)
    client.reply = PullResponse(received_messages=[ReceivedMessage(ack_id="ack", message=message)])
    (found,) = await a_subscription(client).pull(7)

    assert found == Delivery("ack", Message("17.r1", b"x", attributes, "", PUBLISHED, PUBLISHED + timedelta(days=3)))


async def test_ack_ids_go_in_requests_of_a_thousand_each_once() -> None:
    ids = [f"{n}" for n in range(2500)]
    client = Client()
    await a_subscription(client).acknowledge(ids)
    await a_subscription(client).extend(ids, 60)

    assert [len(request.ack_ids) for request in client.requests] == [1000, 1000, 500] * 2
    assert [each for request in client.requests for each in request.ack_ids] == ids * 2
    assert [request.ack_deadline_seconds for request in client.requests[3:]] == [60] * 3


async def test_nothing_to_say_is_no_request() -> None:
    client = Client()
    await a_subscription(client).acknowledge([])
    await a_subscription(client).extend([], 60)
    await a_topic(client).publish([])

    assert client.requests == []


class TestPublishing:
    async def published(self, dead: list[Dead]) -> list[list[PubsubMessage]]:
        client = Client()
        await a_topic(client).publish(dead)
        return [list(request.messages) for request in client.requests]

    def names(self, messages: list[PubsubMessage]) -> list[str]:
        return [message.attributes["nightshift_message_id"] for message in messages]

    async def test_requests_have_a_hundred_messages_at_most_in_order(self) -> None:
        requests = await self.published([a_death(f"{n}") for n in range(250)])

        assert [len(messages) for messages in requests] == [100, 100, 50]
        assert [name for messages in requests for name in self.names(messages)] == [f"{n}" for n in range(250)]

    async def test_messages_of_two_ordering_keys_do_not_share_a_request(self) -> None:
        requests = await self.published([a_death(f"{n}", f"key {n % 2}") for n in range(4)])

        assert [(self.names(messages), {message.ordering_key for message in messages}) for messages in requests] == [
            (["0", "2"], {"key 0"}),
            (["1", "3"], {"key 1"}),
        ]

    async def test_requests_stay_below_their_limit_in_bytes(self) -> None:
        sizes = [4_000_000, 4_000_000, 4_000_000, 10, 9_800_000, 9_999_999, 10]
        requests = await self.published([a_death(f"{n}", data=b"x" * size) for n, size in enumerate(sizes)])

        assert [name for messages in requests for name in self.names(messages)] == [f"{n}" for n in range(len(sizes))]
        assert all(sum(PubsubMessage.pb(each).ByteSize() for each in messages) < REQUEST_BYTES_MOST for messages in requests)
        kept = {
            name: len(message.data)
            for messages in requests
            for name, message in zip(self.names(messages), messages, strict=True)
        }
        assert list(kept.values()) == [4_000_000, 4_000_000, 4_000_000, 10, 9_800_000, 0, 10]


PASSING = [
    an_error(exceptions.ServiceUnavailable),
    an_error(exceptions.DeadlineExceeded),
    an_error(exceptions.InternalServerError),
    an_error(exceptions.ResourceExhausted, quota_metric="pubsub.googleapis.com/regionalsubscriber", service="pubsub"),
    an_error(exceptions.Aborted),
    exceptions.RetryError("too long", None),  # type: ignore[no-untyped-call]
    TransportError("no route"),  # type: ignore[no-untyped-call]
]
FOR_GOOD = [
    an_error(exceptions.NotFound),
    an_error(exceptions.InvalidArgument),
    an_error(exceptions.PermissionDenied),
    an_error(exceptions.PermissionDenied, permission="pubsub.subscriptions.consume", resource=NAME),
    an_error(exceptions.Unauthenticated, service="pubsub.googleapis.com"),
]


def named(error: Exception) -> str:
    return type(error).__name__


CALLS = ["pull", "acknowledge", "extend", "publish"]


async def make(call: str, client: Client) -> None:
    match call:
        case "pull":
            await a_subscription(client).pull(1)
        case "acknowledge":
            await a_subscription(client).acknowledge(["1"])
        case "extend":
            await a_subscription(client).extend(["1"], 60)
        case _:
            await a_topic(client).publish([a_death("1")])


@pytest.mark.parametrize("call", CALLS)
class TestErrors:
    @pytest.mark.parametrize("error", PASSING, ids=named)
    async def test_what_may_pass_is_unavailable(self, call: str, error: Exception) -> None:
        with pytest.raises(Unavailable):
            await make(call, Client(error))

    @pytest.mark.parametrize("error", FOR_GOOD, ids=named)
    async def test_what_will_not_pass_is_refused_in_the_servers_words(self, call: str, error: Exception) -> None:
        with pytest.raises(PubSubRefused, match=f"^{type(error).__name__}: said by the server$"):
            await make(call, Client(error))

    async def test_without_credentials_it_is_refused(self, call: str) -> None:
        with pytest.raises(PubSubRefused, match="no credentials for Pub/Sub: none found"):
            await make(call, Client(DefaultCredentialsError("none found")))  # type: ignore[no-untyped-call]


async def test_a_message_that_is_refused_as_it_is_is_told_from_a_topic_that_refuses_everything() -> None:
    refused = await refusal_of(an_error(exceptions.InvalidArgument))
    gone = await refusal_of(an_error(exceptions.NotFound))

    assert (type(refused), type(gone)) == (MessageRefused, PubSubRefused)


async def refusal_of(error: Exception) -> PubSubRefused:
    with pytest.raises(PubSubRefused) as caught:
        await make("publish", Client(error))
    return caught.value


@pytest.mark.parametrize("call", ["acknowledge", "extend"])
class TestLeasesThatAreOver:
    """Of a subscription that delivers exactly once."""

    @pytest.mark.parametrize("kind", [exceptions.InvalidArgument, exceptions.FailedPrecondition])
    async def test_a_lease_that_is_over_is_no_error(self, call: str, kind: type[exceptions.GoogleAPICallError]) -> None:
        client = Client(an_error(kind, **{"1": "PERMANENT_FAILURE_INVALID_ACK_ID"}))
        await make(call, client)

        assert len(client.requests) == 1

    async def test_one_that_fails_for_now_is_tried_again_though_another_is_over(self, call: str) -> None:
        failures = {"1": "PERMANENT_FAILURE_INVALID_ACK_ID", "2": "TRANSIENT_FAILURE_UNORDERED_ACK_ID"}

        with pytest.raises(Unavailable):
            await make(call, Client(an_error(exceptions.InvalidArgument, **failures)))
