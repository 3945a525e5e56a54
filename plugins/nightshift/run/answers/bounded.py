"""Values of rows, prompts and answers as JSON that a person reads: bounded, and never more than was asked for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final

from nightshift.fields.text import n

TEXT_MOST: Final = 4_000
"""Characters of one text."""
ITEMS_MOST: Final = 32
"""Of one list, such as a vector."""


def shown(value: Any, most: int = TEXT_MOST, items: int = ITEMS_MOST, *, hexes: bool = False) -> Any:
    """A value of a row or an answer as JSON. most: characters of a text. items: of a list; what is left out is counted in its
    place. hexes: bytes as their digits, all of them, not as how many they are."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return cut(value, most)
    if isinstance(value, bytes | bytearray | memoryview):
        return value.hex() if hexes else f"<{n(len(value), 'byte')}>"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): shown(each, most, items, hexes=hexes) for name, each in value.items()}
    if isinstance(value, Sequence):
        first = [shown(each, most, items, hexes=hexes) for each in value[:items]]
        return first if len(value) <= items else [*first, f"... {len(value) - items:,} more"]
    return cut(str(value), most)


def cut(text: str, most: int = TEXT_MOST) -> str:
    return text if len(text) <= most else f"{text[:most]}... {n(len(text) - most, 'more character')}"


def as_json(value: Any) -> Any:
    """A dataclass as JSON: fields by their names. What comes from rows has been through `shown` before."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(each) for each in value]
    return value
