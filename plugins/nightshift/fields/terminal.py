"""What is written to terminals: text of others without control characters, and our own colours, which no text can imitate.

Everything that a command prints passes `Written`. A colour is a character of a private area until then, another one in each
process: so colours are not recognised by what they look like, and a row, an answer or a worker's name brings none.
"""

from __future__ import annotations

import random
import re
from typing import Any, Final, TextIO

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "dim": "2", None: "0"}
_DRAWN: Final = random.SystemRandom().sample(range(0xF0000, 0xFFFFE), len(_CODES))
MARKS: Final = {colour: chr(drawn) for colour, drawn in zip(_CODES, _DRAWN, strict=True)}
"""What begins each colour; None: what ends it."""
_ESCAPES: Final = {ord(MARKS[colour]): f"\x1b[{code}m" for colour, code in _CODES.items()}
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 (with ESC) but for tab and newline, DEL, C1, what turns the direction of text, and what no encoding can write."""


def harmless(text: str) -> str:
    """The text with a replacement character for each that could move the cursor, hide or turn around what is shown."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def plain(text: str) -> str:
    """The text without the colours of `MARKS`."""
    return text.translate(dict.fromkeys(_ESCAPES))


class Written:
    """Standard output or error of a command: `harmless`, then with our colours. own: the stream itself, for our own codes."""

    def __init__(self, own: TextIO) -> None:
        self.own = own

    def write(self, text: str) -> int:
        self.own.write(harmless(text).translate(_ESCAPES))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)
