"""A stream's manifests, in the order in which one reads them."""

from __future__ import annotations

from typing import Any

from nightshift.stream.manifests import autoscaling, gateway, server, subscriber
from nightshift.stream.manifests.render_request import StreamRequest


class Unrenderable(ValueError):
    """A line for each thing that is missing or does not go together."""


def render(request: StreamRequest) -> list[dict[str, Any]]:
    """The manifests. Raises Unrenderable with everything that keeps it from making them."""
    if problems := list(request.problems()):
        raise Unrenderable("\n".join(problems))
    found = [*subscriber.objects(request), *autoscaling.of_subscribers(request)]
    for component in request.servers:
        found += [*server.objects(request, component), *autoscaling.of_servers(request, component)]
    return found + (gateway.objects(request) if request.variant.gateway else [])
