"""Answers of long-tailed length, and the canned engine that gives them: what P5, P10 and P13 have in common."""

from __future__ import annotations

import random
from typing import Any, Final

from benchmarks.processes import Canned

SEATS: Final = 64
MEAN_TOKENS: Final = 338
MOST_TOKENS: Final = 2048
PER_TOKEN_S: Final = 0.0005
JOB: Final[dict[str, Any]] = {
    "task": "chat",
    "request": {"user": "{{ text }}", "max_tokens": MOST_TOKENS},
    "destination__column": "answer",
    "engine__max_num_seqs": SEATS,
}
"""Changes to `tests.builders.a_spec`."""


def engine() -> Canned:
    """It computes `SEATS` requests at once, each for `PER_TOKEN_S` a token."""
    return Canned(seats=SEATS, per_token_s=PER_TOKEN_S)


def lengths(rows: int, *, seed: int, mean: int = MEAN_TOKENS, most: int = MOST_TOKENS) -> list[int]:
    """Tokens of each answer: exponential, cut at `most`. The same seed gives the same lengths."""
    rng = random.Random(seed)
    return [min(most, 1 + int(rng.expovariate(1 / mean))) for _ in range(rows)]


def prompt(row: int, tokens: int) -> str:
    """The engine reads the length of its answer from the last word."""
    return f"Tell me about package {row} in {tokens}"
