"""Two jobs' rows side by side: which prompts and answers changed, and in which words."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from nightshift.trial.preview.results import Diff, Pair, PreviewRow, Variant

_WORDS: Final = re.compile(r"\s*\S+|\s+")
"""With the space before each, so that words in a row that differ are one piece."""
WORDS_MOST: Final = 4_000
"""Of both texts together; longer ones are compared line by line."""
SAME: Final = 1e-3
"""Relative difference of two numbers that counts as none: batches of other sizes round differently."""


NUMBERS_MOST: Final = 8
NUMBERS_SHOWN: Final = 4
"""Of a list with more than `NUMBERS_MOST` items: nobody reads a vector."""


def pairs(first: Variant, second: Variant) -> tuple[Pair, ...]:
    """The rows that both have, in the order of the first."""
    others = {_name(row): row for row in second.rows}
    return tuple(_pair(row, others[_name(row)]) for row in first.rows if _name(row) in others)


def _name(row: PreviewRow) -> str:
    return json.dumps(row.key, sort_keys=True, default=str)


def _pair(one: PreviewRow, other: PreviewRow) -> Pair:
    prompt = None if one.prompt == other.prompt else diff(one.prompt or "", other.prompt or "")
    same = one.reason == other.reason and alike(one.answer, other.answer)
    return Pair(one.key, prompt, None if same else diff(answer_text(one), answer_text(other)))


def answer_text(row: PreviewRow) -> str:
    """An answer as a person reads it; of a dead letter its reason."""
    if row.reason is not None:
        return f"dead letter, {row.reason}: {row.message}"
    return row.answer if isinstance(row.answer, str) else "" if row.answer is None else shown(row.answer)


def shown(value: Any) -> str:
    """Numbers with four digits, so that two vectors can be compared by eye; texts in quotes."""
    match value:
        case float():
            return f"{value:.4g}"
        case dict():
            return ", ".join(f"{name}: {shown(each)}" for name, each in value.items())
        case list() if len(value) > NUMBERS_MOST:
            return f"[{', '.join(shown(each) for each in value[:NUMBERS_SHOWN])}, ...]"
        case list():
            return f"[{', '.join(shown(each) for each in value)}]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case None:
            return "null"
        case _:
            return str(value)


def alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same, but for what rounding does to numbers."""
    match one, other:
        case (float() | int(), float() | int()):
            return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)
        case dict(), dict():
            return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
        case list(), list():
            return len(one) == len(other) and all(map(alike, one, other))
        case _:
            return bool(one == other)


def diff(one: str, other: str) -> Diff:
    """By words, or by lines of long texts."""
    left, right = _WORDS.findall(one), _WORDS.findall(other)
    if len(left) + len(right) > WORDS_MOST:
        left, right = one.splitlines(keepends=True), other.splitlines(keepends=True)
    return tuple(_pieces(left, right))


def _pieces(left: Sequence[str], right: Sequence[str]) -> Iterator[tuple[str, str]]:
    for kind, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            yield "=", "".join(left[a:b])
            continue
        if b > a:
            yield "-", "".join(left[a:b])
        if d > c:
            yield "+", "".join(right[c:d])
