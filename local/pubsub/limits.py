"""Pub/Sub's documented limits and patterns, each as a check that raises `Refusal`. Pure.

Pages: the reference of google.pubsub.v1 (names, durations, deadlines, policies), "Quotas and limits" (sizes).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from local.pubsub import filters
from local.pubsub.errors import invalid, not_implemented

MESSAGES_MOST: Final = 1000
"""Messages of one publish request."""
PUBLISH_BYTES_MOST: Final = 10_000_000
"""Bytes of one publish request, and of one message."""
ACK_BYTES_MOST: Final = 524_288
"""Bytes of one Acknowledge or ModifyAckDeadline request. There is no limit on the number of ids."""
ATTRIBUTES_MOST: Final = 100
ATTRIBUTE_KEY_BYTES_MOST: Final = 256
ATTRIBUTE_VALUE_BYTES_MOST: Final = 1024
ORDERING_KEY_BYTES_MOST: Final = 1024
FILTER_BYTES_MOST: Final = 256
DEADLINE_LEAST_S: Final = 10
DEADLINE_MOST_S: Final = 600
BACKOFF_DEFAULT_S: Final = (10.0, 600.0)
BACKOFF_MOST_S: Final = 600
ATTEMPTS_LEAST: Final = 5
ATTEMPTS_MOST: Final = 100
MINUTE_S: Final = 60
DAY_S: Final = 86_400
RETENTION_LEAST_S: Final = 10 * MINUTE_S
RETENTION_MOST_S: Final = 31 * DAY_S
RETENTION_DEFAULT_S: Final = 7 * DAY_S
EXPIRATION_LEAST_S: Final = DAY_S
EXPIRATION_DEFAULT_S: Final = 31 * DAY_S

CHANGEABLE: Final = frozenset(
    (
        "ack_deadline_seconds",
        "retain_acked_messages",
        "message_retention_duration",
        "labels",
        "expiration_policy",
        "dead_letter_policy",
        "retry_policy",
        "enable_exactly_once_delivery",
        "push_config",
        "bigquery_config",
        "cloud_storage_config",
        "bigtable_config",
        "message_transforms",
    )
)
"""Of a subscription that is there. Its topic, its filter and its message ordering stay (page: Subscription properties)."""

_NAME: Final = re.compile(r"projects/[^/]+/(topics|subscriptions)/(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_TOPIC_MISSING: Final = (
    "ingestion_data_source_settings",
    "kms_key_name",
    "message_retention_duration",
    "message_transforms",
    "schema_settings",
)
_SUBSCRIPTION_MISSING: Final = (
    "push_config",
    "bigquery_config",
    "cloud_storage_config",
    "bigtable_config",
    "message_transforms",
)


def check_name(name: str, kind: str) -> None:
    """kind: ``topics`` or ``subscriptions``."""
    found = _NAME.fullmatch(name)
    if not found or found[1] != kind:
        raise invalid(f"Invalid [{kind}] name: (name={name})")


def check_publish(request: Any) -> None:
    """A PublishRequest, and each message in it."""
    messages = request.messages
    if not messages:
        raise invalid("The publish request must contain at least one message.")
    if len(messages) > MESSAGES_MOST:
        raise invalid(f"The publish request has {len(messages)} messages; the maximum is {MESSAGES_MOST}.")
    if request.ByteSize() > PUBLISH_BYTES_MOST:
        raise invalid(f"Request payload size exceeds the limit: {PUBLISH_BYTES_MOST} bytes.")
    key = messages[0].ordering_key
    for message in messages:
        if message.ordering_key != key:
            raise invalid("In a single publish request, all messages must have no ordering key or the same ordering key.")
        if message.attributes:
            _check_attributes(message.attributes)
        elif not message.data:
            raise invalid("One or more messages in the publish request is empty. Each message needs data or an attribute.")
    if len(key.encode()) > ORDERING_KEY_BYTES_MOST:
        raise invalid(f"The ordering key is longer than {ORDERING_KEY_BYTES_MOST} bytes.")


def _check_attributes(attributes: Any) -> None:
    if len(attributes) > ATTRIBUTES_MOST:
        raise invalid(f"The message has {len(attributes)} attributes; the maximum is {ATTRIBUTES_MOST}.")
    for key, value in attributes.items():
        if not key or len(key.encode()) > ATTRIBUTE_KEY_BYTES_MOST:
            raise invalid(f"An attribute's key must have 1 to {ATTRIBUTE_KEY_BYTES_MOST} bytes.")
        if len(value.encode()) > ATTRIBUTE_VALUE_BYTES_MOST:
            raise invalid(f"The attribute {key} is longer than {ATTRIBUTE_VALUE_BYTES_MOST} bytes.")
        if key.startswith("goog"):
            raise invalid(f"The attribute {key} begins with goog, which is reserved.")


def check_ack_request(request: Any) -> None:
    """An AcknowledgeRequest or ModifyAckDeadlineRequest."""
    if request.ByteSize() > ACK_BYTES_MOST:
        raise invalid(f"Request payload size exceeds the limit: {ACK_BYTES_MOST} bytes.")
    if not request.ack_ids:
        raise invalid("No ack ids specified.")


def check_deadline(seconds: int, *, least: int) -> None:
    if seconds != 0 and not least <= seconds <= DEADLINE_MOST_S:
        raise invalid(f"Invalid ack deadline given (ack_deadline_secs={seconds}): {least} to {DEADLINE_MOST_S} seconds.")


def check_topic(topic: Any) -> None:
    check_name(topic.name, "topics")
    for field in _TOPIC_MISSING:
        if getattr(topic, field) if not _is_message(topic, field) else topic.HasField(field):
            raise not_implemented(f"topics with {field}")


def check_subscription(subscription: Any) -> None:
    """All but whether the topics that it names exist."""
    check_name(subscription.name, "subscriptions")
    for field in _SUBSCRIPTION_MISSING:
        # A push configuration without an address means pull.
        if field == "message_transforms":
            asked = bool(subscription.message_transforms)
        else:
            asked = subscription.HasField(field) and bool(getattr(subscription, field).ByteSize())
        if asked:
            raise not_implemented(f"subscriptions with {field}; it delivers on request only")
    check_deadline(subscription.ack_deadline_seconds, least=DEADLINE_LEAST_S)
    if subscription.HasField("message_retention_duration"):
        _check_retention(subscription.message_retention_duration.ToSeconds())
    if subscription.HasField("expiration_policy") and subscription.expiration_policy.HasField("ttl"):
        ttl = subscription.expiration_policy.ttl.ToSeconds()
        if ttl < EXPIRATION_LEAST_S:
            raise invalid(f"Invalid expiration_policy.ttl: {ttl} s; it is at least one day.")
    if len(subscription.filter.encode()) > FILTER_BYTES_MOST:
        raise invalid(f"The filter is longer than {FILTER_BYTES_MOST} bytes.")
    filters.parse(subscription.filter)
    if subscription.HasField("dead_letter_policy"):
        check_name(subscription.dead_letter_policy.dead_letter_topic, "topics")
        attempts = subscription.dead_letter_policy.max_delivery_attempts
        if attempts != 0 and not ATTEMPTS_LEAST <= attempts <= ATTEMPTS_MOST:
            raise invalid(f"Invalid max_delivery_attempts: {attempts}; it is between {ATTEMPTS_LEAST} and {ATTEMPTS_MOST}.")
    if subscription.HasField("retry_policy"):
        _check_backoff(subscription.retry_policy)


def backoff_of(policy: Any) -> tuple[float, float]:
    """The shortest and the longest delay of a RetryPolicy in seconds, with the documented defaults."""
    least, most = BACKOFF_DEFAULT_S
    if policy.HasField("minimum_backoff"):
        least = policy.minimum_backoff.ToNanoseconds() / 1e9
    if policy.HasField("maximum_backoff"):
        most = policy.maximum_backoff.ToNanoseconds() / 1e9
    return least, most


def _check_backoff(policy: Any) -> None:
    least, most = backoff_of(policy)
    if not 0 <= least <= BACKOFF_MOST_S or not 0 <= most <= BACKOFF_MOST_S:
        raise invalid(f"Invalid retry_policy: both delays are between 0 and {BACKOFF_MOST_S} seconds.")
    if least > most:
        raise invalid("Invalid retry_policy: minimum_backoff is longer than maximum_backoff.")


def _check_retention(seconds: int) -> None:
    if not RETENTION_LEAST_S <= seconds <= RETENTION_MOST_S:
        raise invalid(f"Invalid message_retention_duration: {seconds} s; it is between 10 minutes and 31 days.")


def _is_message(owner: Any, field: str) -> bool:
    descriptor = owner.DESCRIPTOR.fields_by_name[field]
    return descriptor.message_type is not None and not isinstance(getattr(owner, field), Sequence)
