"""Pydantic's errors, explained to the author of the file: what is wrong, with the value, and what to write."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from nightshift.fields.mistakes import FieldPath, Finding, choice, nearest
from nightshift.spec import values
from nightshift.spec.document import Document
from nightshift.tasks import TASK_KINDS, request_model

_EXPECTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "model_type": "a mapping",
    "dict_type": "a mapping",
    "literal_error": "text",
}
_LABELS: Final = (
    "Remove it: the labels of classify are those of the model, in its config.json (id2label). For labels of your own, write "
    "task: chat and request.json_schema: {type: string, enum: [...]}"
)
_LIMITS: Final = {
    "greater_than_equal": ("ge", "less than {}", "{} or more"),
    "less_than_equal": ("le", "more than {}", "{} or less"),
    "greater_than": ("gt", "not more than {}", "more than {}"),
}


Parts = Mapping[str, type[BaseModel] | None]
"""The models of sections that have several, by their names. None: which one it is is unknown."""


def explain(
    error: ValidationError, document: Document, model: type[BaseModel], noun: str, parts: Parts | None = None
) -> Iterator[Finding]:
    """A finding for each error, at the place in the document. model: what it was read as; noun: the word for it."""
    words = _Words(document, model, noun, parts or {})
    items = error.errors(include_url=False)
    unknown = [item["loc"] for item in items if item["type"] == "extra_forbidden"]
    misspelt = {(*path[:-1], words.slip_of(path)) for path in unknown}
    for item in items:
        # '[key]' marks an error in a mapping's key rather than in its value.
        path: FieldPath = tuple(part for part in item["loc"] if part != "[key]")
        # Keys that are not text are in Document.findings; a misspelt key is not reported as missing too.
        if item["type"] != "invalid_key" and not (item["type"] == "missing" and path in misspelt):
            yield Finding(path, *words.of(item, path))


class _Words:
    """Problem and remedy of pydantic's errors."""

    def __init__(self, document: Document, model: type[BaseModel], noun: str, parts: Parts) -> None:
        self._document = document
        self._model = model
        self._noun = noun
        self._parts = parts

    def of(self, item: ErrorDetails, path: FieldPath) -> tuple[str, str]:
        kind, context = item["type"], item.get("ctx", {})
        if kind == "nightshift":
            return context["problem"], context["remedy"]
        if kind == "missing":
            return "The key is missing", self._example(path)
        if kind == "extra_forbidden":
            return self._unknown_key(path)
        if kind in _LIMITS:
            name, problem, remedy = _LIMITS[kind]
            limit = f"{context[name]:g}" if isinstance(context[name], float) else str(context[name])
            return f"{self._shown(item, path)} is {problem.format(limit)}", f"Write {remedy.format(limit)}"
        if kind == "literal_error" and isinstance(item["input"], str):
            field = self._field(path)
            choices = _choices(field.annotation) if field else ()
            return f"{path[-1]} cannot be {item['input']!r}", choice(item["input"], choices)
        return self._wrong_type(item, path)

    def _wrong_type(self, item: ErrorDetails, path: FieldPath) -> tuple[str, str]:
        value, expected = item["input"], _EXPECTED.get(item["type"])
        if expected is None:
            return f"{self._shown(item, path)} is not valid: {item['msg']}", self._example(path)
        if value is None:
            return f"The value is missing; {expected} is expected", self._example(path)
        problem = f"{self._shown(item, path)} is {_kind(value)}, but {expected} is expected"
        written = self._document.source(path)
        if expected == "text" and written is not None:
            return problem, self._quoted(written, path)
        if expected == "a list" and written is not None:
            only = written if re.fullmatch(r"[\w.-]+", written) else json.dumps(written)
            return problem, f"Write a list: [{only}]"
        if expected.endswith("number") and isinstance(value, str) and value.isdecimal():
            return problem, f"Write it without quotes: {value}"
        return problem, self._example(path)

    def _quoted(self, written: str, path: FieldPath) -> str:
        """Quotes, if those make the value one that the field takes."""
        field = self._field(path)
        if field is not None and (choices := _choices(field.annotation)):
            return choice(written, choices)
        if field is not None and field is not self._field(path[:-1]):
            try:
                TypeAdapter(field.rebuild_annotation()).validate_python(written)
            except ValidationError:
                return self._example(path)
        return f'Put it in quotes: "{written}"'

    def _shown(self, item: ErrorDetails, path: FieldPath) -> str:
        """The value as it is written in the file; a collection is not repeated."""
        written = self._document.source(path)
        if written is None:
            return "The value"
        shown = repr(written) if isinstance(item["input"], str) else written
        return shown if len(shown) <= 80 else f"{shown[:76]} ..."

    def _unknown_key(self, path: FieldPath) -> tuple[str, str]:
        key = str(path[-1])
        siblings = self._siblings(path)
        problem = f"There is no key {key!r} {'in ' + _dotted(path[:-1]) if path[:-1] else f'at the top of a {self._noun}'}"
        near = self.slip_of(path)
        if near is not None:
            return problem, f"Did you mean {near!r}?"
        flag = key.replace("_", "-")
        if path[:-1] == ("engine",) and flag in values.ENGINE_FLAGS:
            return problem, values.ENGINE_FLAGS[flag]
        elsewhere = [place for place in self._places() if place[-1] == key]
        if elsewhere:
            belongs = _dotted(elsewhere[0][:-1]) or "the top of the file"
            return problem, f"It belongs to {belongs}: write it as {_dotted(elsewhere[0])}"
        if path[:-1] == ("request",) and key in ("labels", "classes", "choices"):
            return problem, _LABELS
        tasks = [task for task in TASK_KINDS if key in request_model(task).model_fields]
        if tasks and path[:-1] == ("request",):
            *others, last = tasks
            only = f"{', '.join(others)} and {last} have" if others else f"{last} has"
            problem = f"The request of the task {self._document.get('task')} has no key {key!r}"
            return problem, f"Remove it: only {only} this key"
        here = f"The key{'s' if len(siblings) > 1 else ''} here: {', '.join(siblings)}"
        if path[:-1] == ("engine",) and re.fullmatch(values.FLAG_PATTERN, key):
            # vLLM is not installed where jobs are checked, and its flags change with every release.
            return (
                problem,
                f"If `vllm serve` has the flag --{flag}, write {flag} under engine.args; otherwise remove it. {here}",
            )
        return problem, f"Remove it. {here}"

    def slip_of(self, path: FieldPath) -> str | None:
        """The key that an unknown one was meant to be."""
        return nearest(str(path[-1]), self._siblings(path))

    def _siblings(self, path: FieldPath) -> list[str]:
        above = tuple(part for part in path[:-1] if isinstance(part, str))
        return [place[-1] for place in self._places() if place[:-1] == above]

    def _example(self, path: FieldPath) -> str:
        """What to write for the field at `path`, made from its example."""
        field = self._field(path)
        if field is None:
            return "Write a job: a mapping from keys to values" if not path else "Write a value that fits"
        name = path[-1]
        if field.examples:
            return f"Write, for example, {name}: {json.dumps(field.examples[0])}"
        part = self._part(str(name), field)
        fields = part.model_fields if part else {}
        keys = [key for key, inner in fields.items() if inner.is_required()] or list(fields)
        return f"Write {name}: with {', '.join(keys)} below it"

    def _field(self, path: FieldPath) -> FieldInfo | None:
        """The model's field at `path` or around it; None for an unknown one and for the whole file."""
        model: type[BaseModel] | None = self._model
        field: FieldInfo | None = None
        for part in path:
            if isinstance(part, int):
                continue  # An item of a list of sections.
            if model is None or part not in model.model_fields:
                break
            field = model.model_fields[str(part)]
            model = self._part(str(part), field)
        return field

    def _part(self, name: str, field: FieldInfo) -> type[BaseModel] | None:
        if name in self._parts:
            return self._parts[name]
        # A section that may be left out is a union with None.
        kinds = (field.annotation, *get_args(field.annotation))
        return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)

    def _places(self) -> list[tuple[str, ...]]:
        """The path of every known key."""
        return list(self._places_in(self._model, ()))

    def _places_in(self, model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, field in model.model_fields.items():
            yield (*above, name)
            if part := self._part(name, field):
                yield from self._places_in(part, (*above, name))


def _choices(annotation: Any) -> tuple[str, ...]:
    """The words of a Literal, which may be optional."""
    return tuple(word for part in get_args(annotation) for word in (get_args(part) or (part,)) if isinstance(word, str))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", list: "a list", dict: "a mapping"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _dotted(path: FieldPath | tuple[str, ...]) -> str:
    return ".".join(map(str, path))
