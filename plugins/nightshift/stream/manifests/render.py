"""A stream's manifests, in the order in which a person reads them."""

from __future__ import annotations

from typing import Any

from nightshift.stream.manifests import autoscaling, gateway, server, subscriber
from nightshift.stream.manifests.render_request import StreamRequest


class Unrenderable(ValueError):
    """A line for each thing that is missing or does not go together."""


def render(order: StreamRequest) -> list[dict[str, Any]]:
    """The manifests. Raises Unrenderable with everything that keeps it from making them."""
    if problems := list(order.problems()):
        raise Unrenderable("\n".join(problems))
    found = [*subscriber.objects(order), *autoscaling.of_subscribers(order)]
    for component in order.servers:
        found += [*server.objects(order, component), *autoscaling.of_servers(order, component)]
    return found + (gateway.objects(order) if order.variant.gateway else [])
