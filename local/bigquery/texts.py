"""Texts of values are BigQuery's, so that a prompt or a key made in SQL is the cloud's.

- *CAST AS STRING*: a NUMERIC has no trailing zeros, a FLOAT64 the digits of ``%.15g`` or else ``%.17g`` and no ``.0``.
- *TO_JSON_STRING*: NaN and the infinities are strings; so are an INT64 or NUMERIC beyond 2^53, and a NUMERIC with a fraction; a
  TIMESTAMP has ``T`` and ``Z`` ("JSON functions", JSON encodings). With ``pretty_print`` it stays local-bigquery's.
- *Literals of BYTES* have the bytes that their escapes name: ``b'\\xff'`` is one.

The macros of ``texts.sql`` decide by the type that DuckDB finds. Structs and arrays are taken apart here, as far as their types
are known.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from local_bigquery.engine import database
from local_bigquery.sql import rules
from local_bigquery.sql.dialect import macro
from local_bigquery.sql.rules import literals, strings, typing
from sqlglot import exp

Type = exp.DataType.Type
NUMBERS: Final = {Type.DOUBLE, Type.FLOAT, Type.DECIMAL, Type.BIGDECIMAL}
TO_JSON_STRING: Final = "bq.main.to_json_string"


def install() -> None:
    """Call before the database is opened, which makes the macros."""
    database.FUNCTIONS = [*database.FUNCTIONS, Path(__file__).with_name("texts.sql")]
    replaced = {
        strings.float_to_string: number_to_string,
        typing.json_bytes: json_string,
        literals.byte_string: byte_string,
    }
    # translate has the list itself.
    rules.NODE_RULES[:] = [replaced.get(rule, rule) for rule in rules.NODE_RULES]


def number_to_string(node: exp.Expr, context: Any) -> exp.Expr:
    """A rule of local-bigquery for one node whose parts have been translated."""
    if not (isinstance(node, exp.Cast) and node.to.this in typing.TEXT):
        return node
    known = typing.kind(node.this)
    return macro("_string_of", node.this) if known in NUMBERS or known in (None, Type.UNKNOWN) else node


def byte_string(node: exp.Expr, context: Any) -> exp.Expr:
    if not isinstance(node, exp.ByteString):
        return node
    # sqlglot has decoded the escapes; each character is one byte.
    return exp.func("from_hex", exp.Literal.string(node.this.encode("latin-1").hex()))


def json_string(node: exp.Expr, context: Any) -> exp.Expr:
    if isinstance(node, exp.Anonymous) and node.name.lower() == TO_JSON_STRING and len(node.expressions) == 1:
        return _encoded(node.expressions[0], node.expressions[0].type, itertools.count())
    return cast(exp.Expr, typing.json_bytes(node, context))


def _encoded(value: exp.Expr, kind: exp.DataType | None, names: Iterator[int]) -> exp.Expr:
    """SQL of the JSON text of a value. kind: its type, if it is known. names: numbers for the names of lambdas' parameters."""
    if isinstance(value, exp.Struct) and (fields := _fields(value)) is not None:
        return _object([(name, _encoded(each, each.type, names)) for name, each in fields])
    if (
        kind is not None
        and kind.this == Type.STRUCT
        and kind.expressions
        and all(isinstance(f, exp.ColumnDef) for f in kind.expressions)
    ):
        parts = [
            (field.name, _encoded(exp.func("struct_extract", value.copy(), exp.Literal.string(field.name)), field.kind, names))
            for field in kind.expressions
        ]
        return exp.If(
            this=exp.Is(this=value.copy(), expression=exp.null()), true=exp.Literal.string("null"), false=_object(parts)
        )
    if kind is not None and kind.this == Type.ARRAY and kind.expressions:
        name = exp.to_identifier(f"j{next(names)}")
        element = exp.Lambda(this=_encoded(exp.column(name), kind.expressions[0], names), expressions=[name])
        texts = exp.func("array_to_string", exp.func("list_transform", value, element), exp.Literal.string(","))
        whole = exp.func("concat", exp.Literal.string("["), texts, exp.Literal.string("]"))
        return exp.If(this=exp.Is(this=value.copy(), expression=exp.null()), true=exp.Literal.string("null"), false=whole)
    return cast(exp.Expr, macro("_json_scalar", value))


def _fields(value: exp.Struct) -> list[tuple[str, exp.Expr]] | None:
    """Name and value of each field of STRUCT(...); None if one has no name in the text."""
    if not all(isinstance(field, exp.PropertyEQ) for field in value.expressions):
        return None
    return [(field.this.name, field.expression) for field in value.expressions]


def _object(fields: list[tuple[str, exp.Expr]]) -> exp.Expr:
    parts: list[exp.Expr] = [exp.Literal.string("{")]
    for number, (name, text) in enumerate(fields):
        parts += [exp.Literal.string(f"{',' if number else ''}{json.dumps(name, ensure_ascii=False)}:"), text]
    return exp.func("concat", *parts, exp.Literal.string("}"))
