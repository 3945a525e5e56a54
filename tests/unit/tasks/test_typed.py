"""JSON schemas as columns: types, values, everything that is refused, and agreement with a full validator."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from nightshift.tasks._served import unserved
from nightshift.tasks._typed import compile_checked, compile_schema
from nightshift.tasks.base import InvalidReply

pytestmark = pytest.mark.unit

STRING = {"type": "string"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        (STRING, pa.string()),
        ({"type": "string", "format": "date"}, pa.string()),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"const": "a"}, pa.string()),
        ({"type": "integer", "enum": [1, 2]}, pa.int64()),
        ({"type": "integer"}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["boolean"]}, pa.bool_()),
        ({"type": "array", "items": STRING}, pa.list_(pa.string())),
        (an_object(b=STRING, a={"type": ["integer", "null"]}), pa.struct([("b", pa.string()), ("a", pa.int64())])),
        (
            {"type": "array", "items": an_object(x={"type": "array", "items": {"type": "number"}})},
            pa.list_(pa.struct([("x", pa.list_(pa.float64()))])),
        ),
        (an_object(a={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}), pa.struct([("a", pa.int64())])),
        (
            {**an_object(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/A"}), "$defs": {"A": an_object(n={"type": "integer"})}},
            pa.struct([("a", pa.struct([("n", pa.int64())])), ("b", pa.struct([("n", pa.int64())]))]),
        ),
    ],
)
def test_types(schema: dict[str, Any], arrow: pa.DataType) -> None:
    node, problems = compile_schema(schema)

    assert problems == []
    assert node.arrow() == arrow


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3.0", 3),
        ({"type": "number"}, "3", 3.0),
        (STRING, '"\\ud800x\\ud83d\\ude00"', "\ufffdx😀"),
        (an_object(a=STRING), '{"b": 1}', {"a": None}),
        (an_object(a=STRING), '{"a": "1", "a": "2"}', {"a": "2"}),
        (an_object(a={"type": ["string", "null"]}), '{"a": null}', {"a": None}),
        (an_object(a={"type": ["string", "null"], "enum": ["x", None]}), '{"a": null}', {"a": None}),
    ],
)
def test_values(schema: dict[str, Any], text: str, value: Any) -> None:
    assert compile_checked(json.dumps(schema)).parse(text) == value


@pytest.mark.parametrize(
    ("schema", "text", "message"),
    [
        ({"type": "integer"}, "true", "the answer is not a whole number: True"),
        ({"type": "integer"}, "9223372036854775808", "64 bits"),
        ({"type": "integer", "minimum": 1}, "0", "the answer is less than 1: 0"),
        ({"type": "integer", "exclusiveMaximum": 1}, "1", "the answer is not less than 1: 1"),
        ({"type": "number"}, "1e999", "a number that a float holds"),
        ({"type": "number"}, "1" + "0" * 400, "a number that a float holds"),
        ({"type": "number"}, "false", "not a number"),
        ({"type": "boolean"}, "1", "not true or false"),
        ({"type": "string", "minLength": 2}, '"a"', "2 to inf characters"),
        ({"type": "string", "pattern": "^a+$"}, '"b"', "matches"),
        ({"type": "array", "items": STRING, "maxItems": 1}, '["a", "b"]', "has 2 items"),
        ({"type": "array", "items": STRING}, '["a", null]', r"the answer\[1\] is not a text"),
        ({"type": "array", "items": STRING}, '{"a": 1}', "not an array"),
        (an_object(a=an_object(b=STRING)), '{"a": {"b": 7}}', "the answer.a.b is not a text: 7"),
        (an_object(a=STRING), '{"a": null}', "the answer.a is not a text: None"),
        ({**an_object(a=STRING), "required": ["a"]}, "{}", "the answer lacks a"),
        ({**an_object(a=STRING), "additionalProperties": False}, '{"b": 1}', "which the schema does not name"),
        (an_object(a=STRING), json.dumps({"a": ["x" * 1000] * 9}), "not a text"),
    ],
)
def test_values_of_another_form(schema: dict[str, Any], text: str, message: str) -> None:
    with pytest.raises(InvalidReply, match=message) as caught:
        compile_checked(json.dumps(schema)).parse(text)

    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("schema", "place", "problem"),
    [
        ({}, "", "has no type"),
        ({"type": "null"}, "type", "not a single column type"),
        ({"type": "date"}, "type", "not a single column type"),
        ({"type": ["string", "integer"]}, "type", "not a single column type"),
        ({"type": ["string", "null"]}, "", "must not be null"),
        ({"enum": ["a", 1]}, "", "not a single column type"),
        ({"type": "string", "enum": [1]}, "enum", "Not every choice"),
        ({"type": "string", "enum": []}, "enum", "not a list of choices"),
        ({"type": "string", "enum": "a"}, "enum", "not a list of choices"),
        ({"allOf": [STRING]}, "allOf", "no column type"),
        ({"anyOf": [STRING, {"type": "integer"}]}, "anyOf", "several types"),
        ({"type": "string", "minimum": 1}, "minimum", "does not apply"),
        ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems", "not supported"),
        ({"type": "string", "minLength": "1"}, "minLength", "is not a count"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength", "No string is within the limits: minLength 3, maxL"),
        ({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 0}, "minItems", "No array is within"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum", "No integer is within the limits: minimum 5, maximum 4"),
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "minimum", "No integer"),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, "exclusiveMinimum", "No integer"),
        ({"type": "integer", "minimum": 2**63}, "minimum", "No integer"),
        ({"type": "integer", "maximum": -(10**400)}, "maximum", "No integer"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "minimum", "No number is within"),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "maximum", "No number is within"),
        ({"type": "number", "minimum": math.nan}, "minimum", "nan is not a limit"),
        ({"type": "number", "maximum": math.inf}, "maximum", "inf is not a limit"),
        ({"type": "integer", "enum": [1, 2**70]}, "enum", "The choice is not a number of 64 bits"),
        ({"type": "integer", "enum": [1, 9], "maximum": 5}, "enum", "The choice is more than 5: 9"),
        ({"type": "string", "const": "abc", "maxLength": 2}, "const", "The choice is not a text of 0 to 2 characters"),
        ({"enum": ["a", "b"], "pattern": "^a$"}, "enum", "The choice is not a text that matches"),
        ({"type": "integer", "maximum": "1"}, "maximum", "is not a limit"),
        ({"type": "string", "pattern": 7}, "pattern", "7 is not a pattern"),
        ({"type": "array"}, "", "no items"),
        ({"type": "array", "items": [STRING]}, "items", "A schema must be a mapping"),
        ({"type": "array", "items": {"type": "array", "items": STRING}}, "items", "no array of arrays"),
        ({"type": "array", "items": {"type": ["string", "null"]}}, "items", "cannot hold null"),
        ({"type": "object"}, "", "no properties"),
        ({"type": "object", "properties": {}}, "", "no properties"),
        ({**an_object(a=STRING), "additionalProperties": STRING}, "additionalProperties", "not named"),
        ({**an_object(a=STRING), "required": ["b"]}, "required", "no property 'b'"),
        ({**an_object(a=STRING), "required": "a"}, "required", "not a list of properties"),
        (an_object(**{"a-b": STRING}), "properties.a-b", "no field name that nightshift takes"),
        (an_object(a=STRING, A=STRING), "properties.A", "appears twice"),
        (an_object(a=an_object(b={"type": "x"})), "properties.a.properties.b.type", "not a single column type"),
        ({"$ref": "http://x/y"}, "$ref", "cannot be followed"),
        ({"$ref": "#/$defs/A"}, "$ref", "There is no"),
        ({"$ref": "#/$defs/A", "$defs": {"A": an_object(a={"$ref": "#/$defs/A"})}}, "properties.a.$ref", "contains itself"),
    ],
)
def test_schemas_that_no_column_can_hold(schema: dict[str, Any], place: str, problem: str) -> None:
    _, problems = compile_schema(schema)

    assert place in [".".join(map(str, path)) for path, words, _ in problems if problem in words]
    assert all(remedy for _, _, remedy in problems)


class TestPatterns:
    @pytest.mark.timeout(120)
    def test_a_hostile_text_does_not_hold_the_process(self) -> None:
        """Python's own engine takes 44 s for 28 letters of the first, and twice as long for each further one."""
        for pattern in ("^(a+)+$", "^(a|a)*$", r"^(\w+\s?)+$", "^(.*)*x$"):
            node = compile_checked(json.dumps({"type": "string", "pattern": pattern}))
            with pytest.raises(InvalidReply, match="not a text that matches"):
                node.parse(json.dumps("a" * 60_000 + "!"))

    @pytest.mark.parametrize(
        ("pattern", "matches", "other"),
        [
            (r"^\d+$", "12", "\u0663"),
            (r"^\w+$", "a_1", "\u00e9"),
            (r"^\s$", "\u00a0", "x"),
            ("^a$", "a", "a\n"),
            ("b", "abc", "ac"),
            (r"^\u0041$", "A", "B"),
            ("^(?<n>a)$", "a", "b"),
            (r"^\p{L}$", "\u00e9", "1"),
            ("^.$", "\ud83d", ""),
        ],
    )
    def test_they_mean_what_they_mean_in_json_schema(self, pattern: str, matches: str, other: str) -> None:
        node = compile_checked(json.dumps({"type": "string", "pattern": pattern}))

        assert node.parse(json.dumps(matches)) == matches.replace("\ud83d", "\ufffd")
        with pytest.raises(InvalidReply, match="not a text that matches"):
            node.parse(json.dumps(other))

    def test_a_text_that_is_too_long_to_be_matched_is_no_answer(self) -> None:
        node = compile_checked(json.dumps({"type": "string", "pattern": "^a*$"}))

        assert node.parse(json.dumps("a" * 65_536)) == "a" * 65_536
        with pytest.raises(InvalidReply, match="has 65,537 characters; a text with a pattern has 65,536 at most"):
            node.parse(json.dumps("a" * 65_537))

    def test_a_run_of_an_earlier_release_is_still_read(self) -> None:
        """It may have a pattern that is refused today: its columns are known, and each answer says what is wrong."""
        node = compile_checked(json.dumps({"type": "string", "pattern": "(?=a)a"}))

        assert node.arrow() == pa.string()
        with pytest.raises(ValueError, match="is not a"):
            node.parse('"a"')


