"""Finds the requests that a server refuses in a merged one: halves what is refused until each stands alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Bisection(Generic[T]):
    """Parts to send, one after the other, in order. One bad request of n costs 2 log2(n) + 1 parts, and n of n cost 2n - 1."""

    def __init__(self, requests: Sequence[T]) -> None:
        self._parts = [list(requests)] if requests else []

    def next(self) -> list[T] | None:
        """The next part; None if everything has been sent."""
        return self._parts.pop() if self._parts else None

    def refused(self, part: list[T]) -> None:
        """A part of two or more was refused: its halves come next."""
        if len(part) < 2:
            raise ValueError("one request alone cannot be halved")
        middle = len(part) // 2
        self._parts += [part[middle:], part[:middle]]
