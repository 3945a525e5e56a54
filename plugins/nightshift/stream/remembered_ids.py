"""The message ids that a process has met last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class RememberedIds:
    """The last ids that were added, `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        # Not a dict, which takes longer and longer to find its first key while keys are taken from its front.
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, message: str) -> bool:
        return message in self._ids

    def add(self, messages: Iterable[str]) -> None:
        for message in messages:
            self._ids[message] = None
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)
