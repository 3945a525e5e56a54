"""How far a run is, from one LIST of its ledger: a page for each thousand chunks, and no chunk is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from obstore.store import ObjectStore

from nightshift.run.names import Work
from nightshift.run.plan import Plan
from nightshift.status.chunk_footer import chunks_listed
from nightshift.status.rate import WINDOW_S

STALLED_S: Final = 900.0
"""Without a commit for this long, a run that is open stands still: three windows of the rate."""


@dataclass(frozen=True)
class Progress:
    """rows, chunks: committed. oldest, newest: times of the first and the last commit, Unix time by the store's clock; None
    before the first. recent: rows committed in the last `WINDOW_S` before `newest`. now: by this machine's clock, never before
    `newest`.
    """

    rows: int
    chunks: int
    oldest: float | None
    newest: float | None
    recent: int
    now: float

    @property
    def rate(self) -> float | None:
        """Rows per second over the last window; None before the second commit, or if none was in it."""
        if self.oldest is None or self.newest is None or self.chunks < 2:
            return None
        begin = max(self.oldest, self.now - WINDOW_S)
        return self.recent / (self.now - begin) if self.now > begin and self.recent else None

    def seconds_left(self, rows: int) -> float | None:
        """Until all `rows` of the plan are committed, at the current rate."""
        return (rows - self.rows) / self.rate if self.rate else None


class Adding:
    """Adds up the chunks of a LIST. now: Unix time."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._rows = self._chunks = self._recent = 0
        self._oldest, self._newest = math.inf, -math.inf

    def add(self, rows: int, at: float) -> None:
        """A chunk with so many rows that was committed at this time."""
        self._rows, self._chunks = self._rows + rows, self._chunks + 1
        self._oldest, self._newest = min(self._oldest, at), max(self._newest, at)
        self._recent += rows if at > self._now - WINDOW_S else 0

    def made(self) -> Progress:
        some = self._chunks > 0
        oldest, newest = (self._oldest, self._newest) if some else (None, None)
        return Progress(self._rows, self._chunks, oldest, newest, self._recent, max(self._now, newest or self._now))


def progress(store: ObjectStore, work: Work, plan: Plan, now: float) -> Progress:
    """now: Unix time. Raises StoreUnavailable."""
    adding = Adding(now)
    for number, entry in chunks_listed(store, work, plan):
        adding.add(len(plan.chunk_range(number)), entry.modified)
    return adding.made()
