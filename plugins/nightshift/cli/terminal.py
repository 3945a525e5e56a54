"""Colours, where somebody sees them: on a terminal that has them, unless NO_COLOR is set (no-color.org)."""

from __future__ import annotations

import os
import re
import sys
from typing import Final

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "dim": "2"}
_CODE: Final = re.compile(r"\x1b\[[0-9]*m")
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
    """The text in a colour of `_CODES`, if there are colours here and one is given."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour and text and coloured() else text


def cut(line: str, columns: int) -> str:
    """A line that takes one row of a terminal. One that is too long loses its colours too."""
    plain = _CODE.sub("", line)
    return line if len(plain) < columns else plain[: columns - 1]
