"""Topics and subscriptions: create, get, update, list, delete, detach. Each function answers one request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import empty_pb2, field_mask_pb2

from local.pubsub import limits
from local.pubsub.errors import already_exists, invalid
from local.pubsub.messages import SUBSCRIPTION_ACTIVE, TOPIC_ACTIVE, raw
from local.pubsub.state import DELETED_TOPIC, State, settings_of

PAGE_MOST: Final = 1000
_TOPIC_FIELDS: Final = ("labels", "message_retention_duration", "message_storage_policy")
_SUBSCRIPTION_FIELDS: Final = (
    "ack_deadline_seconds",
    "dead_letter_policy",
    "enable_exactly_once_delivery",
    "expiration_policy",
    "labels",
    "message_retention_duration",
    "push_config",
    "retain_acked_messages",
    "retry_policy",
)


def create_topic(state: State, topic: Any) -> Any:
    limits.check_topic(topic)
    if topic.name in state.topics:
        raise already_exists(topic.name)
    topic.state = TOPIC_ACTIVE
    with state.transaction():
        state.add_topic(topic)
    return topic


def get_topic(state: State, request: Any) -> Any:
    return state.topic(request.topic).resource


def update_topic(state: State, request: Any) -> Any:
    topic = state.topic(request.topic.name)
    changed = _updated("Topic", topic.resource, request.topic, request.update_mask, _TOPIC_FIELDS)
    limits.check_topic(changed)
    with state.transaction():
        topic.resource = changed
        state.changed(topic)
        for subscription in state.subscriptions_of(changed.name):
            _copy_retention(subscription.resource, changed)
            state.changed(subscription)
        if not topic.retention_s:
            state.release(topic.id, list(topic.held))
            topic.held.clear()
    return changed


def delete_topic(state: State, request: Any) -> Any:
    """Its subscriptions stay, with their messages."""
    topic = state.topic(request.topic)
    with state.transaction():
        for subscription in state.subscriptions.values():
            if subscription.resource.topic == request.topic:
                subscription.resource.topic = DELETED_TOPIC
                subscription.resource.ClearField("topic_message_retention_duration")
                state.changed(subscription)
        for snapshot in state.snapshots_of(request.topic):
            snapshot.resource.topic = DELETED_TOPIC
            state.changed(snapshot)
        del state.topics[request.topic]
        state.remove(topic)
    return empty_pb2.Empty()


def list_topics(state: State, request: Any) -> Any:
    names, token = _page(request, _in_project(state.topics, request.project))
    return raw("ListTopicsResponse")(topics=[state.topics[name].resource for name in names], next_page_token=token)


def list_topic_subscriptions(state: State, request: Any) -> Any:
    state.topic(request.topic)
    names, token = _page(request, (each.resource.name for each in state.subscriptions_of(request.topic)))
    return raw("ListTopicSubscriptionsResponse")(subscriptions=names, next_page_token=token)


def list_topic_snapshots(state: State, request: Any) -> Any:
    state.topic(request.topic)
    names, token = _page(request, (each.resource.name for each in state.snapshots_of(request.topic)))
    return raw("ListTopicSnapshotsResponse")(snapshots=names, next_page_token=token)


def create_subscription(state: State, subscription: Any) -> Any:
    limits.check_subscription(subscription)
    if subscription.name in state.subscriptions:
        raise already_exists(subscription.name)
    topic = state.topic(subscription.topic)
    _check_dead_letter_topic(state, subscription)
    _fill(subscription)
    subscription.detached = False
    subscription.state = SUBSCRIPTION_ACTIVE
    _copy_retention(subscription, topic.resource)
    with state.transaction():
        state.add_subscription(subscription)
    return subscription


def get_subscription(state: State, request: Any) -> Any:
    return state.subscription(request.subscription).resource


def update_subscription(state: State, request: Any) -> Any:
    subscription = state.subscription(request.subscription.name)
    mask = request.update_mask
    changed = _updated("Subscription", subscription.resource, request.subscription, mask, _SUBSCRIPTION_FIELDS)
    limits.check_subscription(changed)
    _check_dead_letter_topic(state, changed)
    _fill(changed)
    with state.transaction():
        subscription.resource = changed
        subscription.backlog.apply(settings_of(changed))
        state.save(subscription)
        state.changed(subscription)
    subscription.bell.ring()
    return changed


def delete_subscription(state: State, request: Any) -> Any:
    subscription = state.subscription(request.subscription)
    with state.transaction():
        del state.subscriptions[request.subscription]
        state.remove(subscription)
    subscription.gone = True
    subscription.bell.ring()
    return empty_pb2.Empty()


def detach_subscription(state: State, request: Any) -> Any:
    """It keeps no messages and gets none any more."""
    subscription = state.subscription(request.subscription)
    with state.transaction():
        subscription.resource.detached = True
        state.release(subscription.id, list(subscription.backlog.entries))
        subscription.backlog.fill([])
        subscription.backlog.dirty.clear()
        state.changed(subscription)
    subscription.bell.ring()
    return raw("DetachSubscriptionResponse")()


def list_subscriptions(state: State, request: Any) -> Any:
    names, token = _page(request, _in_project(state.subscriptions, request.project))
    found = [state.subscriptions[name].resource for name in names]
    return raw("ListSubscriptionsResponse")(subscriptions=found, next_page_token=token)


def list_snapshots(state: State, request: Any) -> Any:
    names, token = _page(request, _in_project(state.snapshots, request.project))
    return raw("ListSnapshotsResponse")(snapshots=[state.snapshots[name].resource for name in names], next_page_token=token)


def _updated(kind: str, old: Any, new: Any, mask: Any, fields: Iterable[str]) -> Any:
    """A copy of `old` with the fields of the mask taken from `new`. Raises Refusal if they cannot change."""
    if not mask.paths:
        raise invalid("The update_mask must be specified and non-empty.")
    for path in mask.paths:
        name = path.partition(".")[0]
        if name not in old.DESCRIPTOR.fields_by_name:
            raise invalid(f"Invalid update_mask provided in the Update{kind}Request: '{path}' is not a known {kind} field.")
        if name not in fields:
            text = f"the '{name}' field in the {kind} is not mutable"
            raise invalid(f"Invalid update_mask provided in the Update{kind}Request: {text}.")
    changed = type(old)()
    changed.CopyFrom(old)
    field_mask_pb2.FieldMask(paths=mask.paths).MergeMessage(new, changed, True, True)
    return changed


def _check_dead_letter_topic(state: State, subscription: Any) -> None:
    if subscription.HasField("dead_letter_policy"):
        state.topic(subscription.dead_letter_policy.dead_letter_topic)


def _fill(subscription: Any) -> None:
    """Puts the documented defaults in place of what is not set."""
    subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or limits.DEADLINE_LEAST_S
    if not subscription.HasField("message_retention_duration"):
        subscription.message_retention_duration.FromSeconds(limits.RETENTION_DEFAULT_S)
    if not subscription.HasField("expiration_policy"):
        subscription.expiration_policy.ttl.FromSeconds(limits.EXPIRATION_DEFAULT_S)
    if subscription.HasField("dead_letter_policy"):
        policy = subscription.dead_letter_policy
        policy.max_delivery_attempts = policy.max_delivery_attempts or limits.ATTEMPTS_LEAST
    if subscription.HasField("retry_policy"):
        least, most = limits.backoff_of(subscription.retry_policy)
        subscription.retry_policy.minimum_backoff.FromNanoseconds(int(least * 1e9))
        subscription.retry_policy.maximum_backoff.FromNanoseconds(int(most * 1e9))


def _copy_retention(subscription: Any, topic: Any) -> None:
    subscription.ClearField("topic_message_retention_duration")
    if topic.HasField("message_retention_duration"):
        subscription.topic_message_retention_duration.CopyFrom(topic.message_retention_duration)


def _in_project(places: Iterable[str], project: str) -> Iterable[str]:
    limits.check_project(project)
    return (name for name in places if name.startswith(f"{project}/"))


def _page(request: Any, names: Iterable[str]) -> tuple[list[str], str]:
    """The names of one page in their order, and the token of the next page: the last name of this one."""
    if request.page_size < 0:
        raise invalid(f"Invalid page_size: {request.page_size}.")
    size = min(request.page_size or PAGE_MOST, PAGE_MOST)
    left = sorted(name for name in names if name > request.page_token)
    return left[:size], left[size - 1] if len(left) > size else ""
