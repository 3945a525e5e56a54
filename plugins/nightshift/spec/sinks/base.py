"""What the section of every sink says besides its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.section import Section
from nightshift.spec.document import Document

DEAD_LETTERS: Final = "_dead_letters"
"""What a table of dead letters adds to the name of the sink's table."""


class SinkSection(Section):
    """The base of the section ``sink:``. Its key ``column`` is the column that holds the prediction."""

    KEY: ClassVar[str]
    """The key that only this sink has, and must have."""
    MODULE: ClassVar[str]
    """The module of `nightshift.stream` whose ``make(spec, kind, model, url)`` makes the sink. model: for provenance. url: of a
    sink with PORTS."""
    CLAIMS: ClassVar[tuple[str, ...]] = ()
    """The keys of what a stream must have for itself alone (`clash`, `loaded_into`)."""
    PORTS: ClassVar[tuple[int, ...]] = ()
    """Of a database, whose URL is NIGHTSHIFT_SINK_URL: where it may listen if that is not known. Empty for what is reached by
    https with the account of the process."""
    UNORDERED: ClassVar[str] = ""
    """Why it does not matter which of two messages of an ordering key is answered first; empty if it does."""

    @property
    def place(self) -> str:
        """Where the predictions go, in words."""
        raise NotImplementedError

    @property
    def dead_letters_place(self) -> str:
        """Where dead letters are kept whole, in words."""
        raise NotImplementedError

    @property
    def dead_letters_table(self) -> str | None:
        """The table of a database with the dead letters, in which those that are published again are marked."""
        return None

    @property
    def loaded_into(self) -> str | None:
        """The table of BigQuery that the key ``bigquery`` names: the files of the folder `place` are loaded into it."""
        return None

    def clash(self, other: SinkSection, file: Path) -> Iterator[Finding]:
        """What it has in common with the sink of another stream, in `file`, but must have for itself."""
        yield from ()

    @classmethod
    def check(cls, document: Document, key: Sequence[str]) -> Iterator[Finding]:
        """Mistakes between its values and others of the document. key: the names in source.key that are text."""
        yield from ()

    @classmethod
    def unfit(cls, path: FieldPath, column: str) -> Finding | None:
        """Why the sink can have no column of this name, alone; None if it can."""
        return None
