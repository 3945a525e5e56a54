"""A chunk whose rows are being computed, and what is known of their results so far."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nightshift.driver.budget import bytes_of
from nightshift.run.chunks import Part, Result, Saved


@dataclass(slots=True, eq=False)
class OpenChunk:
    """A chunk whose rows are being computed. Invariant: len(results) <= expected; complete at equality.

    prompt_tokens, output_tokens, truncated: of what this worker computed itself. taken: what it took over from earlier
    attempts; theirs: the ordinals of those rows. answer_bytes: about what the answers take in memory. opened: Unix time, for
    people. judged: the scheduler's.
    """

    number: int
    first: int
    expected: int
    results: dict[int, Result] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    truncated: int = 0
    taken: list[Part] = field(default_factory=list)
    theirs: set[int] = field(default_factory=set)
    answer_bytes: int = 0
    opened: float = field(default_factory=time.time)
    judged: Callable[[OpenChunk, Result], None] | None = None

    @property
    def ordinals(self) -> range:
        return range(self.first, self.first + self.expected)

    @property
    def complete(self) -> bool:
        return len(self.results) == self.expected

    @property
    def computed(self) -> int:
        """Rows with a result that this worker made itself."""
        return len(self.results) - len(self.theirs)

    def in_order(self) -> list[Result]:
        return [self.results[ordinal] for ordinal in sorted(self.results)]

    def own(self) -> list[Result]:
        """The results that this worker made itself, in order."""
        return [result for result in self.in_order() if result.ordinal not in self.theirs]

    def put(self, result: Result) -> None:
        """Adds a result that this worker made."""
        self.results[result.ordinal] = result
        if self.judged is not None:
            self.judged(self, result)

    def take_over(self, saved: Saved) -> None:
        """Adds the rows of a partial that have no result yet."""
        fresh = {result.ordinal: result for result in saved.results}
        fresh = {ordinal: fresh[ordinal] for ordinal in self.ordinals if ordinal in fresh and ordinal not in self.results}
        if fresh:
            self.results |= fresh
            self.theirs |= fresh.keys()
            self.answer_bytes += sum(bytes_of(result) for result in fresh.values())
            self.taken.append(saved.only(len(fresh)))