@pytest.mark.parametrize("seed", range(10))
def test_no_error_whatever_the_schema_holds(seed: int) -> None:
    chance = random.Random(seed)
    keys = [
        "type",
        "properties",
        "items",
        "required",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "$defs",
        "pattern",
        "minLength",
        "format",
        "minimum",
    ]
    plain = ["string", "object", "array", "#/$defs/a", "a", 1, -1, 0.5, None, True, [], {}]

    def anything(depth: int) -> Any:
        if not depth or chance.random() < 0.3:
            return chance.choice(plain)
        if chance.random() < 0.2:
            return [anything(depth - 1) for _ in range(chance.randint(0, 3))]
        return {chance.choice(keys): anything(depth - 1) for _ in range(chance.randint(0, 5))}

    for _ in range(500):
        kind = chance.choice(["object", "string", "integer", "number"])
        some = [key for key in keys[1:] if chance.random() < 0.4]
        schema = {"type": kind, **{key: anything(4) for key in some}}
        node, problems = compile_schema(schema)
        assert problems or node.arrow() is not None
        for backend in ("auto", "xgrammar", "guidance"):
            assert problems or list(unserved(schema, backend)) is not None


def test_a_schema_as_deep_as_bigquery_allows() -> None:
    def nested(depth: int) -> dict[str, Any]:
        return an_object(a=nested(depth - 1)) if depth else STRING

    assert compile_schema(nested(15))[1] == []
    assert "too deeply" in compile_schema(nested(17))[1][0][1]
    assert "too deeply" in compile_schema(nested(400))[1][0][1]


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_full_validator(seed: int) -> None:
    """What passes here is valid, and what is valid passes, for any schema that is accepted and any value."""
    chance = random.Random(seed)
    for _ in range(60):
        schema = _a_schema(chance, 3)
        node, problems = compile_schema(schema)
        assert problems == [], schema
        for _ in range(20):
            value = _a_value(chance, schema)
            try:
                converted = node.parse(json.dumps(value))
            except InvalidReply:
                converted = None
            valid = jsonschema.Draft202012Validator(schema).is_valid(value)
            assert valid == (converted is not None), (schema, value)
            if valid:
                assert pa.array([converted], node.arrow()).to_pylist() == [converted]


