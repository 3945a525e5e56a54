"""How many logs the followers of one process read at once: each holds a connection, which takes a third of a MiB."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

STREAMS_MAX: Final = 512
"""Logs of running containers."""
STREAMS_EACH: Final = 64
"""The same, for one JobSet."""
STREAMS_SURE: Final = 2
"""As many as every JobSet may always follow, however many JobSets there are."""
ENDING_MAX: Final = 256
"""Logs of containers that are ending or have ended: these do not wait, since a deleted pod takes its log with it."""
OPENING_MAX: Final = 32
"""Logs being opened: hundreds at once, as after a triggerer's start, overload the API server and kubelets."""

_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Streams] = weakref.WeakKeyDictionary()

Wake = Callable[[], None]


class Streams:
    """The streams of one event loop. An owner is identified by the function that wakes it to try again."""

    def __init__(
        self, most: int = STREAMS_MAX, each: int = STREAMS_EACH, sure: int = STREAMS_SURE, ending: int = ENDING_MAX
    ) -> None:
        self.ending = asyncio.Semaphore(ending)
        self.opening = asyncio.Semaphore(OPENING_MAX)
        self._most, self._each, self._sure = most, each, sure
        self._open: Counter[Wake] = Counter()
        self._waiting: deque[Wake] = deque()

    @staticmethod
    def here() -> Streams:
        """Those of the running event loop."""
        return _of_loops.setdefault(asyncio.get_running_loop(), Streams())

    def take(self, owner: Wake) -> bool:
        """Whether the owner may open one more. If not, it is woken to try again."""
        own = self._open[owner]
        if own < self._sure or (own < self._each and self._open.total() < self._most):
            self._open[owner] += 1
            return True
        if owner not in self._waiting:
            self._waiting.append(owner)
        return False

    def give(self, owner: Wake) -> None:
        """After a stream's end."""
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]
        # In turn, so that a JobSet with many pods does not keep the others out. One that still gets none queues again.
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if self._open.total() >= self._most:
                return

    def forget(self, owner: Wake) -> None:
        """The owner wants no more."""
        if owner in self._waiting:
            self._waiting.remove(owner)
