"""NULL in templates: an empty text without parts, that names its column where a value is needed.

It is no number: `price > 3` is neither true nor false of a NULL, so it fails on this row, and names the column that is NULL.

A NULL may be refused where it is written. Then a text or a number that is made of it (`Made`) is refused there, too, and
reads everywhere else like any other: conditions are the same whether NULLs are refused or not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from nightshift.tasks._numbers import Literal

NAME_MOST: Final = 300
"""Characters; fields of fields of NULL go on for ever."""


class NoNumber(ValueError):
    """A NULL stands where a value is needed. No TypeError, in whose place formats of text put words of their own."""


class NullWritten(Exception):
    """A NULL would have been written, and the job refuses that. column: which. No ValueError: filters have defaults for one."""

    def __init__(self, column: str) -> None:
        super().__init__(
            f"{column} is NULL, and the template writes it (request.nulls: dead_letter). Say in the template what stands for "
            "NULL, for example with or 'none', or replace NULL in the query, for example with IFNULL"
        )
        self.column = column

    def __reduce__(self) -> tuple[type[NullWritten], tuple[str]]:
        return NullWritten, (self.column,)


class Null(str):
    """NULL, as a column's value or part of one: texts with it need no test. It `is none`, and in JSON it is null.

    refused: it may not be written.
    """

    __slots__ = ("_column", "_refused")
    _column: str
    _refused: bool

    def __new__(cls, column: str, refused: bool = False) -> Null:
        made = super().__new__(cls)
        made._column, made._refused = column, refused
        return made

    def __reduce__(self) -> tuple[type[Null], tuple[str, bool]]:
        return Null, (self._column, self._refused)

    def __eq__(self, other: object) -> bool:
        return other is None or str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __format__(self, spec: str) -> str:
        return needed(self) if spec[-1:] in _NUMERIC else super().__format__(spec)

    def __mul__(self, other: Any) -> Null:
        return self

    __rmul__ = __mul__

    # Jinja2 slices without asking the environment.
    def __getitem__(self, index: Any) -> Any:
        return made_of("", self) if isinstance(index, slice) else super().__getitem__(index)

    # What templates ask of a STRUCT.
    def items(self) -> tuple[()]:
        return ()

    keys = values = items

    def get(self, name: str, *_: Any) -> Null:
        return part_of(self, name)

    def lower(self) -> Null:
        """Itself: Jinja2 compares texts in lower case."""
        return self


def part_of(null: Null, name: object) -> Null:
    """A field or an item of it."""
    column = null._column
    return Null(f"{column}.{name}" if isinstance(name, str) and len(column) < NAME_MOST else column, null._refused)


def needed(null: Null, *_: Any) -> Any:
    raise NoNumber(
        f"{null._column} is NULL, where the template needs a value: test first that it 'is not none', or replace NULL in the "
        "query, for example with IFNULL"
    )


def _of_texts(name: str) -> Callable[[Null, Any], Any]:
    """An operator that texts have with texts; with anything else it needs a value."""
    of_text = getattr(str, name, None)

    def operator(null: Null, other: Any) -> Any:
        if not isinstance(other, str):
            return needed(null)
        return of_text(null, other) if of_text else NotImplemented

    return operator


class Searched(str):
    """The text in which `in` looks for another; of a NULL, that is neither true nor false."""

    __slots__ = ()

    def __contains__(self, part: Any) -> bool:
        return bool(needed(part)) if isinstance(part, Null) else super().__contains__(part)


_NUMERIC: Final = tuple("bcdeEfFgGnoxX%")
_OPERATORS: Final = (*("add", "sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow"),)
for _name in (f"__{each}__" for each in _OPERATORS):
    setattr(Null, _name, _of_texts(_name))
# No text comes before or after it, either.
for _name in (
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__neg__",
    "__pos__",
    "__abs__",
    "__round__",
    "__index__",
    "__float__",
    "__int__",
):
    setattr(Null, _name, needed)
Null.__radd__ = lambda null, other: other if isinstance(other, str) else needed(null)  # type: ignore[attr-defined]


class Made:
    """A text or a number that was made of a NULL which may not be written."""

    _column: str


class _Text(str, Made):
    def __getitem__(self, index: Any) -> Any:
        return made_of(super().__getitem__(index), self)


@functools.cache
def _number(kind: Any) -> Any:
    """The numbers of a kind that may not be written."""
    return type(kind.__name__, (kind, Made), {})


def refused(value: object) -> str | None:
    """The column of a value that may not be written."""
    if isinstance(value, Made) or (isinstance(value, Null) and value._refused):
        return value._column
    return None


def made_of(value: Any, *sources: Any) -> Any:
    """What an expression has made of these values: the value itself, or its like that may not be written. A list: its items."""
    column = next(filter(None, map(refused, sources)), None)
    return value if column is None else _like(value, column)


def _like(value: Any, column: str) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_like(item, column) for item in value) if type(value) in (list, tuple) else value
    if isinstance(value, Null | Made | bool):
        return value
    if isinstance(value, str):
        like: Any = _Text(value)
    elif isinstance(value, int | float | Decimal):
        kind: Any = type(value)
        like = _number(kind)(value)
        if isinstance(value, Literal):
            like.exact = value.exact
    else:
        return value
    like._column = column
    return like
