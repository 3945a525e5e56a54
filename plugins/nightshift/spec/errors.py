"""What is said about a job file that is wrong: each mistake with its place, the value, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticCustomError


@dataclass(frozen=True)
class SpecError:
    """One mistake; ``str()`` is one line for a person.

    file: as the caller named it. line: counts from 1; None where the file could not be read.
    field: dotted path, '' for the file as a whole. problem, remedy: a sentence each.
    """

    file: Path
    line: int | None
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        place = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        subject = f"{self.field}: " if self.field else ""
        line = " ".join(f"{place}: {subject}{_sentence(self.problem)} {_sentence(self.remedy)}".split())
        # A key may hold anything; a terminal must not act on it.
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)


class SpecErrors(ValueError):
    """A job file that cannot be used, with all of its mistakes in the order of their lines; ``str()`` has a line for each."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.field)))
        super().__init__("\n".join(str(error) for error in self.errors))


def mistake(problem: str, remedy: str) -> PydanticCustomError:
    """What a validator of the model raises: the value's own problem and remedy. File, line and field are the loader's."""
    return PydanticCustomError("nightshift", "{problem} {remedy}", {"problem": _sentence(problem), "remedy": _sentence(remedy)})


def choice(value: str, choices: Iterable[str]) -> str:
    """A remedy for a word that is not among `choices`: the nearest one, and all there are."""
    listed = list(choices)
    near = nearest(value, listed)
    known = f"Choose from {', '.join(listed)}" if len(listed) > 1 else f"The only one is {listed[0]}"
    return (f"Did you mean {near!r}? " if near else "") + known


def nearest(value: str, choices: Iterable[str]) -> str | None:
    """The choice that `value` is a slip of, if one is near."""
    folded = {item.casefold(): item for item in choices}
    near = difflib.get_close_matches(value.casefold(), folded, n=1, cutoff=0.7)
    return folded[near[0]] if near else None


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
