"""Topics and subscriptions: create, get, update, delete, detach. Each function answers one request."""

from __future__ import annotations

from typing import Any

from google.protobuf import empty_pb2

from local.pubsub import limits
from local.pubsub.errors import already_exists, invalid
from local.pubsub.messages import SUBSCRIPTION_ACTIVE, TOPIC_ACTIVE, raw
from local.pubsub.state import DELETED_TOPIC, State, settings_of


def create_topic(state: State, topic: Any) -> Any:
    limits.check_topic(topic)
    if topic.name in state.topics:
        raise already_exists(topic.name)
    topic.state = TOPIC_ACTIVE
    with state.transaction():
        state.add_topic(topic)
    return topic


def delete_topic(state: State, request: Any) -> Any:
    """Its subscriptions stay, with their messages."""
    topic = state.topic(request.topic)
    with state.transaction():
        for subscription in state.subscriptions.values():
            if subscription.resource.topic == request.topic:
                subscription.resource.topic = DELETED_TOPIC
                state.changed(subscription)
        del state.topics[request.topic]
        state.remove(topic)
    return empty_pb2.Empty()


def create_subscription(state: State, subscription: Any) -> Any:
    limits.check_subscription(subscription)
    if subscription.name in state.subscriptions:
        raise already_exists(subscription.name)
    state.topic(subscription.topic)
    _check_dead_letter_topic(state, subscription)
    _fill(subscription)
    subscription.detached = False
    subscription.state = SUBSCRIPTION_ACTIVE
    with state.transaction():
        state.add_subscription(subscription)
    return subscription


def get_subscription(state: State, request: Any) -> Any:
    return state.subscription(request.subscription).resource


def update_subscription(state: State, request: Any) -> Any:
    """The fields that its mask names. Messages that were retained stay until their time is over, whatever is said now."""
    subscription, mask = state.subscription(request.subscription.name), request.update_mask
    if not mask.paths:
        raise invalid("The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list.")
    for path in mask.paths:
        if path.partition(".")[0] not in limits.CHANGEABLE:
            raise invalid(f"Invalid update_mask: {path} of a subscription cannot be changed.")
    if not mask.IsValidForDescriptor(request.subscription.DESCRIPTOR):
        raise invalid(f"Invalid update_mask: a subscription has not all of {list(mask.paths)}.")
    updated = type(subscription.resource)()
    updated.CopyFrom(subscription.resource)
    mask.MergeMessage(request.subscription, updated, replace_message_field=True, replace_repeated_field=True)
    limits.check_subscription(updated)
    _check_dead_letter_topic(state, updated)
    _fill(updated)
    with state.transaction():
        subscription.resource.CopyFrom(updated)
        subscription.backlog.settings = settings_of(updated)
        state.changed(subscription)
    return updated


def delete_subscription(state: State, request: Any) -> Any:
    subscription = state.subscription(request.subscription)
    with state.transaction():
        del state.subscriptions[request.subscription]
        state.remove(subscription)
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
