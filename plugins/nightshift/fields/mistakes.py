"""A mistake in a job file: what is wrong with a value and what to write instead. The loader adds the place in the file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pydantic_core import PydanticCustomError

CHOICES_MAX: Final = 500
"""Among which a slip is looked for."""

FieldPath = tuple[str | int, ...]
"""Keys and positions from the top of the file to a value."""


@dataclass(frozen=True)
class Finding:
    """A mistake at a place in a document. problem, remedy: a sentence each. line: only if it differs from the path's line."""

    path: FieldPath
    problem: str
    remedy: str
    line: int | None = None


def mistake(problem: str, remedy: str) -> PydanticCustomError:
    """What a validator of a field raises: the value's own problem and remedy. The loader adds file, line and field."""
    return PydanticCustomError("nightshift", "{problem} {remedy}", {"problem": sentence(problem), "remedy": sentence(remedy)})


def choice(value: str, choices: Iterable[str]) -> str:
    """A remedy for a word that is not among `choices`: the nearest one, and the full list."""
    listed = list(choices)
    near = nearest(value, listed)
    known = f"Choose from {', '.join(listed)}" if len(listed) > 1 else f"The only one is {listed[0]}"
    return (f"Did you mean {near!r}? " if near else "") + known


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice that `value` misspells, if one is near."""
    # Each comparison takes microseconds, a query may have 10,000 columns, and a file many mistakes.
    alike = (item for item in choices if abs(len(item) - len(value)) <= max(2, len(value) // 3))
    folded = {item.casefold(): item for item in islice(alike, CHOICES_MAX)}
    near = difflib.get_close_matches(value.casefold(), folded, n=1, cutoff=0.7)
    return folded[near[0]] if near else None


def sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
