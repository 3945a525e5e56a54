"""Which chunk a worker opens next: its home range from the front, then other ranges from the back. Pure.

Owners go front to back and helpers come from the back, so an owner and its helper meet once. No worker says what it works on;
chance keeps helpers apart: a helper draws a range, more often one with more left, and in it a chunk behind the first quarter of
what is left. Near the end, when all that is left is open elsewhere, the same rule makes idle workers compute those chunks too,
and the first one commits. The two constants come from simulations of 1,000 workers (docs/develop/benchmarks.md).
"""

from __future__ import annotations

import random
from typing import Final

from nightshift.run.ledger import Chunks
from nightshift.run.plan import Plan

PREFERENCE: Final = 3
"""A range is drawn with a weight of this power of what is left: mostly the fullest ranges, but not all helpers the same one."""
NEAR: Final = 0.25
"""The front share of what is left in a range belongs to its owner: helpers draw behind it."""


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
        self._plan = plan
        self._rng = rng
        self._shares_home = False

    def first_of(self, chunk: int) -> int:
        """The ordinal of the chunk's first row."""
        return self._plan.chunk_range(chunk).start

    def open(self, chunk: int) -> None:
        """The worker has opened the chunk, which is not chosen again until `closed`."""
        self._opened.add(chunk)

    def closed(self, chunk: int) -> None:
        self._opened.discard(chunk)

    def lost(self, chunk: int) -> None:
        """Another worker committed this chunk first.

        At home that means a twin (an old pod that is not yet dead, or its replacement). This worker then leaves the front to
        it, since two that go the same way compute everything twice.
        """
        if chunk in self.home:
            self._shares_home = True

    @property
    def home_committed(self) -> bool:
        return not self.committed.count_missing(self.home)

    @property
    def all_committed(self) -> bool:
        return not self.committed.count_missing(self.everything)

    def next_home(self) -> int | None:
        """The home chunk to open next; None when none is left to open."""
        if self._shares_home:
            return self._far(self.home)
        return next((chunk for chunk in self.committed.missing(self.home) if chunk not in self._opened), None)

    def next_to_help(self) -> int | None:
        """A chunk of any range; None when all uncommitted chunks are open here."""
        opened = [chunk for chunk in self._opened if chunk not in self.committed]
        left = [self.committed.count_missing(shard) - sum(chunk in shard for chunk in opened) for shard in self._shards]
        if not any(left):
            return None
        return self._far(self._rng.choices(self._shards, [count**PREFERENCE for count in left])[0])

    def shard_of(self, chunk: int) -> range:
        """The range that a chunk lies in."""
        return next(shard for shard in self._shards if chunk in shard)

    def _far(self, shard: range) -> int | None:
        left = [chunk for chunk in self.committed.missing(shard) if chunk not in self._opened]
        return self._rng.choice(left[int(len(left) * NEAR) :]) if left else None