def _a_schema(chance: random.Random, depth: int, *, within_array: bool = False) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "enum"]
    kinds += ["object"] if depth else []
    kinds += ["array"] if depth and not within_array else []
    kind = chance.choice(kinds)
    if kind == "object":
        names = chance.sample("abcd", chance.randint(1, 3))
        made = an_object(**{name: _optional(chance, _a_schema(chance, depth - 1)) for name in names})
        made["required"] = chance.sample(names, chance.randint(0, len(names)))
        return {**made, "additionalProperties": False} if chance.random() < 0.5 else made
    if kind == "array":
        return {"type": "array", "items": _a_schema(chance, depth - 1, within_array=True), "minItems": chance.randint(0, 1)}
    if kind == "enum":
        return {"type": "string", "enum": ["x", "y"]}
    limits = {"integer": {"minimum": 0}, "number": {"exclusiveMaximum": 3}, "string": {"maxLength": 1}}
    return {"type": kind, **(limits.get(kind, {}) if chance.random() < 0.5 else {})}


def _optional(chance: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]} if chance.random() < 0.3 else schema


def _a_value(chance: random.Random, schema: dict[str, Any]) -> Any:
    """Mostly of the schema's form, at times of another."""
    if chance.random() < 0.1:
        return chance.choice(["xx", "x", -1, 2, 2.5, True, [], {}, {"z": 1}])
    if "anyOf" in schema:
        return None if chance.random() < 0.4 else _a_value(chance, schema["anyOf"][0])
    kind = schema["type"]
    if kind == "object":
        return {name: _a_value(chance, inner) for name, inner in schema["properties"].items() if chance.random() < 0.8}
    if kind == "array":
        return [_a_value(chance, schema["items"]) for _ in range(chance.randint(0, 2))]
    return {"string": "x", "integer": chance.choice([1, -1, 4.0]), "number": 2.5, "boolean": False}[kind]
