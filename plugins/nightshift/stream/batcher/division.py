"""Which requests can be divided among their callers, and into which parts a refused one is divided. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from itertools import combinations
from typing import Final, TypeVar

from nightshift.stream.batcher.endpoint import Asked, Endpoint

T = TypeVar("T")

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


def parts_of(requests: Sequence[T]) -> list[list[T]]:
    """Parts such that whichever one of `requests` is bad, each other one is in a part without it.

    So one bad request delays the others by one further request, where halving would delay some by as many as it takes to find
    it. Each request is in two parts, and no two are in the same two; few are in a part of their own. At 32 these are 9 parts of
    7 or 8. They never are more than one less than the requests unless each is alone.
    """
    count = 3
    while count * (count - 1) // 2 < len(requests):
        count += 1
    if count >= len(requests) - 1:
        return [[each] for each in requests]
    parts: list[list[T]] = [[] for _ in range(count)]
    for each, (one, other) in zip(requests, combinations(range(count), 2), strict=False):
        parts[one].append(each)
        parts[other].append(each)
    return parts
