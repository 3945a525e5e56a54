"""What goes to Pub/Sub in one request, and what its errors mean. Nothing is connected."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, TransportError
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1.types import PubsubMessage, PullResponse, ReceivedMessage
from google.rpc.error_details_pb2 import ErrorInfo

from nightshift.stream import pubsub, redriven_ids
from nightshift.stream.dead_letter_message import Announcement
from nightshift.stream.messages import Dead, Delivery, Message
from nightshift.stream.ports import Unavailable, Unsettled
from nightshift.stream.pubsub import LOOK_S, Subscription, Topic, TopicDeleted, check_topic
from nightshift.stream.pubsub_client import _OPTIONS, SILENT_MOST, NotOffered, PubSubRefused
from nightshift.stream.redriven_ids import attributes_of
from nightshift.stream.stats import StreamStats

pytestmark = pytest.mark.unit

NAME = "projects/p/subscriptions/s"
PUBLISHED = datetime(2026, 11, 20, 12, 30, 0, 123456, tzinfo=UTC)
REQUEST_BYTES_MOST = 10_000_000
"""Pub/Sub's "Quotas and limits": of a publish request."""


class Client:
    """In place of Google's. requests: what was sent; each call raises the next error; None: it is answered."""

    def __init__(self, *errors: Exception | None) -> None:
        self.requests: list[Any] = []
        self.errors = list(errors)
        self.reply: Any = PullResponse()

    async def _call(self, request: Any, *, retry: Any, **options: float) -> Any:
        assert retry is None, "the library does not retry: the subscriber does"
        assert options["timeout"] > 0
        self.requests.append(request)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return self.reply

    pull = acknowledge = modify_ack_deadline = publish = get_subscription = test_iam_permissions = _call


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")


def a_subscription(client: Client) -> Subscription:
    subscription = Subscription(NAME, StreamStats())
    subscription._channel.client = client
    return subscription


def a_topic(client: Client) -> Topic:
    topic = Topic("projects/p/topics/t", Announcement("texts", ("subscription", "texts-sub"), "the table texts_dead_letters"))
    topic._channel.client = client
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


async def test_what_is_in_one_message_concerns_that_message_alone() -> None:
    """Whatever its attributes say, and were it that Pub/Sub's own fields were out of their range."""
    said = ["x.r1 0001-01-01T00:00:00+14:00", "\0.r1 2026-11-20T12:30:00+00:00", "1.r1 9999-12-30T00:00:00+00:00"]
    messages = [
        PubsubMessage(data=b"x", attributes={redriven_ids.ATTRIBUTE: value}, message_id=f"{n}") for n, value in enumerate(said)
    ]
    for message in messages:
        PubsubMessage.pb(message).publish_time.FromDatetime(PUBLISHED)
    strange = PubsubMessage(data=b"x", message_id="9")
    PubsubMessage.pb(strange).publish_time.seconds = 1 << 60
    client = Client()
    client.reply = PullResponse(received_messages=[ReceivedMessage(ack_id="a", message=each) for each in (*messages, strange)])
    found = await a_subscription(client).pull(7)

    assert [delivery.message.id for delivery in found] == ["0", "1", "2", "9"]
    assert [delivery.message.published for delivery in found[:3]] == [PUBLISHED] * 3


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
    an_error(exceptions.PermissionDenied),
    an_error(exceptions.PermissionDenied, permission="pubsub.subscriptions.consume", resource=NAME),
    an_error(exceptions.Unauthenticated, service="pubsub.googleapis.com"),
    an_error(exceptions.MethodNotImplemented),
]


def named(error: Exception) -> str:
    return type(error).__name__


CALLS = ["pull", "acknowledge", "extend", "publish"]


async def make(call: str, client: Client) -> Any:
    match call:
        case "pull":
            return await a_subscription(client).pull(1)
        case "acknowledge":
            return await a_subscription(client).acknowledge(["1", "2", "3"])
        case "extend":
            return await a_subscription(client).extend(["1", "2", "3"], 60)
        case _:
            return await a_topic(client).publish([a_death("1")])


