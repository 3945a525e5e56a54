"""The words of a GoogleSQL query, cut as BigQuery cuts them ("Lexical structure and syntax"). Pure; time is linear.

Where a string, a quoted name or a comment ends decides what is SQL: a semicolon that only BigQuery takes for one would begin a
statement of which nothing here knew. So rules about a query's text rest on this module, and not on a parser that may cut it
otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple


class Kind(Enum):
    WORD = auto()
    """A keyword, a name without quotes, or a number."""
    NAME = auto()
    """A name in backquotes."""
    TEXT = auto()
    """A literal of a STRING or of BYTES."""
    SIGN = auto()


class Word(NamedTuple):
    """start, end: where it stands in the query; line: from 1."""

    kind: Kind
    text: str
    start: int
    end: int
    line: int

    @property
    def upper(self) -> str:
        """A keyword in upper case; empty for a literal or a quoted name."""
        return self.text.upper() if self.kind in (Kind.WORD, Kind.SIGN) else ""

    @property
    def name(self) -> str:
        """Of a parameter, without backquotes."""
        return self.text.strip("`")


class Unclosed(ValueError):
    """A string, a quoted name or a comment does not end. line: where it begins, from 1."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(f"{what} that begins in line {line} is not closed")
        self.what, self.line = what, line


# A backslash takes the next character with it, in a raw string too: there both are kept, but a quote does not close it.
_PARTS: Final = re.compile(
    r"""
      (?P<space> \s+ | (?:\#|--)[^\n\r]* | /\*.*?\*/ )
    | (?P<text> (?:[rR][bB]?|[bB][rR]?)? (?:
          '{3} (?:[^\\]|\\.)*? '{3}
        | "{3} (?:[^\\]|\\.)*? "{3}
        | '(?!'') (?:[^'\\\n\r]|\\.)* '
        | "(?!"") (?:[^"\\\n\r]|\\.)* "
      ) )
    | (?P<name> ` (?:[^`\\\n\r]|\\.)* ` )
    | (?P<word> \w+ )
    | (?P<open> ['"`] | /\* )
    | (?P<sign> \|\| | \|> | => | -> | != | <> | <= | >= | @@ | \{\{ | \{% | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_KINDS: Final = {"text": Kind.TEXT, "name": Kind.NAME, "word": Kind.WORD, "sign": Kind.SIGN}
_OPEN: Final = {"`": "The quoted name", "/*": "The comment"}


def words(query: str) -> list[Word]:
    """Without spaces and comments. Raises Unclosed."""
    return [Word(_KINDS[kind], text, start, end, line) for kind, text, start, end, line in _cut(query) if kind != "space"]


def without_comments(query: str) -> str:
    """The query with a space for each character of a comment, so that every word and line stays where it is.

    Raises Unclosed.
    """
    return "".join(re.sub(r"[^\n\r]", " ", text) if kind == "space" else text for kind, text, *_ in _cut(query))


def _cut(query: str) -> Iterator[tuple[str, str, int, int, int]]:
    line = 1
    for found in _PARTS.finditer(query):
        kind, text = str(found.lastgroup), found.group()
        if kind == "open":
            raise Unclosed(_OPEN.get(text, "The string"), line)
        yield kind, text, found.start(), found.end(), line
        line += text.count("\n")
