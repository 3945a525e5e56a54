"""Pub/Sub: a subscription to pull from, and the topic of dead letters.

Unary Pull and not StreamingPull, because it takes exactly as many messages as there is room for. The library's lease manager
belongs to StreamingPull; `nightshift.stream.leases` does its work here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.api_core import exceptions
from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
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

from nightshift.stream import redriven_ids
from nightshift.stream.dead_letter_message import Announcement
from nightshift.stream.messages import Dead, Delivery, Message, in_parts
from nightshift.stream.ports import Unavailable, Unsettled
from nightshift.stream.pubsub_client import LONGEST_S, Channel, MessageRefused, NotOffered, PubSubRefused

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from nightshift.stream.stats import StreamStats

log = logging.getLogger(__name__)

E = TypeVar("E", bound=PubSubRefused)
T = TypeVar("T")

IDS_MOST: Final = 1000
"""Ack ids in a request, whose limit is 512 KiB (Pub/Sub's "Quotas and limits"): an ack id has about 200 bytes."""
CALL_S: Final = 15.0
PUBLISH_MOST: Final = 100
PUBLISH_BYTES_MOST: Final = 9_000_000
"""Of a publish request, whose limit is 10 MB."""
PUBLISH: Final = "pubsub.topics.publish"
_DELETED: Final = "_deleted-topic_"
"""In place of the name of a topic that is gone (`Subscription.topic` in Pub/Sub's API)."""
_FOR_NOW: Final = "TRANSIENT_"
_OVER: Final = "PERMANENT_"
"""How Pub/Sub's words for single leases begin; Google's own client tells them apart by the same."""
_TOO_LONG: Final = "metadata size exceeds"
"""What gRPC says of a reply whose details it does not take: something between Pub/Sub and here may take less than we do."""
_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOOK_S: Final = 60.0
"""Between two looks at whether the subscription has a topic, while no message comes."""


class TopicDeleted(PubSubRefused):
    """The subscription has no topic any more."""


class Subscription:
    """`nightshift.stream.ports.Source`. name: projects/PROJECT/subscriptions/NAME. Every method raises PubSubRefused.

    stats: are told whether its topic is deleted.
    """

    def __init__(self, name: str, stats: StreamStats) -> None:
        self._name = name
        self._stats = stats
        self._look_at = 0.0
        self._channel = Channel(SubscriberAsyncClient)

    async def topic(self) -> str | None:
        """As projects/PROJECT/topics/NAME; None if it is deleted, or not known: only who may read the subscription may ask.

        Raises Unavailable, PubSubRefused.
        """
        self._look_at = asyncio.get_running_loop().time() + LOOK_S
        try:
            topic = await topic_of(self._name, self._channel)
        except TopicDeleted as error:
            if not self._stats.topic_deleted:
                remedy = "no message comes any more: delete the subscription, make it again on a topic, restart the stream"
                log.error("the topic is deleted", extra={"fields": {"error": str(error), "remedy": remedy}})
            self._stats.topic_deleted = True
            return None
        except PubSubRefused as error:
            if not isinstance(error, NotOffered) and not isinstance(error.__cause__, exceptions.PermissionDenied):
                raise
            log.info("not known which topic the subscription has", extra={"fields": {"error": str(error)}})
            self._look_at = float("inf")
            topic = None
        self._stats.topic_deleted = False
        return topic

    async def pull(self, most: int) -> list[Delivery]:
        request = PullRequest(subscription=self._name, max_messages=most)
        try:
            reply = await self._channel.call("pull", request, LONGEST_S)
        except Unavailable as error:
            if isinstance(error.__cause__, exceptions.FailedPrecondition):
                # It is detached, or is no subscription to pull from.
                raise PubSubRefused(f"{self._name} cannot be pulled from: {error}") from error
            raise
        found = [Delivery(each.ack_id, _message(each.message)) for each in PullResponse.pb(reply).received_messages]
        if not found and asyncio.get_running_loop().time() >= self._look_at:
            with contextlib.suppress(Unavailable):
                await self.topic()
        return found

    async def acknowledge(self, ack_ids: Sequence[str]) -> Unsettled:
        return await self._settle(
            "acknowledge", lambda part: AcknowledgeRequest(subscription=self._name, ack_ids=part), ack_ids
        )

    async def extend(self, ack_ids: Sequence[str], seconds: int) -> Unsettled:
        def request(part: list[str]) -> ModifyAckDeadlineRequest:
            return ModifyAckDeadlineRequest(subscription=self._name, ack_ids=part, ack_deadline_seconds=seconds)

        return await self._settle("modify_ack_deadline", request, ack_ids)

    async def close(self) -> None:
        await self._channel.close()

    async def _settle(self, method: str, request: Callable[[list[str]], Any], ack_ids: Sequence[str]) -> Unsettled:
        """In parts. Of a subscription with exactly-once delivery, the error says what had no effect: all other ids had it."""
        over: set[str] = set()
        for_now: set[str] = set()
        parts = [list(ack_ids[first : first + IDS_MOST]) for first in range(0, len(ack_ids), IDS_MOST)]
        while parts:
            part = parts.pop(0)
            try:
                await self._channel.call(method, request(part), CALL_S)
            except (PubSubRefused, Unavailable) as error:
                if failures := _failures(error.__cause__):
                    over |= {ack_id for ack_id in part if failures.get(ack_id, "").startswith(_OVER)}
                    for_now |= {ack_id for ack_id in part if failures.get(ack_id, "").startswith(_FOR_NOW)}
                elif len(part) > 1 and (isinstance(error, MessageRefused) or _TOO_LONG in str(error)):
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                elif isinstance(error, MessageRefused):
                    log.warning("ack id refused", extra={"fields": {"method": method, "error": str(error)}})
                    over |= {*part}
                else:
                    raise
        return Unsettled(frozenset(over), frozenset(for_now))


class Publisher:
    """A topic to publish on. name: projects/PROJECT/topics/NAME. credentials: by default the environment's.

    Every method raises Unavailable and PubSubRefused.
    """

    def __init__(self, name: str, credentials: Credentials | None = None) -> None:
        self.name = name
        self._channel = Channel(PublisherAsyncClient, credentials)

    async def check(self) -> None:
        """Raises PubSubRefused if the topic does not exist, or this account may not publish on it. To ask takes no right."""
        request = {"resource": self.name, "permissions": [PUBLISH]}
        try:
            reply = await self._channel.call("test_iam_permissions", request, CALL_S)
        except NotOffered:
            return
        except PubSubRefused as error:
            raise PubSubRefused(f"{self.name}: {error}") from error
        if PUBLISH not in reply.permissions:
            raise PubSubRefused(
                f"{self.name} cannot be published on: it does not exist, or this account lacks the permission {PUBLISH} on it. "
                "Create the topic, or grant roles/pubsub.publisher"
            )

    async def send(self, messages: Sequence[PubsubMessage]) -> None:
        """One request: all of them, or none."""
        await self._channel.call("publish", PublishRequest(topic=self.name, messages=messages), 4 * CALL_S)

    async def send_all(
        self, messages: Sequence[Message], form: Callable[[Message], PubsubMessage], refusal: type[E]
    ) -> dict[str, E]:
        """Sends what it can, in order; returns the ids of what is refused as it is. form: of a message as it is sent."""
        refused: dict[str, E] = {}
        for key in dict.fromkeys(message.ordering_key for message in messages):
            own = [message for message in messages if message.ordering_key == key]
            left = iter(own)
            for request in requests_of(map(form, own)):
                refused |= await self._send_each([next(left).id for _ in request], request, refusal)
        return refused

    async def _send_each(self, names: list[str], messages: list[PubsubMessage], refusal: type[E]) -> dict[str, E]:
        try:
            await self.send(messages)
        except refusal as error:
            if len(messages) == 1:
                return {names[0]: error}
            # Which of them is to blame, only Pub/Sub knows.
            alone = [await self._send_each([name], [message], refusal) for name, message in zip(names, messages, strict=True)]
            return {name: error for failed in alone for name, error in failed.items()}
        return {}

    async def close(self) -> None:
        await self._channel.close()


class Topic(Publisher):
    """`nightshift.stream.ports.DeadLetterTopic`: the topic of dead letters."""

    def __init__(self, name: str, announcement: Announcement) -> None:
        super().__init__(name)
        self._announcement = announcement

    async def publish(self, dead: Sequence[Dead]) -> dict[str, str]:
        """Raises Unavailable if the topic refuses all of them: it may be there again, and may be ours again.

        What was announced before is not announced again: the topic of dead letters leads back to this stream.
        """
        if back := [each.message.id for each in dead if self._announcement.comes_back(each.message)]:
            said = {"topic": self.name, "messages": len(back), "first": back[0]}
            log.error("the topic of dead letters leads back here; not announced again", extra={"fields": said})
            dead = [each for each in dead if not self._announcement.comes_back(each.message)]
        letters = {each.message.id: each for each in dead}
        refused = await self.send_all(
            [each.message for each in dead], lambda message: self._announced(letters[message.id]), PubSubRefused
        )
        whole = [error for error in refused.values() if not isinstance(error, MessageRefused)]
        if whole and len(refused) == len(dead):
            raise Unavailable(f"{self.name} refuses dead letters, which are held: {whole[0]}") from whole[0]
        return {name: str(error) for name, error in refused.items()}

    def _announced(self, dead: Dead) -> PubsubMessage:
        data, attributes = self._announcement.of(dead)
        return PubsubMessage(data=data, attributes=attributes, ordering_key=dead.message.ordering_key)


def requests_of(messages: Iterable[PubsubMessage]) -> Iterator[list[PubsubMessage]]:
    """Requests within Pub/Sub's limits, in order. All messages of a request must have the same ordering key, so these must."""
    return in_requests(messages, lambda message: int(PubsubMessage.pb(message).ByteSize()))


def in_requests(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Items in parts of which each fits into a request. size_of: bytes of one."""
    return in_parts(items, size_of, most=PUBLISH_MOST, bytes_most=PUBLISH_BYTES_MOST)


async def topic_of(subscription: str, channel: Channel) -> str:
    """The topic of a subscription; both as projects/PROJECT/.../NAME. Raises Unavailable, PubSubRefused."""
    found = await channel.call("get_subscription", GetSubscriptionRequest(subscription=subscription), CALL_S)
    if found.topic == _DELETED:
        raise TopicDeleted(f"the topic of {subscription} has been deleted")
    return str(found.topic)


def _failures(error: BaseException | None) -> dict[str, str]:
    """What an error says of single leases. Errors about quotas and rights have details, too, which say nothing of leases."""
    details = error.details if isinstance(error, exceptions.GoogleAPICallError) else ()
    said = {ack_id: text for info in details if isinstance(info, ErrorInfo) for ack_id, text in info.metadata.items()}
    return {ack_id: text for ack_id, text in said.items() if text.startswith((_FOR_NOW, _OVER))}


def _message(raw: Any) -> Message:
    """Never raises: whatever is in one message concerns that message alone."""
    attributes = dict(raw.attributes)
    try:
        published = raw.publish_time.ToDatetime(UTC)
    except (ValueError, OverflowError):
        published = _NO_TIME
    if (own := redriven_ids.identity(attributes, published)) is not None:
        return Message(own[0], raw.data, attributes, raw.ordering_key, own[1], again=published)
    return Message(raw.message_id, raw.data, attributes, raw.ordering_key, published)


async def check_topic(topic: Publisher, subscription: Subscription | None) -> None:
    """Raises PubSubRefused if dead letters cannot be published there, or would come back to the stream; Unavailable.

    subscription: the stream's; None if it has none. Whether a subscription has the same topic is known only to those who may
    read it, and a subscriber need not.
    """
    await topic.check()
    if subscription is None:
        return
    own = await subscription.topic()
    if own == topic.name:
        raise PubSubRefused(
            f"dead_letters.topic is {own}, the topic of the stream's own subscription, so each dead letter would come back to "
            "the stream: name another topic"
        )
