"""Names, settings and lists: what exists, what may be asked for, and what is refused with which status."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import StreamingPullRequest

from tests.integration.pubsub import PubSub, unique

pytestmark = pytest.mark.integration

DAY_S = 86_400


@pytest.mark.gate
@pytest.mark.parametrize("short", ["ab", "1abc", "goog-topic", "a" * 256, "with space", "sla/sh", "ümlaut", "quo'te"])
def test_a_name_that_is_not_valid_is_refused(pubsub: PubSub, short: str) -> None:
    topic = pubsub.topic()
    with pytest.raises(exceptions.InvalidArgument, match=r"Invalid \[topics\] name"):
        pubsub.publisher.create_topic(name=f"projects/local/topics/{short}", retry=None)
    with pytest.raises(exceptions.InvalidArgument, match=r"Invalid \[subscriptions\] name"):
        pubsub.subscriber.create_subscription(name=f"projects/local/subscriptions/{short}", topic=topic, retry=None)


@pytest.mark.parametrize("short", ["abc", "a" * 255, "A1-_.~+%", "agoog"])
def test_a_valid_name_is_taken(pubsub: PubSub, short: str) -> None:
    name = f"projects/p{unique()}/topics/{short}"

    assert pubsub.publisher.create_topic(name=name, retry=None).name == name


@pytest.mark.gate
def test_what_exists_is_not_made_again(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()

    with pytest.raises(exceptions.AlreadyExists):
        pubsub.publisher.create_topic(name=topic, retry=None)
    with pytest.raises(exceptions.AlreadyExists):
        pubsub.subscriber.create_subscription(name=subscription, topic=topic, retry=None)


@pytest.mark.gate
def test_what_does_not_exist_is_not_found(pubsub: PubSub) -> None:
    topic, subscription = (f"projects/local/{kind}/missing" for kind in ("topics", "subscriptions"))
    publisher, subscriber = pubsub.publisher, pubsub.subscriber
    calls: list[Any] = [
        lambda: publisher.delete_topic(topic=topic, retry=None),
        lambda: pubsub.publish(topic, b"x"),
        lambda: pubsub.subscription(topic),
        lambda: subscriber.get_subscription(subscription=subscription, retry=None),
        lambda: subscriber.delete_subscription(subscription=subscription, retry=None),
        lambda: pubsub.pull(subscription),
        lambda: subscriber.acknowledge(subscription=subscription, ack_ids=["x"], retry=None),
    ]
    for call in calls:
        with pytest.raises(exceptions.NotFound):
            call()


@pytest.mark.gate
@pytest.mark.parametrize(
    "fields",
    [
        {"ack_deadline_seconds": 9},
        {"ack_deadline_seconds": 601},
        {"ack_deadline_seconds": -1},
        {"message_retention_duration": timedelta(seconds=599)},
        {"message_retention_duration": timedelta(days=31, seconds=1)},
        {"expiration_policy": {"ttl": timedelta(hours=23)}},
        {"retry_policy": {"minimum_backoff": timedelta(seconds=601)}},
        {"retry_policy": {"minimum_backoff": timedelta(seconds=20), "maximum_backoff": timedelta(seconds=10)}},
        {"filter": 'attributes.k = "' + "v" * 256 + '"'},
    ],
    ids=str,
)
def test_a_setting_out_of_bounds_is_refused(pubsub: PubSub, fields: dict[str, Any]) -> None:
    topic = pubsub.topic()

    with pytest.raises(exceptions.InvalidArgument):
        pubsub.subscription(topic, **fields)


@pytest.mark.parametrize("attempts", [4, 101, -1])
def test_dead_letters_need_5_to_100_attempts(pubsub: PubSub, attempts: int) -> None:
    topic = pubsub.topic()

    with pytest.raises(exceptions.InvalidArgument, match="max_delivery_attempts"):
        pubsub.subscription(topic, dead_letter_policy={"dead_letter_topic": topic, "max_delivery_attempts": attempts})


def test_a_dead_letter_topic_must_exist(pubsub: PubSub) -> None:
    topic = pubsub.topic()
    policy = {"dead_letter_topic": "projects/local/topics/missing", "max_delivery_attempts": 5}

    with pytest.raises(exceptions.NotFound):
        pubsub.subscription(topic, dead_letter_policy=policy)


@pytest.mark.gate
def test_what_is_not_set_gets_the_documented_default(pubsub: PubSub) -> None:
    topic = pubsub.topic()
    name = pubsub.subscription(topic, dead_letter_policy={"dead_letter_topic": topic}, retry_policy={})
    found: Any = pubsub.subscriber.get_subscription(subscription=name, retry=None)

    assert found.ack_deadline_seconds == 10
    assert found.message_retention_duration == timedelta(days=7)
    assert found.expiration_policy.ttl == timedelta(days=31)
    assert found.dead_letter_policy.max_delivery_attempts == 5
    assert (found.retry_policy.minimum_backoff, found.retry_policy.maximum_backoff) == (
        timedelta(seconds=10),
        timedelta(seconds=600),
    )
    assert not found.retain_acked_messages
    assert not found.enable_message_ordering
    assert not found.enable_exactly_once_delivery


def _update(pubsub: PubSub, name: str, *paths: str, **fields: Any) -> Any:
    request = {"subscription": {"name": name, **fields}, "update_mask": FieldMask(paths=paths)}
    return pubsub.subscriber.update_subscription(request, retry=None)


@pytest.mark.gate
def test_what_the_mask_names_is_changed_and_nothing_else(pubsub: PubSub) -> None:
    topic, name = pubsub.pair(labels={"team": "a"}, retry_policy={"minimum_backoff": timedelta(seconds=20)})
    policy = {"dead_letter_topic": pubsub.topic()}
    pubsub.publish(topic, b"x")
    paths = ("ack_deadline_seconds", "dead_letter_policy", "retry_policy")
    said = _update(pubsub, name, *paths, ack_deadline_seconds=30, dead_letter_policy=policy, labels={"team": "b"})
    found: Any = pubsub.subscriber.get_subscription(subscription=name, retry=None)

    assert found == said
    assert (found.ack_deadline_seconds, found.dead_letter_policy.max_delivery_attempts) == (30, 5)
    assert (dict(found.labels), found.topic) == ({"team": "a"}, topic)
    assert "retry_policy" not in found
    (received,) = pubsub.pull(name)
    assert received.delivery_attempt == 1, "the policy holds for what was there before"
    pubsub.advance(29)
    assert pubsub.data(name) == []
    pubsub.advance(2)
    assert pubsub.data(name) == [b"x"], "so does the deadline"


@pytest.mark.gate
@pytest.mark.parametrize(
    ("paths", "fields", "words"),
    [
        ((), {}, "update_mask"),
        (("topic",), {"topic": "projects/local/topics/other"}, "topic of a subscription cannot be changed"),
        (("filter",), {"filter": "attributes:x"}, "filter of a subscription cannot be changed"),
        (("enable_message_ordering",), {"enable_message_ordering": True}, "enable_message_ordering"),
        (("retry_policy.nonsense",), {"retry_policy": {}}, "Invalid update_mask"),
        (("labels", "ack_deadline_seconds"), {"labels": {"a": "b"}, "ack_deadline_seconds": 9}, "ack deadline"),
    ],
    ids=str,
)
def test_an_update_that_cannot_be_is_refused_and_changes_nothing(
    pubsub: PubSub, paths: tuple[str, ...], fields: dict[str, Any], words: str
) -> None:
    _, name = pubsub.pair()
    before: Any = pubsub.subscriber.get_subscription(subscription=name, retry=None)
    with pytest.raises(exceptions.InvalidArgument, match=words):
        _update(pubsub, name, *paths, **fields)

    assert pubsub.subscriber.get_subscription(subscription=name, retry=None) == before
    with pytest.raises(exceptions.NotFound):
        _update(pubsub, f"{name}x", "labels")
    with pytest.raises(exceptions.NotFound):
        _update(pubsub, name, "dead_letter_policy", dead_letter_policy={"dead_letter_topic": "projects/local/topics/missing"})


@pytest.mark.gate
def test_a_deleted_topic_leaves_its_subscriptions_with_their_messages(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"left")
    pubsub.publisher.delete_topic(topic=topic, retry=None)

    assert pubsub.subscriber.get_subscription(subscription=subscription, retry=None).topic == "_deleted-topic_"
    assert pubsub.data(subscription) == [b"left"]
    pubsub.publisher.create_topic(name=topic, retry=None)
    pubsub.publish(topic, b"of another topic")
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 1


def test_a_deleted_subscription_starts_empty_when_it_is_made_again(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"gone")
    pubsub.subscriber.delete_subscription(subscription=subscription, retry=None)
    pubsub.subscriber.create_subscription(name=subscription, topic=topic, retry=None)

    assert pubsub.data(subscription) == []


def test_a_detached_subscription_delivers_nothing(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"lost")
    pubsub.publisher.detach_subscription(request={"subscription": subscription}, retry=None)
    pubsub.publish(topic, b"not for it")

    assert pubsub.subscriber.get_subscription(subscription=subscription, retry=None).detached
    assert pubsub.statistics(subscription)["num_undelivered_messages"] == 0
    with pytest.raises(exceptions.FailedPrecondition):
        pubsub.pull(subscription)


@pytest.mark.parametrize(
    "fields",
    [
        {"push_config": {"push_endpoint": "https://example.com"}},
        {"bigquery_config": {"table": "p.d.t"}},
        {"filter": 'attributes.k = "v"'},
        {"filter": "attributes.k"},
    ],
    ids=str,
)
def test_a_setting_that_the_emulator_does_not_have_is_refused(pubsub: PubSub, fields: dict[str, Any]) -> None:
    topic = pubsub.topic()

    with pytest.raises(exceptions.MethodNotImplemented, match=r"This emulator has no (subscriptions with|filter)"):
        pubsub.subscription(topic, **fields)
    with pytest.raises(exceptions.MethodNotImplemented, match="This emulator has no topics with message_retention_duration"):
        pubsub.topic(message_retention_duration=timedelta(hours=1))


@pytest.mark.gate
def test_a_method_that_the_emulator_does_not_have_is_refused_in_a_sentence(pubsub: PubSub) -> None:
    topic, name = pubsub.pair()
    publisher, subscriber = pubsub.publisher, pubsub.subscriber
    mask = FieldMask(paths=["labels"])
    calls: dict[str, Callable[[], Any]] = {
        "GetTopic": lambda: publisher.get_topic(topic=topic, retry=None),
        "UpdateTopic": lambda: publisher.update_topic({"topic": {"name": topic}, "update_mask": mask}, retry=None),
        "ListTopics": lambda: publisher.list_topics(project="projects/local", retry=None),
        "ListTopicSubscriptions": lambda: publisher.list_topic_subscriptions(topic=topic, retry=None),
        "ListSubscriptions": lambda: subscriber.list_subscriptions(project="projects/local", retry=None),
        "CreateSnapshot": lambda: subscriber.create_snapshot(
            name="projects/local/snapshots/snap", subscription=name, retry=None
        ),
        "StreamingPull": lambda: next(
            iter(subscriber.streaming_pull(requests=iter([StreamingPullRequest(subscription=name)]), retry=None))
        ),
    }
    for method, call in calls.items():
        with pytest.raises(exceptions.MethodNotImplemented, match=rf"This emulator has no method {method}\."):
            call()


@pytest.mark.gate
def test_permissions_are_those_of_what_exists(pubsub: PubSub) -> None:
    """Without identities every caller has them all; of what does not exist none has any, and that is no error."""
    topic, subscription = pubsub.pair()

    def granted(resource: str, *permissions: str) -> list[str]:
        request = {"resource": resource, "permissions": permissions}
        return list(pubsub.publisher.test_iam_permissions(request, retry=None).permissions)

    assert granted(topic, "pubsub.topics.publish", "pubsub.topics.get") == ["pubsub.topics.publish", "pubsub.topics.get"]
    assert granted(subscription, "pubsub.subscriptions.consume") == ["pubsub.subscriptions.consume"]
    assert granted(f"{topic}-missing", "pubsub.topics.publish") == []
    with pytest.raises(exceptions.InvalidArgument, match="wildcards are not allowed"):
        granted(topic, "pubsub.*")
