"""Pydantic's errors in words for the person who wrote the file: what is wrong, with the value, and what to write."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nightshift.spec.document import Document, FieldPath, Finding
from nightshift.spec.errors import choice, nearest
from nightshift.spec.model import JobSpec

_EXPECTED: Final = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "literal_error": "a text",
}
_LIMITS: Final = {
    "greater_than_equal": ("ge", "less than {:g}", "{:g} or more"),
    "less_than_equal": ("le", "more than {:g}", "{:g} or less"),
    "greater_than": ("gt", "not more than {:g}", "more than {:g}"),
}


def explain(error: ValidationError, document: Document) -> Iterator[Finding]:
    """A finding for each error, at the place in the document."""
    items = error.errors(include_url=False)
    unknown = [item["loc"] for item in items if item["type"] == "extra_forbidden"]
    misspelt = {(*path[:-1], _slip_of(path)) for path in unknown}
    for item in items:
        # '[key]' marks an error in a mapping's key rather than in its value.
        path: FieldPath = tuple(part for part in item["loc"] if part != "[key]")
        # A key that is not text is among Document.findings; one that is misspelt is not missing too.
        if item["type"] != "invalid_key" and not (item["type"] == "missing" and path in misspelt):
            yield Finding(path, *_words(item, path, document))


def _words(item: ErrorDetails, path: FieldPath, document: Document) -> tuple[str, str]:
    kind, context = item["type"], item.get("ctx", {})
    if kind == "nightshift":
        return context["problem"], context["remedy"]
    if kind == "missing":
        return "The key is missing", _example(path)
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind in _LIMITS:
        name, problem, remedy = _LIMITS[kind]
        return f"{_shown(item, path, document)} is {problem.format(context[name])}", f"Write {remedy.format(context[name])}"
    if kind == "literal_error" and isinstance(item["input"], str):
        field = _field(path)
        return f"There is no {path[-1]} {item['input']!r}", choice(item["input"], get_args(field.annotation) if field else ())
    return _wrong_type(item, path, document)


def _wrong_type(item: ErrorDetails, path: FieldPath, document: Document) -> tuple[str, str]:
    value, expected = item["input"], _EXPECTED.get(item["type"])
    if expected is None:
        return f"{_shown(item, path, document)} does not fit: {item['msg']}", _example(path)
    if value is None:
        return f"There is no value where {expected} belongs", _example(path)
    problem = f"{_shown(item, path, document)} is {_kind(value)}, where {expected} belongs"
    written = document.source(path)
    if expected == "a text" and written is not None:
        return problem, f'Put it in quotes: "{written}"'
    if expected == "a list" and written is not None:
        return problem, f"Write a list: [{written}]"
    if expected.endswith("number") and isinstance(value, str) and value.isdecimal():
        return problem, f"Write it without quotes: {value}"
    return problem, _example(path)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a truth value"
    kinds: Mapping[type, str] = {str: "a text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _shown(item: ErrorDetails, path: FieldPath, document: Document) -> str:
    """The value as it is written in the file; a collection is not repeated."""
    written = document.source(path)
    if written is None:
        return "The value"
    shown = repr(written) if isinstance(item["input"], str) else written
    return shown if len(shown) <= 80 else f"{shown[:76]} ..."


def _unknown_key(path: FieldPath) -> tuple[str, str]:
    key = str(path[-1])
    places, siblings = _places(), _siblings(path)
    problem = f"There is no key {key!r} {'in ' + _dotted(path[:-1]) if path[:-1] else 'at the top of a job'}"
    near = _slip_of(path)
    if near is not None:
        return problem, f"Did you mean {near!r}?"
    elsewhere = [place for place in places if place[-1] == key]
    if elsewhere:
        return (
            problem,
            f"It belongs to {_dotted(elsewhere[0][:-1]) or 'the top of the file'}: write it as {_dotted(elsewhere[0])}",
        )
    return problem, f"Remove it. There {'are' if len(siblings) > 1 else 'is'} {', '.join(siblings)}"


def _slip_of(path: FieldPath) -> str | None:
    """The key that an unknown one was meant to be."""
    return nearest(str(path[-1]), _siblings(path))


def _siblings(path: FieldPath) -> list[str]:
    return [place[-1] for place in _places() if place[:-1] == path[:-1]]


def _example(path: FieldPath) -> str:
    """What to write for the field at `path`, made from its example."""
    field = _field(path)
    if field is None:
        return "Write a job: a mapping from keys to values" if not path else "Write a value that fits"
    name = path[-1]
    if field.examples:
        return f"Write for example {name}: {json.dumps(field.examples[0])}"
    part = _part(field)
    keys = [key for key, inner in part.model_fields.items() if inner.is_required()] or list(part.model_fields) if part else []
    return f"Write {name}: and below it {', '.join(keys)}"


def _field(path: FieldPath) -> FieldInfo | None:
    """The model's field that `path` is or lies in; None for an unknown one and for the whole file."""
    model: type[BaseModel] | None = JobSpec
    field: FieldInfo | None = None
    for part in path:
        if model is None or part not in model.model_fields:
            break
        field = model.model_fields[str(part)]
        model = _part(field)
    return field


def _part(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


@functools.cache
def _places() -> tuple[tuple[str, ...], ...]:
    """The path of every key there is."""
    found: list[tuple[str, ...]] = []
    for name, field in JobSpec.model_fields.items():
        part = _part(field)
        found += [(name,), *((name, inner) for inner in (part.model_fields if part else ()))]
    return tuple(found)


def _dotted(path: FieldPath | tuple[str, ...]) -> str:
    return ".".join(map(str, path))
