"""Pub/Sub, through Google's own client: a subscription to pull from, and the topic of dead letters.

Unary Pull and not StreamingPull, because it takes exactly as many messages as there is room for. The library's lease manager
belongs to StreamingPull; `nightshift.stream.leases` does its work here.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport
from google.pubsub_v1.types import (
    AcknowledgeRequest,
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PublishRequest,
    PubsubMessage,
    PullRequest,
    PullResponse,
)
from google.rpc.error_details_pb2 import ErrorInfo

from nightshift.stream import redriven
from nightshift.stream.announcement import Announcement
from nightshift.stream.messages import Dead, Delivery, Message
from nightshift.stream.parts import Unavailable

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

T = TypeVar("T")

IDS_MOST: Final = 1000
"""Ack ids in a request, whose limit is 512 KiB (Pub/Sub's "Quotas and limits"): an ack id has about 200 bytes."""
PULL_S: Final = 90.0
"""Longer than Pub/Sub keeps a pull waiting: a reply that nobody waits for takes its messages' leases along."""
CALL_S: Final = 15.0
REPLY_BYTES_MOST: Final = 64 << 20
"""Of a pull. Pub/Sub sends about 10 MB, and one message may have as much by itself."""
PUBLISH_MOST: Final = 100
PUBLISH_BYTES_MOST: Final = 9_000_000
"""Of a publish request, whose limit is 10 MB."""
_HOPELESS: Final = (
    exceptions.NotFound,
    exceptions.PermissionDenied,
    exceptions.Unauthenticated,
)
_DELETED: Final = "_deleted-topic_"
"""In place of the name of a topic that is gone (`Subscription.topic` in Pub/Sub's API)."""
_FOR_NOW: Final = "TRANSIENT_"
_OVER: Final = "PERMANENT_"
"""How Pub/Sub's words for single leases begin; Google's own client tells them apart by the same."""


class PubSubRefused(Exception):
    """Pub/Sub refuses the call for good: there is no such subscription or topic, or this account may not use it."""


class MessageRefused(PubSubRefused):
    """Pub/Sub does not take a message, or a request, as it is."""


class Subscription:
    """`nightshift.stream.parts.Source`. name: projects/PROJECT/subscriptions/NAME. Every method raises PubSubRefused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._client = SubscriberAsyncClient(transport=_transport(SubscriberGrpcAsyncIOTransport))

    async def pull(self, most: int) -> list[Delivery]:
        request = PullRequest(subscription=self._name, max_messages=most)
        reply = await _call(self._client.pull(request, retry=None, timeout=PULL_S))
        return [Delivery(each.ack_id, _message(each.message)) for each in PullResponse.pb(reply).received_messages]

    async def acknowledge(self, ack_ids: Sequence[str]) -> None:
        for part in _parts(ack_ids):
            request = AcknowledgeRequest(subscription=self._name, ack_ids=part)
            await _settle(self._client.acknowledge(request, retry=None, timeout=CALL_S))

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> None:
        for part in _parts(ack_ids):
            request = ModifyAckDeadlineRequest(subscription=self._name, ack_ids=part, ack_deadline_seconds=seconds)
            await _settle(self._client.modify_ack_deadline(request, retry=None, timeout=CALL_S))

    async def close(self) -> None:
        await self._client.transport.close()  # type: ignore[no-untyped-call]


class Publisher:
    """A topic to publish on. name: projects/PROJECT/topics/NAME. credentials: by default the environment's.

    Every method raises Unavailable and PubSubRefused.
    """

    def __init__(self, name: str, credentials: Credentials | None = None) -> None:
        self._name = name
        self._client = PublisherAsyncClient(transport=_transport(PublisherGrpcAsyncIOTransport, credentials))

    async def send(self, messages: Sequence[PubsubMessage]) -> None:
        """One request: all of them, or none."""
        request = PublishRequest(topic=self._name, messages=messages)
        await _call(self._client.publish(request, retry=None, timeout=4 * CALL_S))

    async def close(self) -> None:
        await self._client.transport.close()  # type: ignore[no-untyped-call]


class Topic(Publisher):
    """`nightshift.stream.parts.DeadLetters`: the topic of dead letters."""

    def __init__(self, name: str, announcement: Announcement) -> None:
        super().__init__(name)
        self._announcement = announcement

    async def publish(self, dead: Sequence[Dead]) -> None:
        for key in dict.fromkeys(each.message.ordering_key for each in dead):
            for part in requests_of(self._announced(each) for each in dead if each.message.ordering_key == key):
                await self.send(part)

    def _announced(self, dead: Dead) -> PubsubMessage:
        data, attributes = self._announcement.of(dead)
        return PubsubMessage(data=data, attributes=attributes, ordering_key=dead.message.ordering_key)


def requests_of(messages: Iterable[PubsubMessage]) -> Iterator[list[PubsubMessage]]:
    """Requests within Pub/Sub's limits, in order. All messages of a request must have the same ordering key, so these must."""
    part: list[PubsubMessage] = []
    size = 0
    for message in messages:
        own = PubsubMessage.pb(message).ByteSize()
        if part and (len(part) == PUBLISH_MOST or size + own > PUBLISH_BYTES_MOST):
            yield part
            part, size = [], 0
        part.append(message)
        size += own
    if part:
        yield part


async def topic_of(subscription: str, credentials: Credentials | None = None) -> str:
    """The topic of a subscription; both as projects/PROJECT/.../NAME. Raises Unavailable, PubSubRefused."""
    client = SubscriberAsyncClient(transport=_transport(SubscriberGrpcAsyncIOTransport, credentials))
    try:
        request = GetSubscriptionRequest(subscription=subscription)
        found = await _call(client.get_subscription(request, retry=None, timeout=CALL_S))
    finally:
        await client.transport.close()  # type: ignore[no-untyped-call]
    if found.topic == _DELETED:
        raise PubSubRefused(f"the topic of {subscription} has been deleted")
    return str(found.topic)


async def _call(call: Awaitable[T]) -> T:
    try:
        return await call
    except exceptions.InvalidArgument as error:
        raise MessageRefused(f"{type(error).__name__}: {error.message}") from error
    except _HOPELESS as error:
        raise PubSubRefused(f"{type(error).__name__}: {error.message}") from error
    except (exceptions.GoogleAPICallError, exceptions.RetryError, TransportError, grpc.RpcError) as error:
        raise Unavailable(f"{type(error).__name__}: {error}") from error
    except GoogleAuthError as error:
        raise PubSubRefused(f"no credentials for Pub/Sub: {error}") from error


async def _settle(call: Awaitable[None]) -> None:
    """With exactly-once delivery, a lease that is over is not an error: its message comes again, and has its outcome then."""
    try:
        await _call(call)
    except (PubSubRefused, Unavailable) as error:
        failures = _failures(error.__cause__)
        if not failures:
            raise
        if any(each.startswith(_FOR_NOW) for each in failures):
            raise Unavailable(str(error)) from error


def _failures(error: BaseException | None) -> list[str]:
    """What an error says of single leases. Errors about quotas and rights have details, too, which say nothing of leases."""
    details = error.details if isinstance(error, exceptions.GoogleAPICallError) else ()
    said = [text for info in details if isinstance(info, ErrorInfo) for text in info.metadata.values()]
    return [text for text in said if text.startswith((_FOR_NOW, _OVER))]


def _message(raw: Any) -> Message:
    attributes, published = dict(raw.attributes), raw.publish_time.ToDatetime(UTC)
    if (own := redriven.identity(attributes)) is not None:
        return Message(own[0], raw.data, attributes, raw.ordering_key, own[1], again=published)
    return Message(raw.message_id, raw.data, attributes, raw.ordering_key, published)


def _parts(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    for first in range(0, len(ack_ids), IDS_MOST):
        yield list(ack_ids[first : first + IDS_MOST])


def _transport(kind: Any, credentials: Credentials | None = None) -> Any:
    """The clients of `google.pubsub_v1` do not read this variable themselves; those of `google.cloud.pubsub_v1` do."""
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    options = [("grpc.max_receive_message_length", REPLY_BYTES_MOST)]
    if emulator:
        return kind(channel=grpc.aio.insecure_channel(emulator, options=options))
    channel = kind.create_channel(kind.DEFAULT_HOST, credentials=credentials, scopes=kind.AUTH_SCOPES, options=options)
    return kind(channel=channel)
