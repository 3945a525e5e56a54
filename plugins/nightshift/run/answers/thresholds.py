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


def suspicious(answers: int, cut: int, empty: int | None, equal: int | None) -> tuple[str, ...]:
    """Which counts of a run's answers are worth a look: cut, empty, equal. None: not counted. Empty ones are equal, too, and
    then named empty alone."""
    if answers < ENOUGH:
        return ()
    found = ["cut"] if cut >= NEARLY_ALL * answers else []
    if empty is not None and empty >= NEARLY_ALL * answers:
        found.append("empty")
    elif equal is not None and equal >= EQUAL * answers:
        found.append("equal")
    return tuple(found)


def concerns(manifest: RunManifest) -> Iterator[Concern]:
    """Of a run's own answers. What its release did not count is not among them."""
    answers, cut, look = manifest.predictions, manifest.truncated, "Look at some prompts and answers before you use them:"
    words = {
        "cut": "Raise request.max_tokens, or ask for shorter answers; if the model reasons, leave request.stop out: "
        f"{cut:,} of {answers:,} answers were cut, at max_tokens or before their text began.",
        "empty": f"{look} {manifest.empty or 0:,} of {answers:,} answers are empty.",
        "equal": f"{look} {manifest.equal or 0:,} of {answers:,} answers are the same.",
    }
    for kind in suspicious(answers, cut, manifest.empty, manifest.equal):
        yield Concern(kind, words[kind])
