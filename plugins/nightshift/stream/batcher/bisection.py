"""Into which requests a refused one is divided, all of which are sent at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


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
