"""The mistakes of a job file: where each is, the value, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nightshift.fields.mistakes import sentence


@dataclass(frozen=True)
class SpecError:
    """One mistake; ``str()`` is one line for a person.

    file: as the caller named it. line: counts from 1; None if the file could not be read.
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
        line = " ".join(f"{place}: {subject}{sentence(self.problem)} {sentence(self.remedy)}".split())
        # A key may contain anything; a terminal must not interpret it.
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)


class SpecErrors(ValueError):
    """A job file that cannot be used, with all of its mistakes in the order of their lines; ``str()`` has a line for each."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.field)))
        super().__init__("\n".join(str(error) for error in self.errors))