@pytest.mark.parametrize("call", CALLS)
class TestErrors:
    @pytest.mark.parametrize("error", PASSING, ids=named)
    async def test_what_may_pass_is_unavailable(self, call: str, error: Exception) -> None:
        with pytest.raises(Unavailable):
            await make(call, Client(error))

    @pytest.mark.parametrize("error", FOR_GOOD, ids=named)
    async def test_what_will_not_pass_is_refused_in_the_servers_words(self, call: str, error: Exception) -> None:
        """But for the topic of dead letters: while a subscriber runs, they are held."""
        with pytest.raises(
            Unavailable if call == "publish" else PubSubRefused, match=f"{type(error).__name__}: said by the server$"
        ):
            await make(call, Client(error))

    async def test_without_credentials_it_is_refused(self, call: str) -> None:
        error = DefaultCredentialsError("none found")  # type: ignore[no-untyped-call]
        with pytest.raises(Unavailable if call == "publish" else PubSubRefused, match="no credentials for Pub/Sub: none found"):
            await make(call, Client(error))


@pytest.mark.parametrize("words", ["The subscription is detached from its topic.", "Subscription is a push subscription."])
async def test_a_subscription_that_cannot_be_pulled_from_is_refused_in_the_servers_words(words: str) -> None:
    with pytest.raises(PubSubRefused, match=f"^{NAME} cannot be pulled from: .*FailedPrecondition: .*{words}"):
        await make("pull", Client(exceptions.FailedPrecondition(words)))  # type: ignore[no-untyped-call]


class TestDeadLettersThatAreRefused:
    async def published(self, client: Client, *names: str) -> dict[str, str]:
        return await a_topic(client).publish([a_death(name) for name in names])

    def names(self, client: Client) -> list[list[str]]:
        return [[each.attributes["nightshift_message_id"] for each in request.messages] for request in client.requests]

    async def test_one_that_is_refused_as_it_is_costs_the_others_nothing(self) -> None:
        no = an_error(exceptions.InvalidArgument)
        client = Client(no, None, no, None)
        refused = await self.published(client, "1", "2", "3")

        assert refused == {"2": "InvalidArgument: said by the server"}
        assert self.names(client) == [["1", "2", "3"], ["1"], ["2"], ["3"]]

    async def test_that_it_is_alone_does_not_make_it_the_topics(self) -> None:
        assert await self.published(Client(an_error(exceptions.InvalidArgument)), "1") == {
            "1": "InvalidArgument: said by the server"
        }

    @pytest.mark.parametrize("kind", [exceptions.PermissionDenied, exceptions.NotFound])
    async def test_whether_others_are_taken_says_what_another_refusal_concerns(
        self, kind: type[exceptions.GoogleAPICallError]
    ) -> None:
        no = an_error(kind)
        assert await self.published(Client(no, no, None), "1", "2") == {"1": f"{kind.__name__}: said by the server"}

        with pytest.raises(
            Unavailable, match=f"^projects/p/topics/t refuses dead letters, which are held: {kind.__name__}: said"
        ):
            await self.published(Client(no, no, no), "1", "2")

    async def test_what_comes_back_from_the_topic_is_not_announced_again(self, caplog: pytest.LogCaptureFixture) -> None:
        client = Client()
        topic = a_topic(client)
        _, attributes = topic._announcement.of(a_death("1"))
        again = Dead(Message("99", b"data", attributes, "", PUBLISHED), "rejected", "no", 400, 1)
        await topic.publish([again, a_death("2")])

        assert self.names(client) == [["2"]]
        assert [record.getMessage() for record in caplog.records] == [
            "the topic of dead letters leads back here; not announced again"
        ]


