"""Which chunk a worker opens next: its home range from the front, then other ranges from the back. Pure.

Owners go front to back and helpers come from the back, so an owner and its helper meet once. Nobody says what it works on; what
keeps many helpers apart is chance: a helper draws a range, one with more left more often, and a chunk behind the first quarter
of what is left there and behind what its owner has open. At the end, when all that is left is probably under way elsewhere,
idle workers give those who are at it some time (the feeder); then a few of them compute those chunks too, and whoever is
first commits. The constants are from simulations of up to 1,000 workers (docs/benchmarks.md).
"""

from __future__ import annotations

import bisect
import random
from collections import Counter
from typing import Final

from nightshift.ledger import Chunks
from nightshift.plan import Plan

PREFERENCE: Final = 3
"""Power of what is left by which a range is drawn: towards "the range with most left", but not all helpers to the same."""
NEAR: Final = 0.25
"""The share at the front of what is left in a range that is its owner's: helpers draw behind it."""

COPIES: Final = 3
"""How many idle workers, if all are, compute a chunk that takes its owner too long."""


class Ranges:
    """One worker's view of the run. `committed` is kept up to date by the loop; opened chunks are never chosen again.

    home: the worker's shard, None for a worker that only helps.
    """

    def __init__(self, plan: Plan, index: int | None, committed: Chunks, rng: random.Random) -> None:
        self._shards = [plan.shard(number) for number in range(plan.workers)] if plan.chunk_count else []
        self.home = self._shards[index] if index is not None and self._shards else range(0)
        self.everything = range(plan.chunk_count)
        self.committed = committed
        self._opened: set[int] = set()
        self._rng = rng
        self._shares_home = False
        self._draws = 0

    def open(self, chunk: int) -> None:
        """The worker has opened the chunk: not to be chosen again until `closed`."""
        self._opened.add(chunk)

    def closed(self, chunk: int) -> None:
        self._opened.discard(chunk)

    def lost(self, chunk: int) -> None:
        """Another worker committed this chunk first. At home that means a twin (an old pod not yet dead, its replacement):

        the worker then leaves the front to it, since two that go the same way compute everything twice.
        """
        if chunk in self.home:
            self._shares_home = True

    @property
    def home_committed(self) -> bool:
        return not self.committed.count_missing(self.home)

    @property
    def all_committed(self) -> bool:
        return not self.committed.count_missing(self.everything)

    @property
    def span_left(self) -> range:
        """From the first chunk that is not committed to the last."""
        left = list(self.committed.missing(self.everything))
        return range(left[0], left[-1] + 1) if left else range(0)

    def next_home(self) -> int | None:
        """The home chunk to open next; None when none is left to open."""
        if self._shares_home:
            return self._far(self.home)
        return next((chunk for chunk in self.committed.missing(self.home) if chunk not in self._opened), None)

    def next_to_help(self, under_way: int) -> int | None:
        """A chunk of any range that is probably nobody's yet; None when there is none.

        under_way: how many chunks its owner will have opened before help with a chunk could end; the front of what is left.
        """
        spare = [max(0, left - under_way) for left in self._left()]
        if not any(spare):
            return None
        shard = self._rng.choices(self._shards, [count**PREFERENCE for count in spare])[0]
        return self._far(shard, under_way)

    def draws_a_straggler(self) -> bool:
        """Chance, so that of all workers that are idle at the end about `COPIES` compute each chunk that is left.

        Twice the chance at each further draw: the others may be gone.
        """
        wanted = COPIES * sum(self._left()) << self._draws
        self._draws += 1
        return self._rng.random() * len(self._shards) < wanted

    def next_straggler(self) -> int | None:
        """A chunk that is not committed, whoever is at it; None when all such chunks are open here already."""
        left = self._left()
        if not any(left):
            return None
        return self._far(self._rng.choices(self._shards, [count**PREFERENCE for count in left])[0])

    def shard_of(self, chunk: int) -> range:
        """The range that a chunk lies in."""
        return self._shards[self._number(chunk)]

    def _left(self) -> list[int]:
        """How many chunks of each range are neither committed nor open here."""
        opened = Counter(self._number(chunk) for chunk in self._opened if chunk not in self.committed)
        return [self.committed.count_missing(shard) - opened[number] for number, shard in enumerate(self._shards)]

    def _number(self, chunk: int) -> int:
        """Of the range that a chunk lies in."""
        return bisect.bisect_right(self._shards, chunk, key=lambda shard: shard.start) - 1

    def _far(self, shard: range, skipped: int = 0) -> int | None:
        left = [chunk for chunk in self.committed.missing(shard) if chunk not in self._opened]
        return self._rng.choice(left[max(int(len(left) * NEAR), skipped) :]) if left else None
