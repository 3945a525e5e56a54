"""Answers to the same rows, of two jobs or with another setting: how many are the same, and which words changed. Pure."""

from __future__ import annotations

import difflib
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

_WORDS: Final = re.compile(r"\s*\S+|\s+")
"""With the space before each, so that words in a row that differ are one piece."""
WORDS_MOST: Final = 4_000
"""Of both texts together; longer ones are compared line by line."""
SAME: Final = 1e-3
"""Relative difference of two numbers that counts as none: batches of other sizes round differently."""
NUMBERS_MOST: Final = 8
NUMBERS_SHOWN: Final = 4
"""Of a list with more than `NUMBERS_MOST` items: nobody reads a vector."""


Diff = tuple[tuple[str, str], ...]
"""Pieces of two texts in order: ``=`` with what both have, ``-`` with what only the first has, ``+`` with the second's."""


class Answered(Protocol):
    """A row with its result. reason, message: of a dead letter, which has no answer."""

    @property
    def answer(self) -> Any: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def message(self) -> str | None: ...


class Asked(Answered, Protocol):
    """The same with what was sent, and the columns of its key."""

    @property
    def key(self) -> Mapping[str, Any]: ...
    @property
    def prompt(self) -> str | None: ...


@dataclass(frozen=True)
class Pair:
    """A row that two jobs have answered. prompt, answer: the diff, None where nothing changed."""

    key: Mapping[str, Any]
    prompt: Diff | None
    answer: Diff | None


@dataclass(frozen=True)
class Same:
    """rows: that are compared. equal: the share of answers that are the same but for rounding. cosine: of vectors, the mean and
    the least; None for other answers."""

    rows: int
    equal: float
    cosine: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        said = f"{self.equal:.1%} of {self.rows:,} answers are the same without it"
        if self.cosine is None:
            return said
        mean, least = self.cosine
        return f"{said}; the cosine of their vectors is {mean:.4f} on average, {least:.4f} at least"


def compared(own: Iterable[Answered], other: Iterable[Answered]) -> Same:
    """The answers to the same rows, in the same order."""
    both = list(zip(own, other, strict=True))
    vectors = [(one.answer, two.answer) for one, two in both if _is_vector(one.answer) and _is_vector(two.answer)]
    cosines = [_cosine(*each) for each in vectors]
    share = sum(equal(*each) for each in both) / len(both)
    return Same(len(both), share, (statistics.mean(cosines), min(cosines)) if cosines else None)


def pairs(first: Iterable[Asked], second: Iterable[Asked]) -> tuple[Pair, ...]:
    """The rows that both have, in the order of the first."""
    others = {_name(row): row for row in second}
    return tuple(_pair(row, others[_name(row)]) for row in first if _name(row) in others)


def _name(row: Asked) -> str:
    return json.dumps(row.key, sort_keys=True, default=str)


def _pair(one: Asked, other: Asked) -> Pair:
    prompt = None if one.prompt == other.prompt else diff(one.prompt or "", other.prompt or "")
    return Pair(one.key, prompt, None if equal(one, other) else diff(answer_text(one), answer_text(other)))


def equal(one: Answered, other: Answered) -> bool:
    """Whether two results of a row are the same: answers that are `alike`, or dead letters for one reason."""
    return one.reason == other.reason and alike(one.answer, other.answer)


def answer_text(row: Answered) -> str:
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


def _is_vector(answer: Any) -> bool:
    return isinstance(answer, list) and bool(answer) and all(isinstance(each, (float, int)) for each in answer)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=False)) / length if length else 0.0


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
