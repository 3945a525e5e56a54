"""The types of a statement's expressions, as far as they can be known without running it.

sqlglot infers them from the tables' columns, the parameters and the functions. What it cannot know has no kind, and no rule of
`signatures` applies to it: a correct query is not refused for it, and a wrong one may pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

Kind = str | None
"""A GoogleSQL type without its parameters, such as ``ARRAY``; None if it is unknown."""
Columns = Callable[[str, str, str], Mapping[str, str]]
"""The columns of a table (project, dataset, table) with their GoogleSQL types; none if it is unknown."""

Type = exp.DataType.Type
KINDS: Final[dict[Any, str]] = {
    **dict.fromkeys(exp.DataType.INTEGER_TYPES, "INT64"),
    **dict.fromkeys(exp.DataType.TEXT_TYPES, "STRING"),
    Type.FLOAT: "FLOAT64",
    Type.DOUBLE: "FLOAT64",
    Type.DECIMAL: "NUMERIC",
    Type.BIGDECIMAL: "BIGNUMERIC",
    Type.BOOLEAN: "BOOL",
    Type.BINARY: "BYTES",
    Type.VARBINARY: "BYTES",
    Type.DATE: "DATE",
    Type.TIME: "TIME",
    # sqlglot's TIMESTAMP is without a time zone.
    Type.DATETIME: "DATETIME",
    Type.TIMESTAMP: "DATETIME",
    Type.TIMESTAMPTZ: "TIMESTAMP",
    Type.JSON: "JSON",
    Type.INTERVAL: "INTERVAL",
    Type.GEOGRAPHY: "GEOGRAPHY",
    Type.ARRAY: "ARRAY",
    Type.STRUCT: "STRUCT",
}
TIMES: Final = ("DATE", "TIME", "DATETIME", "TIMESTAMP")
SOFT: Final = "soft"
"""Metadata of a STRING that takes another type where one is needed: a literal or a parameter."""


@dataclass(frozen=True)
class Statement:
    """A statement as the query whose types it depends on.

    assigned: each expression that is written into a column, with the column's name and type, and how the statement writes it.
    """

    query: exp.Query
    assigned: tuple[tuple[exp.Expr, str, Kind, str], ...] = ()


def of(node: exp.Expr | None) -> Kind:
    """Of a NULL literal, None: it takes any type."""
    node = bare(node)
    if node is None or isinstance(node, exp.Null) or node.type is None:
        return None
    if isinstance(node, exp.DPipe):  # for sqlglot always a STRING
        return "STRING" if of(node.this) == of(node.expression) == "STRING" else None
    if isinstance(node, exp.Sub) and of(node.this) in TIMES and of(node.expression) in TIMES:  # for sqlglot a time
        return "INTERVAL"
    return KINDS.get(node.type.this)


def is_soft(node: exp.Expr | None) -> bool:
    """Whether a STRING can become a DATE, TIME, DATETIME or TIMESTAMP by itself ("Conversion rules": literals, parameters)."""
    node = bare(node)
    return node is not None and (bool(node.meta.get(SOFT)) or (isinstance(node, exp.Literal) and node.is_string))


def bare(node: exp.Expr | None) -> exp.Expr | None:
    while isinstance(node, exp.Paren | exp.Alias):
        node = node.this
    return node


def typed(statement: Statement, columns: Columns, parameters: Mapping[str, exp.DataType]) -> None:
    """Gives the nodes of a statement, whose tables are named in full, their types. Raises what sqlglot raises if it cannot."""
    query = statement.query
    for parameter in list(query.find_all(exp.Parameter)):
        known = parameters.get(parameter.name.lower())
        if (
            known is not None
            and not isinstance(parameter.this, exp.Parameter)
            and not isinstance(parameter.parent, exp.Parameter)
        ):
            typed_null = exp.cast(exp.null(), known.copy())
            typed_null.meta[SOFT] = KINDS.get(known.this) == "STRING"
            parameter.replace(typed_null)
    schema: dict[str, Any] = {}
    for table in query.find_all(exp.Table):
        if table.catalog and table.db and isinstance(table.this, exp.Identifier):
            found = columns(table.catalog, table.db, table.name)
            if found:
                schema.setdefault(table.catalog, {}).setdefault(table.db, {})[table.name] = found
    qualify(
        query,
        dialect="bigquery",
        schema=schema,
        validate_qualify_columns=False,
        quote_identifiers=False,
        identify=False,
    )
    annotate_types(query, schema=schema, dialect="bigquery")


def outer(query: exp.Expr) -> exp.Expr | None:
    outer = query.parent
    while isinstance(outer, exp.Subquery | exp.Paren):
        outer = outer.parent
    return outer


def as_query(tree: exp.Expr, columns: Columns) -> Iterator[Statement]:
    """The queries whose types a statement depends on; its tables are named in full."""
    if isinstance(tree, exp.Query) and not isinstance(tree, exp.Values):
        yield Statement(tree)
    elif isinstance(tree, exp.Export) or (isinstance(tree, exp.Create) and isinstance(tree.expression, exp.Query)):
        inner = tree.this if isinstance(tree, exp.Export) else tree.expression
        if isinstance(inner, exp.Query):
            yield Statement(inner)
    elif isinstance(tree, exp.Insert):
        yield from _inserted(tree, columns)
    elif isinstance(tree, exp.Update | exp.Delete):
        yield _changed(tree, columns)
    elif isinstance(tree, exp.Merge):
        yield _merged(tree, columns)


def _of_table(table: exp.Expr, columns: Columns) -> Mapping[str, str]:
    target = table.find(exp.Table)
    return columns(target.catalog, target.db, target.name) if target is not None else {}


def _assigned(values: list[exp.Expr], names: list[str], known: Mapping[str, str], how: str) -> tuple[Any, ...]:
    by_name = {name.lower(): exp.DataType.build(type_, dialect="bigquery").this for name, type_ in known.items()}
    return tuple((value, name, KINDS.get(by_name.get(name.lower())), how) for value, name in zip(values, names, strict=False))


def _inserted(tree: exp.Insert, columns: Columns) -> Iterator[Statement]:
    known = _of_table(tree.this, columns)
    names = [column.name for column in tree.this.expressions] if isinstance(tree.this, exp.Schema) else list(known)
    body = tree.expression
    if isinstance(body, exp.Values):
        for row in body.expressions:
            values = list(row.expressions) if isinstance(row, exp.Tuple) else [row]
            select = exp.Select(expressions=values)
            yield Statement(select, _assigned(select.expressions, names, known, "Value"))
    elif isinstance(body, exp.Select):
        # A star may stand for several columns.
        pairs = () if body.is_star else _assigned(body.expressions, names, known, "Query column")
        yield Statement(body, pairs)
    elif isinstance(body, exp.Query):
        yield Statement(body)


def _changed(tree: exp.Update | exp.Delete, columns: Columns) -> Statement:
    sets = [item for item in tree.expressions if isinstance(item, exp.EQ)] if isinstance(tree, exp.Update) else []
    select = exp.Select(expressions=[item.expression for item in sets] or [exp.Literal.number(1)])
    select.set("from_", exp.From(this=tree.this))
    if isinstance(tree, exp.Update) and (origin := tree.args.get("from_")):
        select.append("joins", exp.Join(this=origin.this))
    select.set("where", tree.args.get("where"))
    names = [item.this.name for item in sets]
    return Statement(select, _assigned(select.expressions, names, _of_table(tree.this, columns), "Assignment"))


def _merged(tree: exp.Merge, columns: Columns) -> Statement:
    known = _of_table(tree.this, columns)
    values: list[exp.Expr] = []
    names: list[str] = []
    conditions: list[exp.Expr] = []
    for when in tree.args["whens"].expressions:
        then = when.args.get("then")
        if when.args.get("condition"):
            conditions.append(when.args["condition"])
        if isinstance(then, exp.Update):
            sets = [item for item in then.expressions if isinstance(item, exp.EQ)]
            values += [item.expression for item in sets]
            names += [item.this.name for item in sets]
        elif isinstance(then, exp.Insert) and isinstance(then.expression, exp.Tuple) and isinstance(then.this, exp.Tuple):
            values += then.expression.expressions
            names += [column.name for column in then.this.expressions]
    select = exp.Select(expressions=[*(values or [exp.Literal.number(1)]), *conditions])
    select.set("from_", exp.From(this=tree.this))
    select.append("joins", exp.Join(this=tree.args["using"], on=tree.args.get("on")))
    return Statement(select, _assigned(select.expressions[: len(values)], names, known, "Assignment"))
