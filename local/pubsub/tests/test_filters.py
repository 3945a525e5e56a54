"""A subscription with a filter."""

from __future__ import annotations

import pytest

from tests.integration.pubsub import PubSub

pytestmark = pytest.mark.integration


@pytest.mark.gate
@pytest.mark.parametrize(
    ("text", "delivered"),
    [("attributes:kind", [b"1", b"2"]), ("NOT attributes:skip", [b"1", b"3"]), ("-attributes:kind", [b"3"])],
)
def test_only_matching_messages_are_delivered_and_counted(pubsub: PubSub, text: str, delivered: list[bytes]) -> None:
    topic, subscription = pubsub.pair(filter=text)
    pubsub.publish(topic, b"1", kind="")
    pubsub.publish(topic, b"2", kind="a", skip="")
    pubsub.publish(topic, b"3")

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == len(delivered)
    assert pubsub.data(subscription) == delivered
