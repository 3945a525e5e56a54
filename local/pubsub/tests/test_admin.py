"""Names, settings and lists: what exists, what may be asked for, and what is refused with which status."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask

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
    snapshot = f"projects/local/snapshots/n{unique()}"
    pubsub.subscriber.create_snapshot(name=snapshot, subscription=subscription, retry=None)

    with pytest.raises(exceptions.AlreadyExists):
        pubsub.publisher.create_topic(name=topic, retry=None)
    with pytest.raises(exceptions.AlreadyExists):
        pubsub.subscriber.create_subscription(name=subscription, topic=topic, retry=None)
    with pytest.raises(exceptions.AlreadyExists):
        pubsub.subscriber.create_snapshot(name=snapshot, subscription=subscription, retry=None)


@pytest.mark.gate
def test_what_does_not_exist_is_not_found(pubsub: PubSub) -> None:
    topic, subscription, snapshot = (f"projects/local/{kind}/missing" for kind in ("topics", "subscriptions", "snapshots"))
    publisher, subscriber = pubsub.publisher, pubsub.subscriber
    _, there = pubsub.pair()
    calls: list[Any] = [
        lambda: publisher.get_topic(topic=topic, retry=None),
        lambda: publisher.delete_topic(topic=topic, retry=None),
        lambda: pubsub.publish(topic, b"x"),
        lambda: publisher.list_topic_subscriptions(topic=topic, retry=None),
        lambda: pubsub.subscription(topic),
        lambda: subscriber.get_subscription(subscription=subscription, retry=None),
        lambda: subscriber.delete_subscription(subscription=subscription, retry=None),
        lambda: pubsub.pull(subscription),
        lambda: subscriber.acknowledge(subscription=subscription, ack_ids=["x"], retry=None),
        lambda: subscriber.seek(request={"subscription": there, "snapshot": snapshot}, retry=None),
        lambda: subscriber.get_snapshot(snapshot=snapshot, retry=None),
        lambda: subscriber.delete_snapshot(snapshot=snapshot, retry=None),
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
        {"filter": "attributes.k"},
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
    topic, subscription = pubsub.pair()
    policy = {"dead_letter_topic": "projects/local/topics/missing", "max_delivery_attempts": 5}

    with pytest.raises(exceptions.NotFound):
        pubsub.subscription(topic, dead_letter_policy=policy)
    with pytest.raises(exceptions.NotFound):
        _update(pubsub, subscription, dead_letter_policy=policy)


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


@pytest.mark.gate
def test_an_update_changes_what_its_mask_names(pubsub: PubSub) -> None:
    topic, name = pubsub.pair(labels={"a": "1"}, ack_deadline_seconds=30)
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": 7}
    changed = _update(pubsub, name, ack_deadline_seconds=60, dead_letter_policy=policy)

    assert (changed.ack_deadline_seconds, changed.dead_letter_policy.max_delivery_attempts) == (60, 7)
    assert changed.labels == {"a": "1"}
    cleared = pubsub.subscriber.update_subscription(
        request={"subscription": {"name": name}, "update_mask": FieldMask(paths=["dead_letter_policy"])}, retry=None
    )
    assert not cleared.dead_letter_policy.dead_letter_topic
    assert cleared.ack_deadline_seconds == 60


@pytest.mark.parametrize("path", ["name", "topic", "filter", "enable_message_ordering", "nothing", ""])
def test_an_update_of_what_cannot_change_is_refused(pubsub: PubSub, path: str) -> None:
    _, name = pubsub.pair()
    mask = FieldMask(paths=[path] if path else [])

    with pytest.raises(exceptions.InvalidArgument, match="update_mask"):
        pubsub.subscriber.update_subscription(request={"subscription": {"name": name}, "update_mask": mask}, retry=None)


def test_an_update_keeps_the_bounds(pubsub: PubSub) -> None:
    _, name = pubsub.pair(ack_deadline_seconds=30)

    with pytest.raises(exceptions.InvalidArgument):
        _update(pubsub, name, ack_deadline_seconds=5)
    assert pubsub.subscriber.get_subscription(subscription=name, retry=None).ack_deadline_seconds == 30


def test_a_topic_can_be_updated_and_its_retention_is_bounded(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()

    def update(retention: timedelta) -> Any:
        changed = {"name": topic, "message_retention_duration": retention}
        mask = FieldMask(paths=["message_retention_duration"])
        return pubsub.publisher.update_topic(request={"topic": changed, "update_mask": mask}, retry=None)

    assert update(timedelta(days=31)).message_retention_duration == timedelta(days=31)
    found = pubsub.subscriber.get_subscription(subscription=subscription, retry=None)
    assert found.topic_message_retention_duration == timedelta(days=31)
    for wrong in (timedelta(minutes=9), timedelta(days=32)):
        with pytest.raises(exceptions.InvalidArgument):
            update(wrong)


@pytest.mark.gate
def test_lists_are_complete_and_come_in_pages(pubsub: PubSub) -> None:
    project = f"projects/p{unique()}"
    topics = [pubsub.publisher.create_topic(name=f"{project}/topics/t{n:03}", retry=None).name for n in range(5)]
    subscriptions = [f"{project}/subscriptions/s{n:03}" for n in range(5)]
    for name in subscriptions:
        pubsub.subscriber.create_subscription(name=name, topic=topics[0], retry=None)
    snapshot = pubsub.subscriber.create_snapshot(name=f"{project}/snapshots/snap", subscription=subscriptions[0], retry=None)
    first = next(pubsub.publisher.list_topics(request={"project": project, "page_size": 2}, retry=None).pages)

    assert ([each.name for each in first.topics], first.next_page_token) == (topics[:2], topics[1])
    listed = pubsub.publisher.list_topics(request={"project": project, "page_size": 2}, retry=None)
    assert [each.name for each in listed] == topics
    assert [each.name for each in pubsub.subscriber.list_subscriptions(project=project, retry=None)] == subscriptions
    assert list(pubsub.publisher.list_topic_subscriptions(topic=topics[0], retry=None)) == subscriptions
    assert list(pubsub.publisher.list_topic_snapshots(topic=topics[0], retry=None)) == [snapshot.name]
    assert [each.name for each in pubsub.subscriber.list_snapshots(project=project, retry=None)] == [snapshot.name]


@pytest.mark.gate
def test_a_deleted_topic_leaves_its_subscriptions_with_their_messages(pubsub: PubSub) -> None:
    topic, subscription = pubsub.pair()
    pubsub.publish(topic, b"left")
    pubsub.publisher.delete_topic(topic=topic, retry=None)

    assert pubsub.subscriber.get_subscription(subscription=subscription, retry=None).topic == "_deleted-topic_"
    assert pubsub.data(subscription) == [b"left"]
    pubsub.publisher.create_topic(name=topic, retry=None)
    assert list(pubsub.publisher.list_topic_subscriptions(topic=topic, retry=None)) == []


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
    "fields", [{"push_config": {"push_endpoint": "https://example.com"}}, {"bigquery_config": {"table": "p.d.t"}}], ids=str
)
def test_what_the_emulator_does_not_have_is_refused(pubsub: PubSub, fields: dict[str, Any]) -> None:
    topic = pubsub.topic()

    with pytest.raises(exceptions.MethodNotImplemented):
        pubsub.subscription(topic, **fields)


def _update(pubsub: PubSub, name: str, **fields: Any) -> Any:
    request = {"subscription": {"name": name, **fields}, "update_mask": FieldMask(paths=list(fields))}
    return pubsub.subscriber.update_subscription(request=request, retry=None)


@pytest.mark.gate
def test_permissions_are_those_of_what_exists(pubsub: PubSub) -> None:
    """Without identities everybody has them all; of what does not exist, nobody has any, and that is no error."""
    topic, subscription = pubsub.pair()

    def granted(resource: str, *permissions: str) -> list[str]:
        request = {"resource": resource, "permissions": permissions}
        return list(pubsub.publisher.test_iam_permissions(request, retry=None).permissions)

    assert granted(topic, "pubsub.topics.publish", "pubsub.topics.get") == ["pubsub.topics.publish", "pubsub.topics.get"]
    assert granted(subscription, "pubsub.subscriptions.consume") == ["pubsub.subscriptions.consume"]
    assert granted(f"{topic}-missing", "pubsub.topics.publish") == []
    with pytest.raises(exceptions.InvalidArgument, match="wildcards are not allowed"):
        granted(topic, "pubsub.*")
