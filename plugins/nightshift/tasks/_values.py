"""What a row's values look like in prompts. Templates hold values only: a function or a generator is never written.

A run keeps the rendering with which it was opened (docs/operate/formats.md): `Rendering.SQL`, or that of nightshift 0.2.0.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import pprint
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any, Final

from nightshift.tasks._null import Made, Null, NullWritten, refused
from nightshift.tasks._numbers import Number


class Rendering(StrEnum):
    """How values read. SQL: NUMERIC as BigQuery casts it to STRING, NULL as nothing, arrays and structs as JSON.

    NO_NULL: the same, but a template that would write a NULL fails; JSON says null, so it may hold one.
    PYTHON: as nightshift 0.2.0 wrote them, which is as Python does. Delete it with the support for runs of 0.2.0.
    """

    SQL = "sql"
    NO_NULL = "no_null"
    PYTHON = "python"


class Large(BaseException):
    """The rendering meets more than this process computes with. No error of the template: code that handles errors must not
    see it."""


class NoProcess(OSError):
    """There is no process for the rendering of a row: the machine's fault, not the row's."""


class NoValue(TypeError):
    """Something that is no value would have been written."""


VIEWS: Final[tuple[Any, ...]] = (type({}.keys()), type({}.values()), type({}.items()))
_LISTS: Final[tuple[Any, ...]] = (list, tuple, range, set, frozenset, *VIEWS)
_SCALARS: Final = (
    str,
    bytes,
    int,
    float,
    complex,
    Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    type(None),
)


def is_null(value: Any) -> bool:
    return value is None or isinstance(value, Null)


def checked(value: Any) -> Any:
    """The value itself. Raises NoValue if it, or a part of it, is not a value, and UndefinedError."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, dict):
        for item in itertools.chain(value, value.values()):
            checked(item)
    elif isinstance(value, _LISTS):
        for item in value:
            checked(item)
    else:
        _refuse(value)
    return value


def _refuse(value: Any) -> None:
    from jinja2 import Undefined  # Not for everyone who reads a job.

    if isinstance(value, Undefined):
        str(value)  # Raises; but an `if` without `else` leaves Jinja2's plain one, which writes nothing.
        return
    # Without an address, which would differ from row to row.
    if isinstance(value, Iterator) and not type(value).__module__.startswith("jinja2."):
        raise NoValue("a generator is no value that can be written: add | list or | join")
    raise NoValue(f"a {type(value).__name__} is no value that can be written")


def text(value: Any) -> str:
    """The text of a value, whatever writes it. Raises NoValue, UndefinedError, UnicodeDecodeError."""
    if is_null(value):
        return ""
    if isinstance(value, (dict, *_LISTS)):
        return to_json(value)
    if isinstance(value, bytes):
        return value.decode()
    return str(Number(value) if type(value) is Decimal else checked(value))


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON for a prompt: without HTML escapes. Dates and decimals are text; so are, as in BigQuery, infinity and NaN."""
    return json.dumps(_json(value), ensure_ascii=False, indent=indent)


def written(value: Any) -> Any:
    """What an expression would write: the value itself. Raises NullWritten."""
    if (column := refused(value)) is not None:
        raise NullWritten(column)
    return value


def _json(value: Any) -> Any:
    if is_null(value):
        return None
    if isinstance(value, Made):
        written(value)
    if isinstance(value, dict):
        return {text(key): _json(item) for key, item in value.items()}
    if isinstance(value, _LISTS):
        return [_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if not isinstance(value, _SCALARS):
        checked(value)
        raise NoValue("an if without else has left nothing here, and JSON needs a value: add else none")
    return value if isinstance(value, str | int | float) else text(value)


def _within(value: Any, name: str, leaf: Callable[[Any, str], Any]) -> Any:
    """A row's value with BYTES as UTF-8 text, also inside arrays and structs. Raises UnicodeDecodeError.

    name: of the column, and of the fields that lead to it, if it is part of a struct. leaf: makes what is none of these.
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [_within(item, f"{name}[]", leaf) for item in value]
    if isinstance(value, dict):
        return {key: item if type(item) is str else _within(item, f"{name}.{key}", leaf) for key, item in value.items()}
    return leaf(value, name)


def _leaf(value: Any, name: str, *, refused: bool = False) -> Any:
    if value is None:
        return Null(name, refused)
    return Number(value) if isinstance(value, Decimal) else value


@dataclass(frozen=True)
class Style:
    """The parts of a rendering.

    taken: of a column's value and its name, the value as templates see it. shown: what an expression writes. written: what a
    filter or a format makes text of. json: of a value, with an indent. pretty: the same over several lines. made: what an
    operator, a filter or a call has made.
    """

    taken: Callable[[Any, str], Any]
    shown: Callable[[Any], Any]
    written: Callable[[Any], Any]
    json: Callable[[Any, int | None], str]
    pretty: Callable[[Any], str]
    made: Callable[[Any], Any]


def _written(value: Any) -> Any:
    """Numbers stay numbers: a width or a precision may be one."""
    return value if isinstance(value, str | int | float | Number) else text(value)


_SQL: Final = Style(
    partial(_within, leaf=_leaf),
    text,
    _written,
    to_json,
    lambda value: to_json(value, 1),
    lambda value: Number(value) if type(value) is Decimal else value,
)
STYLES: Final = {
    Rendering.SQL: _SQL,
    Rendering.NO_NULL: replace(_SQL, taken=partial(_within, leaf=partial(_leaf, refused=True))),
    Rendering.PYTHON: Style(
        lambda value, name: "" if value is None else _within(value, name, lambda part, _: part),
        lambda value: "" if value is None else checked(value),
        checked,
        lambda value, indent: json.dumps(checked(value), ensure_ascii=False, indent=indent, default=str),
        lambda value: pprint.pformat(checked(value)),
        lambda value: value,
    ),
}
