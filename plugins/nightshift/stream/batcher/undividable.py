"""Remembers which requests a server does not answer in a form that could be divided among callers. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from nightshift.stream.batcher.endpoint import Asked, Endpoint

REMEMBERED_S: Final = 600.0
"""Afterwards it is tried again: the reply may have been a page of a proxy, and a model may be another one."""
REMEMBERED_MOST: Final = 1024


class Separate:
    """Requests go alone whose model has answered a merged one with something else than one result for each item.

    Of a model and its parameters, since a parameter may decide what the answer looks like.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, endpoint: Endpoint, target: str, asked: Asked, now: float) -> None:
        """target: the request's path and query. now: seconds of any steady clock."""
        name = _name(endpoint, target, asked)
        self._until[name] = now + REMEMBERED_S
        self._until.move_to_end(name)
        if len(self._until) > REMEMBERED_MOST:
            self._until.popitem(last=False)

    def holds(self, endpoint: Endpoint, target: str, asked: Asked, now: float) -> bool:
        """Whether such a request goes alone."""
        # A name takes as long as the request is large.
        return bool(self._until) and self._until.get(_name(endpoint, target, asked), now) > now


def _name(endpoint: Endpoint, target: str, asked: Asked) -> bytes:
    """Short, whatever callers send."""
    return hashlib.blake2b(b"\0".join([endpoint.name.encode(), target.encode(), asked.shared]), digest_size=16).digest()
