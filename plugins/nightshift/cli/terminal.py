"""Colours, where somebody sees them: on a terminal that has them, unless NO_COLOR is set (no-color.org)."""

from __future__ import annotations

import os
import sys
from typing import Final

from nightshift.fields.terminal import MARKS, Written, plain

OF_STATES: Final = {
    **dict.fromkeys(("failed", "unreadable"), "red"),
    **dict.fromkeys(("published", "shown", "sealed"), "green"),
    **dict.fromkeys(("replaced", "completed"), "dim"),
    "paused": "yellow",
}
"""Of the states of a run, and of its place in the table; the others stay plain."""


def coloured() -> bool:
    """Whether standard output shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "", "dumb")


def paint(text: str, colour: str | None) -> str:
    """The text in a colour of `MARKS`, if there are colours here and one is given."""
    return f"{MARKS[colour]}{text}{MARKS[None]}" if colour and text and coloured() else text


def move_up(lines: int) -> None:
    """Moves the cursor up, and deletes what is below it."""
    stream = sys.stdout.own if isinstance(sys.stdout, Written) else sys.stdout
    stream.write(f"\x1b[{lines}A\x1b[J")


def cut(line: str, columns: int) -> str:
    """A line that takes one row of a terminal. One that is too long loses its colours too."""
    bare = plain(line)
    return line if len(bare) < columns else bare[: columns - 1]