class TestTheSourceTopic:
    """Of a deleted one no message comes any more, and Pub/Sub says so only to who asks."""

    async def pulled(self, monkeypatch: pytest.MonkeyPatch, *own: Any, reply: Any = None) -> tuple[Subscription, int]:
        """The subscription after a pull for each of what Pub/Sub says of its topic, a minute apart; how often it was asked."""
        said, asked = list(own), 0

        async def topic_of(subscription: str, channel: Any) -> str:
            nonlocal asked
            asked += 1
            if isinstance(found := said[0], Exception):
                raise found
            return str(found)

        monkeypatch.setattr(pubsub, "topic_of", topic_of)
        client = Client()
        client.reply = reply or PullResponse()
        subscription = a_subscription(client)
        for _ in own:
            await subscription.pull(1)
            await subscription.pull(1)
            subscription._look_at -= LOOK_S
            said.pop(0)
        return subscription, asked

    @pytest.mark.gate
    async def test_that_it_is_deleted_is_said_once_and_counted_while_it_is_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        gone = TopicDeleted(f"the topic of {NAME} has been deleted")
        subscription, asked = await self.pulled(monkeypatch, "projects/p/topics/texts", gone, gone, gone)

        assert asked == 4, "once a minute"
        assert subscription._stats.topic_deleted
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == ["the topic is deleted"]
        subscription, _ = await self.pulled(monkeypatch, gone, "projects/p/topics/texts")
        assert not subscription._stats.topic_deleted, "the subscription was made again"

    async def test_nobody_asks_while_messages_come_nor_again_without_the_right(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        some = PullResponse(received_messages=[{"ack_id": "a", "message": {"message_id": "1", "data": b"x"}}])
        _, asked = await self.pulled(monkeypatch, "projects/p/topics/texts", reply=some)
        assert asked == 0
        denied = PubSubRefused("PermissionDenied: no")
        denied.__cause__ = an_error(exceptions.PermissionDenied)
        subscription, asked = await self.pulled(monkeypatch, denied, denied, denied)
        assert (asked, subscription._stats.topic_deleted) == (1, False)
        assert [record.levelname for record in caplog.records] == ["INFO"]

    async def test_no_answer_of_it_is_no_failed_pull(self, monkeypatch: pytest.MonkeyPatch) -> None:
        subscription, asked = await self.pulled(monkeypatch, Unavailable("away"), "projects/p/topics/texts")

        assert (asked, subscription._stats.topic_deleted) == (2, False)

    async def test_while_there_is_no_answer_a_deleted_one_stays_deleted(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Else its alert would end and begin again."""
        gone = TopicDeleted(f"the topic of {NAME} has been deleted")
        subscription, _ = await self.pulled(monkeypatch, gone, Unavailable("away"))
        assert subscription._stats.topic_deleted
        await self.pulled(monkeypatch, gone, Unavailable("away"), gone)
        assert sum(record.levelname == "ERROR" for record in caplog.records) == 2, "once each"


class TestTheTopicAtTheStart:
    async def check(self, client: Client, monkeypatch: pytest.MonkeyPatch, own: Any = None) -> None:
        """own: what Pub/Sub says of the subscription."""

        async def topic_of(subscription: str, channel: Any) -> str:
            assert subscription == NAME
            if isinstance(own, Exception):
                raise own
            return str(own)

        monkeypatch.setattr(pubsub, "topic_of", topic_of)
        await check_topic(a_topic(client), a_subscription(Client()) if own else None)

    def allowing(self, *permissions: str) -> Client:
        client = Client()
        client.reply = SimpleNamespace(permissions=permissions)
        return client

    async def test_one_that_may_be_published_on_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = self.allowing("pubsub.topics.publish")
        await self.check(client, monkeypatch, "projects/p/topics/texts")

        assert client.requests == [{"resource": "projects/p/topics/t", "permissions": ["pubsub.topics.publish"]}]

    async def test_one_that_may_not_or_is_not_there_is_refused_with_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pub/Sub says the same of both: that none of the permissions is there."""
        with pytest.raises(PubSubRefused, match=r"^projects/p/topics/t cannot be published on: .*roles/pubsub\.publisher"):
            await self.check(self.allowing(), monkeypatch)
        with pytest.raises(PubSubRefused, match=r"^projects/p/topics/t: NotFound: said by the server"):
            await self.check(Client(an_error(exceptions.NotFound)), monkeypatch)

    async def test_the_topic_of_the_streams_own_subscription_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(PubSubRefused, match=r"dead_letters\.topic is projects/p/topics/t, the topic of the stream's own"):
            await self.check(self.allowing("pubsub.topics.publish"), monkeypatch, "projects/p/topics/t")

    async def test_who_may_not_read_the_subscription_need_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        denied = PubSubRefused("PermissionDenied: no")
        denied.__cause__ = an_error(exceptions.PermissionDenied)
        for error in (denied, TopicDeleted("gone"), NotOffered("UNIMPLEMENTED")):
            await self.check(self.allowing("pubsub.topics.publish"), monkeypatch, error)
        with pytest.raises(PubSubRefused, match="no such subscription"):
            await self.check(self.allowing("pubsub.topics.publish"), monkeypatch, PubSubRefused("no such subscription"))

    async def test_an_emulator_without_rights_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await self.check(Client(an_error(exceptions.MethodNotImplemented)), monkeypatch)

    async def test_no_answer_is_unavailable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(Unavailable):
            await self.check(Client(an_error(exceptions.ServiceUnavailable)), monkeypatch)


@pytest.mark.parametrize("call", ["acknowledge", "extend"])
class TestLeasesThatAreOver:
    """Of a subscription that delivers exactly once."""

    @pytest.mark.parametrize("kind", [exceptions.InvalidArgument, exceptions.FailedPrecondition])
    async def test_each_lease_is_said_by_itself(self, call: str, kind: type[exceptions.GoogleAPICallError]) -> None:
        failures = {"1": "PERMANENT_FAILURE_INVALID_ACK_ID", "2": "TRANSIENT_FAILURE_UNORDERED_ACK_ID", "9": "PERMANENT_X"}
        client = Client(an_error(kind, **failures))

        assert await make(call, client) == Unsettled(over=frozenset({"1"}), for_now=frozenset({"2"}))
        assert len(client.requests) == 1

    async def test_a_reply_whose_details_do_not_fit_is_asked_for_in_parts(self, call: str) -> None:
        """As gRPC says it if something on the way takes less metadata than we do."""
        long = exceptions.ResourceExhausted("received metadata size exceeds hard limit (21483 vs. 16384)")  # type: ignore[no-untyped-call]
        over = an_error(exceptions.InvalidArgument, **{"3": "PERMANENT_FAILURE_INVALID_ACK_ID"})
        client = Client(long, None, long, None, over)

        assert await make(call, client) == Unsettled(over=frozenset({"3"}))
        assert [list(request.ack_ids) for request in client.requests] == [["1", "2", "3"], ["1"], ["2", "3"], ["2"], ["3"]]

    async def test_an_ack_id_that_is_refused_costs_itself_alone(self, call: str) -> None:
        no = an_error(exceptions.InvalidArgument)
        client = Client(no, None, no, no, None)

        assert await make(call, client) == Unsettled(over=frozenset({"2"}))
        assert [list(request.ack_ids) for request in client.requests] == [["1", "2", "3"], ["1"], ["2", "3"], ["2"], ["3"]]


class TestTheChannel:
    async def test_after_calls_without_a_reply_there_is_a_new_one(self) -> None:
        subscription = a_subscription(Client())
        first = Silent()
        subscription._channel.client = first
        for _ in range(SILENT_MOST):
            with pytest.raises(Unavailable):
                await subscription.pull(1)
        await asyncio.sleep(0)

        assert subscription._channel.client is not first
        assert first.closed_after_s == [pytest.approx(91.0)], "other calls on it may go on to their ends"

    async def test_a_reply_or_a_refusal_between_them_shows_that_it_lives(self) -> None:
        for between in (None, an_error(exceptions.ServiceUnavailable), an_error(exceptions.NotFound)):
            timed_out = an_error(exceptions.DeadlineExceeded)
            client = Client(*[timed_out, between] * 5)
            subscription = a_subscription(client)
            for _ in range(10):
                with contextlib.suppress(Unavailable, PubSubRefused):
                    await subscription.pull(1)
            assert subscription._channel.client is client

    def test_it_takes_what_googles_own_channel_takes(self) -> None:
        """Exactly-once delivery says what it thinks of a thousand leases in the metadata of one reply; gRPC takes 8 KiB."""
        options = dict(_OPTIONS)

        assert options["grpc.max_metadata_size"] == 4 << 20
        assert options["grpc.keepalive_time_ms"] == 30_000
        assert options["grpc.use_local_subchannel_pool"] == 1


class Silent:
    """A client of a channel that is dead. closed_after_s: seconds that calls under way get when it is closed."""

    def __init__(self) -> None:
        self.closed_after_s: list[float] = []
        self.transport = SimpleNamespace(grpc_channel=SimpleNamespace(close=self._close))

    async def pull(self, *_: Any, **__: Any) -> None:
        raise an_error(exceptions.DeadlineExceeded)

    async def _close(self, grace: float) -> None:
        self.closed_after_s.append(grace)
