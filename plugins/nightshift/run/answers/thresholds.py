"""What a person should look at before using the answers of a sealed run: they are nearly all cut, empty or equal.

Such a night is green in every count: each row has an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from nightshift.run.manifest import RunManifest

NEARLY_ALL: Final = 0.9
"""From this share of cut or empty answers on."""
EQUAL: Final = 0.98
"""The same for equal ones: nine in ten may well be "no"."""
ENOUGH: Final = 20
"""Answers from which on a share says anything."""


class Concern(NamedTuple):
    """kind: cut, empty or equal. words: sentences for people; what to do comes first."""

    kind: str
    words: str


def concerns(manifest: RunManifest) -> Iterator[Concern]:
    """Of a run's own answers. What its release did not count is not among them."""
    answers = manifest.predictions
    if answers < ENOUGH:
        return
    if manifest.truncated >= NEARLY_ALL * answers:
        yield Concern(
            "cut",
            "Raise request.max_tokens, or ask for shorter answers; if the model reasons, leave request.stop out: "
            f"{manifest.truncated:,} of {answers:,} answers were cut, at max_tokens or before their text began.",
        )
    look = "Look at some prompts and answers before you use them:"
    if manifest.empty is not None and manifest.empty >= NEARLY_ALL * answers:
        yield Concern("empty", f"{look} {manifest.empty:,} of {answers:,} answers are empty.")
    elif manifest.equal is not None and manifest.equal >= EQUAL * answers:
        yield Concern("equal", f"{look} {manifest.equal:,} of {answers:,} answers are the same.")
