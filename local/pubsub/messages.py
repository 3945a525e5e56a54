"""Pub/Sub's own protobuf messages, without the wrapper of the client library, which costs more time than all the rest."""

from __future__ import annotations

from typing import Any, Final

from google.pubsub_v1.types import pubsub

Topic: Final[Any] = pubsub.Topic.pb()
Subscription: Final[Any] = pubsub.Subscription.pb()
PubsubMessage: Final[Any] = pubsub.PubsubMessage.pb()
ReceivedMessage: Final[Any] = pubsub.ReceivedMessage.pb()

TOPIC_ACTIVE: Final = int(pubsub.Topic.State.ACTIVE)
SUBSCRIPTION_ACTIVE: Final = int(pubsub.Subscription.State.ACTIVE)


def raw(name: str) -> Any:
    """The message class of that name in google.pubsub.v1."""
    return getattr(pubsub, name).pb()
