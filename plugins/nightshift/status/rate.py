"""The speed of a run, from the times at which its chunks were committed.

The times are the store's (last-modified), so they share one clock. A worker's clock only says how long its chunk took, which is
a difference, so the clocks need not agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

WINDOW_S: Final = 300.0
_KEPT: Final = 4096
"""How many commits are kept before old ones are dropped: bounds memory for a run of any length."""


class _Commit(NamedTuple):
    at: float
    rows: int
    seconds: float


class Rate:
    """Rows per second over the last minutes. last: time of the newest commit, None before the first."""

    def __init__(self) -> None:
        self._commits: list[_Commit] = []
        self._limit = _KEPT
        self._started: float | None = None
        self.last: float | None = None

    def add(self, committed: float, rows: int, seconds: float) -> None:
        """One chunk: when it was committed, the rows computed for it, and how long its worker had it open."""
        self._commits.append(_Commit(committed, rows, seconds))
        self.last = committed if self.last is None else max(self.last, committed)
        start = committed - seconds
        self._started = start if self._started is None else min(self._started, start)
        if len(self._commits) > self._limit:
            self._commits = _recent(self._commits, self.last)
            # A fast run may have more commits inside the window; then the next cleanup comes later.
            self._limit = max(_KEPT, 2 * len(self._commits))

    @property
    def elapsed_s(self) -> float | None:
        """Seconds from the first chunk's first request to the newest commit, breaks included; None before the first."""
        return None if self.last is None or self._started is None else self.last - self._started

    def recent(self, now: float | None, unread: Iterable[tuple[float, int]] = ()) -> float | None:
        """Rows per second until now, over `WINDOW_S` or, if that holds fewer, over the last two chunks.

        The time before the work began or resumed does not count. The rate of a stalled run falls with each refresh. None with
        fewer than two chunks. unread: further chunks of which only this is known: when they were committed, and their rows.
        """
        commits = [*self._commits, *(_Commit(at, rows, 0.0) for at, rows in unread)]
        if now is None or len(commits) < 2:
            return None
        # This machine's clock may be behind the store's.
        end = max(now, *(commit.at for commit in commits))
        inside = [commit for commit in commits if commit.at > end - WINDOW_S]
        if len(inside) >= 2:
            start = max(end - WINDOW_S, min(commit.at - commit.seconds for commit in inside))
        else:
            first, *inside = _recent(commits, end)
            start = first.at
        return sum(commit.rows for commit in inside) / (end - start) if end > start else None


def _recent(commits: list[_Commit], end: float) -> list[_Commit]:
    ordered = sorted(commits)
    return [commit for commit in ordered[:-2] if commit.at > end - WINDOW_S] + ordered[-2:]
