"""Dataclasses read back from JSON: the one way in which stored objects, heartbeats and events are checked.

Every field has the type of its annotation, without conversion: ``true`` is no count, ``"7"`` no number. Entries that a later
release added are passed over, and missing ones get the field's default (docs/operate/formats.md).
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from annotated_types import Interval

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

T = TypeVar("T")

MOST: Final = 10**15
"""More seconds, rows or tokens than any attempt or run has. What is larger would not survive sums and divisions."""
Count = Annotated[int, Interval(ge=0, le=MOST)]
Amount = Annotated[float, Interval(ge=0, le=MOST)]
"""NaN is none."""
_KINDS: Final = {
    "string_type": "a text",
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "tuple_type": "a list",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "float_type": "a number",
}
"""What is wanted, by pydantic's name of the error. Others are about numbers."""


def read(kind: type[T], value: Any) -> T:
    """kind: a dataclass, or a tuple of some. value: JSON. Raises ValueError, or its subclass that the dataclass itself raises,
    which names the first wrong field."""
    return read_json(kind, json.dumps(value))


def read_json(kind: type[T], body: bytes | str) -> T:
    """As `read`, from JSON text."""
    from pydantic import ValidationError

    try:
        found: T = _adapter(kind).validate_json(body, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if isinstance(own := first.get("ctx", {}).get("error"), ValueError) and not first["loc"]:
            raise own from None
        raise ValueError(_said(first)) from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Imported and built when it is first needed: the DAG processor reads none.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _said(error: ErrorDetails) -> str:
    name, kind, value = ".".join(map(str, error["loc"])), error["type"], error["input"]
    if kind == "missing":
        return f"it lacks {name}"
    if not name:
        return "not a JSON object" if kind == "dataclass_type" else error["msg"]
    shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}..."
    if kind in ("enum", "literal_error"):
        return f"{name} is {shown}"
    if kind == "value_error":
        return f"{name} is {shown}: {error['ctx']['error']}"
    if kind == "string_too_long":
        return f"{name} is longer than {error['ctx']['max_length']:,} characters"
    bounds = error.get("ctx", {})
    amount = isinstance(bounds.get("ge", bounds.get("le")), float)
    return f"{name} is not {'a number from 0' if amount else _KINDS.get(kind, 'a count')}: {shown}"
