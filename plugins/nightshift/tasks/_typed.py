"""A JSON schema as a column: its Arrow type, and the check and conversion of an answer's text to a value of that type.

Only what a BigQuery column can hold is supported; `compile_schema` reports everything else, with its place and a remedy.
Everything that it accepts is also checked: a value that passes is valid by the schema, except for ``format``, which only
the engine enforces. `nightshift.tasks._served` knows what the engine cannot do.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from nightshift.tasks.base import InvalidAnswer

if TYPE_CHECKING:
    import pyarrow as pa

Path = tuple[str | int, ...]
Problem = tuple[Path, str, str]
"""Place within the schema, what is wrong, what to write."""

DEPTH_MAX: Final = 15
"""BigQuery's limit on nested structs."""
MATCHED_MOST: Final = 1 << 16
"""Characters of a text that is held against a pattern in the event loop's thread: 4 s for the worst pattern that was
tried, milliseconds for others."""
FLOAT_PLACES: Final = 400
"""Decimal places that tell any two numbers of 64 bits apart."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}")
_NOTES: Final = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions"})
_KEYWORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "enum", "const"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "boolean": frozenset(),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
COMPARISONS: Final[Mapping[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "minimum": (lambda value, limit: value >= limit, "less than"),
    "maximum": (lambda value, limit: value <= limit, "more than"),
    "exclusiveMinimum": (lambda value, limit: value > limit, "not more than"),
    "exclusiveMaximum": (lambda value, limit: value < limit, "not less than"),
}


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a text has a part that matches, in time that grows with the text alone. Raises ValueError for what is not a
    regular expression of ECMA, or has look-around or references, which take longer."""
    import jsonschema_rs

    return jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=jsonschema_rs.RegexOptions()).is_valid


class SchemaNode(ABC):
    """One place of a schema."""

    nullable = False
    scalar = ""
    """The name of its Arrow type, unless it has parts."""

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.type_for_alias(self.scalar)

    @abstractmethod
    def check(self, value: Any, where: str) -> Any:
        """The value for Arrow. Raises InvalidAnswer, which names `where`. value: not null."""

    def convert(self, value: Any, where: str) -> Any:
        if value is None and self.nullable:
            return None
        return self.check(value, where)

    def parse(self, text: str) -> Any:
        """The value of an answer. Raises InvalidAnswer for text that is not JSON or does not follow the schema."""
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidAnswer(f"the answer is not JSON ({error}): {text[:200]!r}") from error
        return self.convert(value, "the answer")


