"""A subscription with a filter. The language itself: test_filter_language.py."""

from __future__ import annotations

import pytest

from tests.integration.pubsub import PubSub

pytestmark = pytest.mark.integration


@pytest.mark.gate
def test_only_matching_messages_are_delivered_and_counted(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair(filter='attributes.kind = "a" AND NOT attributes:skip')
    pubsub.publish(topic, b"1", kind="a")
    pubsub.publish(topic, b"2", kind="b")
    pubsub.publish(topic, b"3", kind="a", skip="")
    pubsub.publish(topic, b"4")

    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1
    assert pubsub.data(subscription) == [b"1"]
