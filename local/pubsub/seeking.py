"""Snapshots, and seeking to one or to a time. Page: "Replay and purge messages with seek"."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final

from google.protobuf import empty_pb2, field_mask_pb2

from local.pubsub import limits
from local.pubsub.errors import already_exists, failed_precondition, invalid
from local.pubsub.leases import Message
from local.pubsub.messages import Snapshot, raw
from local.pubsub.state import DELETED_TOPIC, State, SubscriptionState, attributes_of

_SNAPSHOT_FIELDS: Final = ("labels", "expire_time")


def create_snapshot(state: State, request: Any) -> Any:
    subscription = state.subscription(request.subscription)
    project = request.subscription.split("/")[1]
    name = request.name or f"projects/{project}/snapshots/s{uuid.uuid4().hex}"
    limits.check_name(name, "snapshots")
    if name in state.snapshots:
        raise already_exists(name)
    if subscription.resource.topic == DELETED_TOPIC:
        raise failed_precondition("The topic of the subscription has been deleted.")
    now = state.clock.now()
    oldest = subscription.backlog.oldest_unacked()
    life = limits.SNAPSHOT_LIFE_S - (now - oldest if oldest is not None else 0)
    if life < limits.SNAPSHOT_LIFE_LEAST_S:
        raise failed_precondition("The backlog is too old: the snapshot would expire in less than an hour.")
    resource = Snapshot(name=name, topic=subscription.resource.topic, labels=request.labels)
    resource.expire_time.FromMicroseconds(int((now + life) * 1e6))
    with state.transaction():
        snapshot = state.add_snapshot(resource)
        unacked = [entry.message for entry in subscription.backlog.entries.values() if not entry.acked]
        snapshot.held.update((message.id, message) for message in unacked)
        state.hold(snapshot.id, unacked)
    return resource


def get_snapshot(state: State, request: Any) -> Any:
    return state.snapshot(request.snapshot).resource


def update_snapshot(state: State, request: Any) -> Any:
    snapshot = state.snapshot(request.snapshot.name)
    for path in request.update_mask.paths:
        if path not in _SNAPSHOT_FIELDS:
            raise invalid(f"Invalid update_mask provided in the UpdateSnapshotRequest: '{path}' is not mutable.")
    if not request.update_mask.paths:
        raise invalid("The update_mask must be specified and non-empty.")
    with state.transaction():
        field_mask_pb2.FieldMask(paths=request.update_mask.paths).MergeMessage(request.snapshot, snapshot.resource, True, True)
        state.changed(snapshot)
    return snapshot.resource


def delete_snapshot(state: State, request: Any) -> Any:
    snapshot = state.snapshot(request.snapshot)
    with state.transaction():
        del state.snapshots[request.snapshot]
        state.remove(snapshot)
    return empty_pb2.Empty()


def seek(state: State, request: Any) -> Any:
    """Marks retained messages as acknowledged or not; all leases end."""
    subscription = state.subscription(request.subscription)
    target = request.WhichOneof("target")
    if target == "time":
        cut = request.time.ToMicroseconds() / 1e6
        topic = state.topics.get(subscription.resource.topic)
        retained = topic.held.values() if topic else ()
        _apply(state, subscription, retained, lambda message: message.published < cut)
    elif target == "snapshot":
        snapshot = state.snapshot(request.snapshot)
        if snapshot.resource.topic != subscription.resource.topic:
            raise invalid("The snapshot's topic must be the same as that of the subscription.")
        _apply(state, subscription, snapshot.held.values(), lambda message: message.id not in snapshot.held)
    else:
        raise invalid("A seek needs a time or a snapshot.")
    subscription.bell.ring()
    return raw("SeekResponse")()


def _apply(state: State, subscription: SubscriptionState, retained: Iterable[Message], acked: Any) -> None:
    """Fills the backlog again. retained: messages that others hold. acked: whether a message counts as acknowledged."""
    backlog = subscription.backlog
    found = {number: entry.message for number, entry in backlog.entries.items()}
    found |= {each.id: each for each in retained if each.id in found or subscription.matches(attributes_of(each))}
    keep = [
        each
        for each in sorted(found.values(), key=lambda message: message.id)
        if backlog.settings.retain_acked or not acked(each)
    ]
    with state.transaction():
        before = list(backlog.entries)
        # Those that stay are held twice for a moment, so that nothing is deleted in between.
        state.hold(-subscription.id, keep)
        state.release(subscription.id, before)
        state.hold(subscription.id, keep, acked)
        state.release(-subscription.id, [each.id for each in keep])
        backlog.fill([(each, acked(each), 0) for each in keep])
        backlog.dirty.clear()