class _String(SchemaNode):
    scalar = "string"

    def __init__(self, schema: Mapping[str, Any], choices: tuple[Any, ...]) -> None:
        self._choices = choices
        self._least, self._most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
        self._pattern: str | None = schema.get("pattern")

    @cached_property
    def _matches(self) -> Callable[[str], bool]:
        return matcher(self._pattern or "")

    def check(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _wrong(value, where, "a text")
        if self._choices and value not in self._choices:
            raise _wrong(value, where, f"one of {', '.join(map(str, self._choices))}")
        if not self._least <= len(value) <= self._most:
            raise _wrong(value, where, f"a text of {self._least} to {self._most} characters")
        text = storable(value)
        if self._pattern is not None and len(text) > MATCHED_MOST:
            raise InvalidAnswer(f"{where} has {len(text):,} characters; a text with a pattern has {MATCHED_MOST:,} at most")
        if self._pattern is not None and not self._matches(text):
            raise _wrong(value, where, f"a text that matches {self._pattern}")
        return text


class _Number(SchemaNode):
    def __init__(self, schema: Mapping[str, Any], choices: tuple[Any, ...], *, whole: bool) -> None:
        self._choices, self._whole = choices, whole
        self.scalar = "int64" if whole else "float64"
        self._limits = [(name, schema[name]) for name in COMPARISONS if name in schema]

    def check(self, value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(value, where, "a whole number" if self._whole else "a number")
        for name, limit in self._limits:
            holds, words = COMPARISONS[name]
            if not holds(value, limit):
                raise InvalidAnswer(f"{where} is {words} {limit}: {_shown(value)}")
        if self._choices and value not in self._choices:
            raise _wrong(value, where, f"one of {', '.join(map(str, self._choices))}")
        return self._whole_number(value, where) if self._whole else self._finite(value, where)

    def _whole_number(self, value: float, where: str) -> int:
        if isinstance(value, float) and not value.is_integer():
            raise _wrong(value, where, "a whole number")
        if not -(2**63) <= value < 2**63:
            raise _wrong(value, where, "a number of 64 bits")
        return int(value)

    def _finite(self, value: float, where: str) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise _wrong(value, where, "a number that a float holds")
        return number


class _Boolean(SchemaNode):
    scalar = "bool"

    def check(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise _wrong(value, where, "true or false")
        return value


class _Array(SchemaNode):
    def __init__(self, schema: Mapping[str, Any], items: SchemaNode) -> None:
        self._items = items
        self._least, self._most = schema.get("minItems", 0), schema.get("maxItems", math.inf)

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(self._items.arrow())

    def check(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(value, where, "an array")
        if not self._least <= len(value) <= self._most:
            raise InvalidAnswer(f"{where} has {len(value)} items, not {self._least} to {self._most}")
        return [self._items.convert(item, f"{where}[{index}]") for index, item in enumerate(value)]


class _Object(SchemaNode):
    def __init__(self, fields: Mapping[str, SchemaNode], required: frozenset[str], *, closed: bool) -> None:
        self._fields, self._required, self._closed = fields, required, closed

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.struct([(name, node.arrow()) for name, node in self._fields.items()])

    def check(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        if missing := sorted(self._required - value.keys()):
            raise InvalidAnswer(f"{where} lacks {', '.join(missing)}")
        if self._closed and (others := sorted(value.keys() - self._fields.keys())):
            raise InvalidAnswer(f"{where} has {_shown(others)}, which the schema does not name")
        return {
            name: node.convert(value[name], f"{where}.{name}") if name in value else None for name, node in self._fields.items()
        }


def compile_checked(schema: str) -> SchemaNode:
    """The root of a schema. Raises ValueError with the first thing that is wrong."""
    node, problems = compile_schema(json.loads(schema))
    if problems:
        path, problem, remedy = problems[0]
        raise ValueError(f"json_schema.{'.'.join(map(str, path))}: {problem}. {remedy}.")
    return node


def compile_schema(schema: Mapping[str, Any]) -> tuple[SchemaNode, list[Problem]]:
    """The root and everything that is wrong; if anything is, the root is unusable."""
    compiler = _Compiler(schema)
    root = compiler.node(schema, (), ())
    if root.nullable:
        compiler.problem((), "The answer itself must not be null", "Make it an object with a property that may be null")
    return root, compiler.problems


class _Compiler:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.problems: list[Problem] = []

    def problem(self, path: Path, problem: str, remedy: str) -> SchemaNode:
        """Notes it. Returns what stands for a place that has no column."""
        self.problems.append((path, problem, remedy))
        return _Boolean()

    def node(self, schema: Any, path: Path, through: tuple[str, ...]) -> SchemaNode:
        """through: the references that led here, to detect one that contains itself."""
        if not isinstance(schema, dict):
            return self.problem(path, "A schema must be a mapping", "Write, for example, {type: string}")
        if len(path) > 2 * DEPTH_MAX + 2:
            return self.problem(path, "The schema is nested too deeply for BigQuery", f"Nest at most {DEPTH_MAX} objects")
        if "$ref" in schema:
            return self._reference(schema, path, through)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._optional(schema, keyword, path, through)
        kind, nullable = self._kind(schema, path)
        if kind is None:
            return _Boolean()
        for keyword in schema.keys() - _KEYWORDS[kind] - _NOTES - {"type"}:
            self._unsupported(keyword, kind, path)
        node = self._built(kind, schema, path, through)
        node.nullable = nullable
        return node

    def _reference(self, schema: Mapping[str, Any], path: Path, through: tuple[str, ...]) -> SchemaNode:
        target: Any = self._root
        name = schema["$ref"]
        if not isinstance(name, str) or not re.fullmatch(r"#/(\$defs|definitions)/[^/~%]+", name):
            return self.problem((*path, "$ref"), f"The reference {name!r} cannot be followed", "Refer to '#/$defs/NAME'")
        if name in through:
            return self.problem(
                (*path, "$ref"), f"{name} contains itself, which no column can hold", "Write a schema of fixed depth"
            )
        for part in name.split("/")[1:]:
            target = target.get(part) if isinstance(target, dict) else None
        if target is None:
            return self.problem((*path, "$ref"), f"There is no {name}", "Define it under $defs")
        return self.node(target, path, (*through, name))

    def _optional(self, schema: Mapping[str, Any], keyword: str, path: Path, through: tuple[str, ...]) -> SchemaNode:
        """anyOf of one schema and null, as pydantic writes optional values."""
        branches = schema[keyword] if isinstance(schema[keyword], list) else []
        others = [branch for branch in branches if branch != {"type": "null"}]
        if len(branches) != 2 or len(others) != 1 or schema.keys() - _NOTES - {keyword}:
            remedy = f"Write one type, or {keyword} of one type and null"
            return self.problem((*path, keyword), f"{keyword} of several types has no column type", remedy)
        node = self.node(others[0], path, through)
        node.nullable = True
        return node

    def _kind(self, schema: Mapping[str, Any], path: Path) -> tuple[str | None, bool]:
        """The one type beside null, and whether null is allowed."""
        named = schema.get("type")
        names = named if isinstance(named, list) else [] if named is None else [named]
        values = _choices(schema)
        if named is None and values:
            types = {_type_name(value) for value in values}
            names = sorted(types)
        kinds = [name if isinstance(name, str) else repr(name) for name in names if name != "null"]
        if named is None and not values:
            keyword = next((key for key in ("allOf", "not", "if", "patternProperties") if key in schema), None)
            self.problem(
                (*path, keyword) if keyword else path,
                f"{keyword} has no column type" if keyword else "The schema has no type",
                f"Write a type: {', '.join(_KEYWORDS)}",
            )
        elif len(kinds) != 1 or kinds[0] not in _KEYWORDS:
            remedy = f'Write one of {", ".join(_KEYWORDS)}, or a list of one of them and "null"'
            shown = repr(named) if named else ", ".join(names)
            self.problem((*path, "type") if named else path, f"{shown} is not a single column type", remedy)
        else:
            return kinds[0], "null" in names and (not values or None in values)
        return None, False

    def _unsupported(self, keyword: str, kind: str, path: Path) -> None:
        if keyword == "additionalProperties":
            return
        belongs = next((other for other, known in _KEYWORDS.items() if keyword in known), None)
        if belongs is not None:
            problem = f"{keyword} does not apply to a value of type {kind}"
        else:
            problem = f"{keyword} is not supported for a value of type {kind}"
        self.problem((*path, keyword), problem, f"Leave it out. Supported: {', '.join(sorted(_KEYWORDS[kind])) or 'none'}")

    def _built(self, kind: str, schema: Mapping[str, Any], path: Path, through: tuple[str, ...]) -> SchemaNode:
        if not self._values_fit(kind, schema, path) or not self._limits_agree(kind, schema, path):
            return _Boolean()
        choices = tuple(value for value in _choices(schema) if value is not None)
        if kind == "array":
            return self._array(schema, path, through)
        if kind == "object":
            return self._object(schema, path, through)
        if kind == "boolean":
            return _Boolean()
        node = _String(schema, choices) if kind == "string" else _Number(schema, choices, whole=kind == "integer")
        self._choices_hold(node, choices, (*path, "enum" if "enum" in schema else "const"))
        return node

    def _limits_agree(self, kind: str, schema: Mapping[str, Any], path: Path) -> bool:
        """Whether any value is within the limits: the engine would be asked for what cannot be."""
        pair = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}.get(kind)
        if pair is not None:
            agree = bool(schema.get(pair[0], 0) <= schema.get(pair[1], math.inf))
        elif kind == "integer":
            pair, agree = ("minimum", "maximum"), some_decimal(schema, 0)
        else:
            pair, agree = ("minimum", "maximum"), kind != "number" or some_decimal(schema, FLOAT_PLACES)
        if not agree:
            given = {key: schema[key] for key in (*pair, *COMPARISONS) if key in schema}
            shown = ", ".join(f"{key} {value}" for key, value in given.items())
            self.problem((*path, next(iter(given))), f"No {kind} is within the limits: {shown}", "Write limits that one meets")
        return agree

    def _choices_hold(self, node: SchemaNode, choices: tuple[Any, ...], path: Path) -> None:
        for choice in choices:
            try:
                node.check(choice, "The choice")
            except ValueError as error:  # of a pattern, too
                self.problem(path, str(error).splitlines()[0], "Leave it out, or change what it contradicts")

    def _values_fit(self, kind: str, schema: Mapping[str, Any], path: Path) -> bool:
        """Whether the keywords' own values are usable."""
        before = len(self.problems)
        for keyword in ("minLength", "maxLength", "minItems", "maxItems"):
            if keyword in schema and (type(schema[keyword]) is not int or schema[keyword] < 0):
                self.problem((*path, keyword), f"{schema[keyword]!r} is not a count", "Write a whole number")
        for keyword in COMPARISONS:
            if keyword in schema and (type(schema[keyword]) not in (int, float) or not -math.inf < schema[keyword] < math.inf):
                self.problem((*path, keyword), f"{schema[keyword]!r} is not a limit", "Write a number")
        if "enum" in schema and (not isinstance(schema["enum"], list) or not schema["enum"]):
            self.problem((*path, "enum"), "The value is not a list of choices", "Write, for example, [good, bad]")
        elif any(_type_name(value) not in (kind, "null") for value in _choices(schema)):
            keyword = "enum" if "enum" in schema else "const"
            self.problem((*path, keyword), f"Not every choice is of type {kind}", "Write choices of that type")
        if not isinstance(schema.get("pattern", ""), str):
            self.problem((*path, "pattern"), f"{schema['pattern']!r} is not a pattern", "Write a regular expression")
        return len(self.problems) == before

    def _array(self, schema: Mapping[str, Any], path: Path, through: tuple[str, ...]) -> SchemaNode:
        if "items" not in schema:
            return self.problem(path, "The array has no items", "Write, for example, items: {type: string}")
        items = self.node(schema["items"], (*path, "items"), through)
        if isinstance(items, _Array):
            self.problem((*path, "items"), "BigQuery has no array of arrays", "Put an object between the two")
        if items.nullable:
            self.problem((*path, "items"), "A BigQuery array cannot hold null", "Leave the null out")
        return _Array(schema, items)

    def _object(self, schema: Mapping[str, Any], path: Path, through: tuple[str, ...]) -> SchemaNode:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict) or not properties:
            return self.problem(path, "The object has no properties", "Write at least one under properties")
        if schema.get("additionalProperties", False) is not False:
            self.problem(
                (*path, "additionalProperties"),
                "Properties that are not named have no column",
                "Name them all, and write false here",
            )
        self._names_fit(properties, path)
        if not isinstance(required, list):
            self.problem((*path, "required"), "The value is not a list of properties", f"Write [{next(iter(properties))}]")
            required = []
        for name in [name for name in required if name not in list(properties)]:
            self.problem((*path, "required"), f"There is no property {name!r}", "Define it under properties, or leave it out")
        fields = {str(name): self.node(inner, (*path, "properties", name), through) for name, inner in properties.items()}
        closed = schema.get("additionalProperties") is False
        return _Object(fields, frozenset(map(str, required)), closed=closed)

    def _names_fit(self, properties: Mapping[str, Any], path: Path) -> None:
        seen: set[str] = set()
        for name in properties:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                self.problem(
                    (*path, "properties", name),
                    f"{name!r} is no field name that nightshift takes",
                    "Use letters (A to Z), digits and underscores, no digit first",
                )
            elif name.casefold() in seen:
                self.problem((*path, "properties", name), f"{name!r} appears twice", "Rename one: BigQuery ignores case")
            seen.add(str(name).casefold())


def some_decimal(schema: Mapping[str, Any], places: int) -> bool:
    """Whether a number of so many decimal places is within the limits; if of none, one of 64 bits."""
    low, high = (-(2**63), 2**63 - 1) if places == 0 else (-(10 ** (400 + places)), 10 ** (400 + places))
    at = {name: Fraction(str(schema[name])) * 10**places for name in COMPARISONS if name in schema}
    least = max(low, math.ceil(at.get("minimum", low)), math.floor(at.get("exclusiveMinimum", low - 1)) + 1)
    most = min(high, math.floor(at.get("maximum", high)), math.ceil(at.get("exclusiveMaximum", high + 1)) - 1)
    return bool(least <= most)


def storable(text: str) -> str:
    """A text that Parquet accepts: unpaired surrogates, which only JSON escapes can make, become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if isinstance(values, list) else []


def _type_name(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _wrong(value: Any, where: str, wanted: str) -> InvalidAnswer:
    return InvalidAnswer(f"{where} is not {wanted}: {_shown(value)}")


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:196]} ..."
