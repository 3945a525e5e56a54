"""The mistakes of a job file: where each is, the value, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nightshift.fields.mistakes import sentence

TEXT_MAX: Final = 1_000
"""Characters of each part of a message. The beginning and the end of a longer one are shown."""


@dataclass(frozen=True)
class SpecError:
    """One mistake; ``str()`` is one line of text.

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
        text = f"{place}: {_short(subject)}{sentence(_short(self.problem))} {sentence(_short(self.remedy))}"
        line = " ".join(text.split())
        # A key may contain anything; a terminal must not interpret it.
        return "".join(character if character.isprintable() else repr(character)[1:-1] for character in line)


def _short(text: str) -> str:
    """A value or a key may have as many characters as the file."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX // 2]} ... {text[-TEXT_MAX // 4 :]}"


class SpecErrors(ValueError):
    """A job file that cannot be used, with all of its mistakes in the order of their lines; ``str()`` has a line for each."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(sorted(errors, key=lambda error: (error.line or 0, error.field)))
        super().__init__("\n".join(str(error) for error in self.errors))
