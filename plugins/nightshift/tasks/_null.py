"""NULL in templates: an empty text without parts, that names its column where a value is needed.

It is no number: `price > 3` is neither true nor false of a NULL, so it fails on this row, and names the column that is NULL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

NAME_MOST: Final = 300
"""Characters; fields of fields of NULL go on for ever."""


class NoNumber(ValueError):
    """A NULL stands where a value is needed. No TypeError, in whose place formats of text put words of their own."""


class Null(str):
    """NULL, as a column's value or part of one: texts with it need no test. It `is none`, and in JSON it is null."""

    __slots__ = ("_column",)
    _column: str

    def __new__(cls, column: str) -> Null:
        made = super().__new__(cls)
        made._column = column
        return made

    def __reduce__(self) -> tuple[type[Null], tuple[str]]:
        return Null, (self._column,)

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
    return Null(f"{column}.{name}" if isinstance(name, str) and len(column) < NAME_MOST else column)


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


_NUMERIC: Final = tuple("bcdeEfFgGnoxX%")
_OPERATORS: Final = (
    *("lt", "le", "gt", "ge", "add", "sub", "rsub", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "rmod", "pow", "rpow"),
)
for _name in (f"__{each}__" for each in _OPERATORS):
    setattr(Null, _name, _of_texts(_name))
for _name in ("__neg__", "__pos__", "__abs__", "__round__", "__index__", "__float__", "__int__"):
    setattr(Null, _name, needed)
Null.__radd__ = lambda null, other: other if isinstance(other, str) else needed(null)  # type: ignore[attr-defined]
