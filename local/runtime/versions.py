"""What the API serves now, and what changed: every change gets the next resourceVersion, and watches read the changes.

Versions go on from the time at which the agent started, so one that an earlier agent gave is never taken for one of now: as
in Kubernetes after a compaction, a watch or a page from that version has expired.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from local.runtime.refusals import Refusal

KEPT: Final = 2000
"""Changes of a resource that a watch may still ask for."""
PAGES_KEPT: Final = 100
"""Lists of which the rest may still be asked for."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """before: the object as it was, None for a new one. now: None if it is gone; `last` is then its last state."""

    version: int
    last: Object
    before: Object | None
    now: Object | None


class Versions:
    """The objects of one resource, by name."""

    def __init__(self, numbers: itertools.count[int]) -> None:
        self._numbers = numbers
        self._objects: dict[str, Object] = {}
        self._plain: dict[str, Mapping[str, Any]] = {}
        self._changes: deque[Change] = deque(maxlen=KEPT)
        self._oldest = self.version = next(numbers)
        self._turn = asyncio.Event()

    @property
    def objects(self) -> list[Object]:
        return [self._objects[name] for name in sorted(self._objects)]

    def get(self, name: str) -> Object | None:
        return self._objects.get(name)

    def publish(self, found: Mapping[str, Mapping[str, Any]], gone: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """found: all objects that there are, without resourceVersion. gone: the last state of some that are not there now."""
        for name, each in (gone or {}).items():
            if name in self._plain:
                self._put(name, each)
        for name in sorted(self._plain.keys() - found.keys()):
            self._remove(name)
        for name, each in found.items():
            self._put(name, each)

    def since(self, version: int) -> list[Change]:
        """Raises Refusal (410) if changes after that version are no longer kept."""
        if version < self._oldest:
            raise expired(f"too old resource version: {version} ({self._oldest})")
        return [each for each in self._changes if each.version > version]

    async def changed(self, seconds: float) -> None:
        """Waits for the next change, at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._turn.wait()
        except TimeoutError:
            return

    def _put(self, name: str, given: Mapping[str, Any]) -> None:
        if self._plain.get(name) == given:
            return
        self.version = next(self._numbers)
        before = self._objects.get(name)
        now = {**given, "metadata": {**given["metadata"], "resourceVersion": str(self.version)}}
        self._plain[name], self._objects[name] = given, now
        self._note(Change(self.version, now, before, now))

    def _remove(self, name: str) -> None:
        self.version = next(self._numbers)
        del self._plain[name]
        before = self._objects.pop(name)
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self._note(Change(self.version, last, before, None))

    def _note(self, change: Change) -> None:
        if len(self._changes) == KEPT:
            self._oldest = self._changes[0].version
        self._changes.append(change)
        self._turn.set()
        self._turn = asyncio.Event()


class Pages:
    """Lists that are read in parts: each goes on with what there was at its beginning."""

    def __init__(self) -> None:
        self._rest: OrderedDict[str, tuple[int, list[Object]]] = OrderedDict()

    def keep(self, version: int, rest: list[Object]) -> str:
        """The token with which the rest is asked for. version: of the whole list."""
        token = secrets.token_urlsafe(16)
        self._rest[token] = version, rest
        if len(self._rest) > PAGES_KEPT:
            self._rest.popitem(last=False)
        return token

    def rest(self, token: str) -> tuple[int, list[Object]]:
        """Raises Refusal (410) for one that is not known."""
        if token not in self._rest:
            raise expired("The provided continue parameter is too old to display a consistent list result.")
        return self._rest[token]


def numbers() -> itertools.count[int]:
    """Versions from now on; those of any earlier agent are smaller, unless it made a thousand changes in a second."""
    return itertools.count(time.time_ns() // 1_000_000)


def expired(message: str) -> Refusal:
    return Refusal(410, message)
