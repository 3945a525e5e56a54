"""A topic with its subscriptions, for one test, through Google's own clients: one call for each method, each status seen."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import requests
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import PubsubMessage, ReceivedMessage

from tests.integration.emulators import PubSubEmulator

PATIENCE_S: Final = 180.0
LEASE_S: Final = 60
"""For how long a message is leased where a test does not say: longer than a busy machine stands still."""
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # As the client library has it towards the real service: the details of failed acks may be large.
    ("grpc.max_metadata_size", 4 << 20),
    # New clients connect at once, even if others of this process still wait before they try a restarted emulator again.
    ("grpc.use_local_subchannel_pool", 1),
]


def unique() -> str:
    return uuid.uuid4().hex[:12]


def wait_until(fact: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not fact():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.05)


class PubSub:
    """Clients of one emulator, and its control port. Nothing is retried: a test sees the first answer."""

    def __init__(self, emulator: PubSubEmulator) -> None:
        self.emulator = emulator
        self.channel = grpc.insecure_channel(emulator.target, options=_OPTIONS)
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self._http = requests.Session()
        self._http.trust_env = False

    def close(self) -> None:
        self.channel.close()
        self._http.close()

    def topic(self, **fields: Any) -> str:
        """A new topic; returns its name."""
        name = f"projects/local/topics/t{unique()}"
        self.publisher.create_topic(request={"name": name, **fields}, retry=None)
        return name

    def subscription(self, topic: str, **fields: Any) -> str:
        """A new subscription; returns its name."""
        name = f"projects/local/subscriptions/s{unique()}"
        self.subscriber.create_subscription(request={"name": name, "topic": topic, **fields}, retry=None)
        return name

    def pair(self, **fields: Any) -> tuple[str, str]:
        """A new topic and a subscription of it with these fields."""
        topic = self.topic()
        return topic, self.subscription(topic, **{"ack_deadline_seconds": LEASE_S, **fields})

    def publish(self, topic: str, *data: bytes, key: str = "", **attributes: str) -> list[str]:
        """In one request; returns the ids."""
        messages = [PubsubMessage(data=each, ordering_key=key, attributes=attributes) for each in data]
        return list(self.publisher.publish(topic=topic, messages=messages, retry=None).message_ids)

    def pull_all(self, subscription: str) -> list[ReceivedMessage]:
        """What can be delivered now, in as many replies as it takes."""
        return [each for some in iter(lambda: self.pull(subscription, 1000), []) for each in some]

    def pull(self, subscription: str, most: int = 100) -> Sequence[ReceivedMessage]:
        """One reply, without waiting: what can be delivered now, or a part of it."""
        request = {"subscription": subscription, "max_messages": most, "return_immediately": True}
        with warnings.catch_warnings():
            # Discouraged for programs, since it asks again and again; a test wants one answer.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self.subscriber.pull(request=request, retry=None).received_messages

    def data(self, subscription: str, most: int = 100) -> list[bytes]:
        return [each.message.data for each in self.pull(subscription, most)]

    def ack(self, subscription: str, *received: ReceivedMessage) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in received], retry=None)

    def modify(self, subscription: str, seconds: int, *received: ReceivedMessage) -> None:
        ack_ids = [each.ack_id for each in received]
        self.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=seconds, retry=None
        )

    def nack(self, subscription: str, *received: ReceivedMessage) -> None:
        self.modify(subscription, 0, *received)

    def advance(self, seconds: float) -> None:
        """Moves the emulator's clock, and carries out what is due by then."""
        self._http.post(f"{self.emulator.control}/clock", json={"advance_s": seconds}).raise_for_status()

    def replies(self, **settings: Any) -> dict[str, Any]:
        """Changes how full replies are (`local.pubsub.replies`); how they were is returned."""
        before = dict(self._http.get(f"{self.emulator.control}/replies").json())
        self._http.post(f"{self.emulator.control}/replies", json=settings).raise_for_status()
        return before

    def order(self, **fault: Any) -> None:
        self._http.post(f"{self.emulator.control}/faults", json=fault).raise_for_status()

    def faults(self) -> list[dict[str, Any]]:
        return list(self._http.get(f"{self.emulator.control}/faults").json())

    def end_faults(self) -> None:
        self._http.delete(f"{self.emulator.control}/faults").raise_for_status()

    def statistics(self, subscription: str) -> dict[str, Any]:
        return dict(self._http.get(f"{self.emulator.control}/subscriptions").json()[subscription])

    def deliveries(self, subscription: str) -> dict[str, int]:
        found = self._http.get(f"{self.emulator.control}/deliveries", params={"subscription": subscription})
        found.raise_for_status()
        return dict(found.json())

    def refused_order(self, **fault: Any) -> str:
        """The sentence with which a fault is refused."""
        reply = self._http.post(f"{self.emulator.control}/faults", json=fault)
        assert reply.status_code == 400
        return reply.text
