"""Options of commands, each declared once: as a field of a dataclass, which both the parser and the command read.

The other functions read one value: each returns the value of a text, or raises argparse.ArgumentTypeError.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING, field
from datetime import date, datetime
from typing import Any, Final


def option(*flags: str, default: Any = None, variable: str = "", group: str = "", **words: Any) -> Any:
    """A field that the command line fills. flags: as in argparse; none for a positional argument, which must be given.

    default: MISSING for an option that must be given. variable: of the environment, whose value is the default if it is set;
    without words nothing else fills the field. group: the title below which the help shows it. words: those of
    `argparse.ArgumentParser.add_argument`.
    """
    metadata = {"flags": flags, "variable": variable, "group": group, "words": words}
    if default == []:
        return field(default_factory=list, metadata=metadata)
    required = not (flags or variable or "nargs" in words)
    return field(default=MISSING if required else default, metadata=metadata)


def flag(name: str, help_: str, group: str = "") -> Any:
    """A field that is true if the command line has this option."""
    return option(name, default=False, group=group, action="store_true", help=help_)


def percent(text: str) -> int:
    return _whole(text, 100, "a whole number from 0 to 100")


def port(text: str) -> int:
    return _whole(text, 65_535, "a port from 0 to 65535")


def _whole(text: str, most: int, what: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def moment(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time with its offset; write, for example, 2026-11-20T08:00Z")
    return found


def day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day; write, for example, 2026-11-20") from None


def limit(text: str) -> float:
    return _seconds(text, 0, 86_400, "above 0 and up to 86400", above=True)


def wait(text: str) -> float:
    return _seconds(text, 0, 60, "from 0 to 60")


def seconds(text: str) -> float:
    return _seconds(text, 0.1, 86_400, "from 0.1 to 86400; write RUN_URL before --watch")


def _seconds(text: str, least: float, most: float, range_: str, *, above: bool = False) -> float:
    """above: `least` itself is refused."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most or (above and value == least):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds {range_}")
    return value


def names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(","))


_DIGITS_MAX: Final = 15
"""Of a count. No table has more rows, and fractions of larger numbers are not exact."""


def positive(text: str) -> int:
    digits = text.isascii() and text.isdecimal()
    if digits and len(text) > _DIGITS_MAX:
        raise argparse.ArgumentTypeError(f"{text[:_DIGITS_MAX]}... has more than {_DIGITS_MAX} digits")
    value = int(text) if digits else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value
