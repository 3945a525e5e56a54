"""What is said about a job file that is wrong: each mistake with its place, the value, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import PydanticCustomError


@dataclass(frozen=True, order=True)
class SpecError:
    """One mistake; ``str()`` is one line for a person.

    file: as the caller named it. line: counts from 1; None where the file could not be read.
    field: dotted path, '' for the file as a whole. problem, remedy: a sentence each, without a full stop at the end.
    """

    file: Path
    line: int | None
    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        place = str(self.file) if self.line is None else f"{self.file}:{self.line}"
        subject = f"{self.field}: " if self.field else ""
        return " ".join(f"{place}: {subject}{self.problem}. {self.remedy}.".split())


class SpecErrors(ValueError):
    """A job file that cannot be used, with all of its mistakes in the order of their lines; ``str()`` is a line for each."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.field)))
        super().__init__("\n".join(str(error) for error in self.errors))


def mistake(problem: str, remedy: str) -> PydanticCustomError:
    """What a validator of the model raises: the value's own problem and remedy. The caller knows file, line and field."""
    return PydanticCustomError("nightshift", "{problem}. {remedy}.", {"problem": problem, "remedy": remedy})
