"""Numbers and messages as text for users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

WIDTH: Final = 120
"""Characters of a line in Airflow's log that a page shows without scrolling: it does not wrap."""


def minutes(seconds: float) -> str:
    """A length of time as text."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3 * 3600:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.1f} h"


def n(count: int, noun: str) -> str:
    """A count and its noun, which gets an s: 1 row, 2,000 rows."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def lines(text: str) -> Iterator[str]:
    """A message in lines of at most `WIDTH` characters, one sentence or more in each.

    A longer sentence is cut at a semicolon in the second half of a line, else between words.
    """
    for paragraph in text.splitlines():
        if len(paragraph) <= WIDTH:
            # As it is, with its columns.
            yield from filter(None, (paragraph.rstrip(),))
            continue
        line = ""
        for sentence in paragraph.replace(". ", ".\n").split("\n"):
            if line and len(line) + 1 + len(sentence) > WIDTH:
                yield line
                line = ""
            line = f"{line} {sentence}".strip()
            while len(line) > WIDTH:
                at = line.rfind("; ", WIDTH // 2, WIDTH) + 1 or line.rfind(" ", 0, WIDTH + 1)
                at = at if at > 0 else WIDTH
                yield line[:at].rstrip()
                line = line[at:].strip()
        if line:
            yield line
