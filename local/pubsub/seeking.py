"""Seeking to a time. Page: "Replay and purge messages with seek"."""

from __future__ import annotations

from typing import Any

from local.pubsub.errors import invalid, not_implemented
from local.pubsub.messages import raw
from local.pubsub.state import State


def seek(state: State, request: Any) -> Any:
    """Sets retained messages to acknowledged or not; all leases end."""
    subscription = state.subscription(request.subscription)
    target = request.WhichOneof("target")
    if target == "snapshot":
        raise not_implemented("snapshots; it seeks to a time")
    if target != "time":
        raise invalid("A seek needs a time or a snapshot.")
    cut = request.time.ToMicroseconds() / 1e6
    backlog = subscription.backlog
    rows = [(entry.message, entry.message.published < cut, 0) for entry in backlog.entries.values()]
    kept = [row for row in rows if backlog.settings.retain_acked or not row[1]]
    over = backlog.entries.keys() - {message.id for message, _, _ in kept}
    with state.transaction():
        state.release(subscription.id, over)
        backlog.fill(kept)
        backlog.dirty.update(message.id for message, _, _ in kept)
        state.save(subscription)
    subscription.bell.ring()
    return raw("SeekResponse")()
