"""How many messages a reply to a Pull has at most, when more could be delivered. Pure.

The reference says of PullResponse: "The Pub/Sub system may return fewer than the maxMessages requested even if there are more
messages available in the backlog", and its page on Pull that many simultaneous requests are needed for throughput. It names no
number. Users who ask for 100 to 1,000 report 10 or 20 (issues 5000 and 7551 of google-cloud-dotnet, 8235 of google-cloud-go).
"""

from __future__ import annotations

import random
from typing import Final

MEAN: Final = 25.0
"""Of a reply, in messages, while there is a backlog."""


class Replies:
    """seed: which sizes are drawn; the same calls have the same replies. full: whether replies have all that was asked for."""

    def __init__(self, seed: int = 0, *, full: bool = False) -> None:
        self.seed = seed
        self.full = full

    def most(self, subscription: int, number: int, asked: int) -> int:
        """Of the reply to the n-th Pull of a subscription that asked for so many messages; 1 at least."""
        if self.full:
            return asked
        # Each by itself, so that no subscription's sizes depend on the calls of another.
        rng = random.Random(f"{self.seed} {subscription} {number}")
        return min(asked, 1 + int(rng.expovariate(1 / (MEAN - 0.5))))
