"""Operators and conditional expressions take the types that GoogleSQL lets them take, in a dry run too.

DuckDB casts what GoogleSQL refuses: it compares a TIMESTAMP with a DATE, and makes a STRING of an INT64 where a CASE has both.
A query with such a mistake would run here and fail in production. The rules are those of "Conversion rules" (coercion,
supertypes, literals, parameters), "Operators" and "Conditional expressions"; the words are BigQuery's, as people report them.

Only expressions whose types are known (`kinds`) are judged. Calls of functions beside the ones named here are left to DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from sqlglot import exp

from local.bigquery import kinds
from local.bigquery.kinds import TIMES, Kind

NUMBERS: Final = ("INT64", "FLOAT64", "NUMERIC", "BIGNUMERIC")
FAMILIES: Final = {**dict.fromkeys(NUMBERS, "number"), "DATE": "day", "DATETIME": "day"}
"""Types that coerce to one another; any other type only to itself."""
# In the order of the types' numbers, in which BigQuery lists a set of them.
ORDER: Final = ("INT64", "BOOL", "FLOAT64", "STRING", "BYTES", "DATE", "ARRAY", "STRUCT", "TIMESTAMP", "TIME", "DATETIME")

COMPARISONS: Final[dict[type[exp.Expr], str]] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
UNEQUAL: Final[dict[type[exp.Expr], str]] = {exp.EQ: "Equality", exp.NEQ: "Inequality"}
ARITHMETIC: Final[dict[type[exp.Expr], str]] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}
# What each function calls its arguments of one type.
FUNCTIONS: Final[dict[type[exp.Expr], tuple[str, str]]] = {
    exp.Coalesce: ("COALESCE", "COALESCE(T1, [T1, ...])"),
    exp.Nullif: ("NULLIF", "NULLIF(T1, T1)"),
    exp.Greatest: ("GREATEST", "GREATEST(T1, [T1, ...])"),
    exp.Least: ("LEAST", "LEAST(T1, [T1, ...])"),
}
CLAUSES: Final[dict[type[exp.Expr], str]] = {
    exp.Where: "WHERE clause",
    exp.Having: "HAVING clause",
    exp.Qualify: "QUALIFY clause",
}
# A column takes other types than its own: "Conversion rules", coercion.
WIDER: Final = {
    "INT64": ("NUMERIC", "BIGNUMERIC", "FLOAT64"),
    "NUMERIC": ("BIGNUMERIC", "FLOAT64"),
    "BIGNUMERIC": ("FLOAT64",),
    "DATE": ("DATETIME",),
}


def problem(tree: exp.Expr, columns: kinds.Columns, parameters: Mapping[str, exp.DataType]) -> str | None:
    """BigQuery's error about a statement, whose tables are named in full; None if nothing is known to be wrong."""
    for statement in kinds.as_query(tree, columns):
        try:
            kinds.typed(statement, columns, parameters)
        except Exception:  # of sqlglot, about a query that it does not understand: DuckDB judges it
            continue
        found = next(_problems(statement), None)
        if found is not None:
            return found
    return None


def _problems(statement: kinds.Statement) -> Iterator[str]:
    for node in statement.query.walk():
        # The columns of a PIVOT are written like an IN.
        if not isinstance(node.parent, exp.Pivot) and (message := _of_node(node)):
            yield f"{message}{_place(node)}"
    for number, (value, name, kind, how) in enumerate(statement.assigned, 1):
        if (message := _assignment(value, name, kind, how, number)) is not None:
            yield f"{message}{_place(value)}"


def _of_node(node: exp.Expr) -> str | None:
    if type(node) in COMPARISONS:
        return _comparison(node)
    if type(node) in ARITHMETIC:
        return _arithmetic(node)
    if isinstance(node, exp.Between):
        return _operator("BETWEEN", "T1 BETWEEN T1 AND T1", [node.this, node.args["low"], node.args["high"]])
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return _operator("IS DISTINCT FROM", "T1 IS DISTINCT FROM T1", [node.this, node.expression])
    if isinstance(node, exp.In):
        return _membership(node)
    if isinstance(node, exp.Like) and not isinstance(node.expression, exp.Any | exp.All):
        pair = (kinds.of(node.this), kinds.of(node.expression))
        return _no_operator("LIKE", pair) if None not in pair and pair not in (("STRING",) * 2, ("BYTES",) * 2) else None
    if type(node) in FUNCTIONS:
        name, signature = FUNCTIONS[type(node)]
        return _function(name, signature, [argument for argument in (node.this, *_rest(node)) if argument is not None])
    if isinstance(node, exp.If | exp.Case):
        return _conditional(node)
    if isinstance(node, exp.Array) and node.expressions and not _agree(node.expressions):
        return f"Array elements of types {_set(node.expressions)} do not have a common supertype"
    if isinstance(node, exp.Ordered) and (kind := _kind(node.this)) in ("ARRAY", "GEOGRAPHY", "JSON", "STRUCT"):
        return f"ORDER BY does not support expressions of type {kind}"
    if isinstance(node, exp.SetOperation) and not isinstance(kinds.outer(node), exp.SetOperation):
        return _set_operation(node)
    return _condition(node)


def _rest(node: exp.Expr) -> list[exp.Expr]:
    return [*node.expressions, *([node.expression] if node.args.get("expression") is not None else [])]


def _agree(operands: list[exp.Expr]) -> bool:
    """Whether expressions have a common supertype, as far as their types are known."""
    firm = {FAMILIES.get(kind, kind) for kind in (kinds.of(each) for each in operands if not kinds.is_soft(each)) if kind}
    if len(firm) > 1:
        return False
    soft = any(kinds.is_soft(each) for each in operands)
    return not (soft and firm) or firm <= {"STRING", "day", "TIME", "TIMESTAMP"}


def _kind(operand: exp.Expr) -> Kind:
    return "STRING" if kinds.is_soft(operand) else kinds.of(operand)


def _types(operands: list[exp.Expr]) -> str:
    """For a message. BigQuery lists a NULL as an INT64."""
    return ", ".join(_kind(each) or ("INT64" if isinstance(kinds.bare(each), exp.Null) else "(unknown)") for each in operands)


def _set(operands: list[exp.Expr]) -> str:
    found = {kind for kind in map(_kind, operands) if kind}
    return f"{{{', '.join(sorted(found, key=lambda kind: ORDER.index(kind) if kind in ORDER else len(ORDER)))}}}"


def _supertype(operands: list[exp.Expr]) -> str:
    return f"    Unable to find common supertype for templated argument <T1>\n      Input types for <T1>: {_set(operands)}"


def _operator(name: str, signature: str, operands: list[exp.Expr]) -> str | None:
    if _agree(operands):
        return None
    return (
        f"No matching signature for operator {name} for argument types: {_types(operands)}\n"
        f"  Signature: {signature}\n{_supertype(operands)}"
    )


def _function(name: str, signature: str, operands: list[exp.Expr], before: str = "") -> str | None:
    if _agree(operands):
        return None
    return (
        f"No matching signature for function {name}\n  Argument types: {before}{_types(operands)}\n"
        f"  Signature: {signature}\n{_supertype(operands)}"
    )


def _no_operator(name: str, types: tuple[Kind, Kind]) -> str:
    return f"No matching signature for operator {name} for argument types: {', '.join(filter(None, types))}"


def _comparison(node: exp.Expr) -> str | None:
    name, operands = COMPARISONS[type(node)], [node.this, node.expression]
    for kind in map(_kind, operands):
        if kind in ("JSON", "ARRAY", "GEOGRAPHY") or (kind == "STRUCT" and type(node) not in UNEQUAL):
            what = UNEQUAL.get(type(node), name)
            return f"{what} is not defined for arguments of type {kind}"
    return _operator(name, f"T1 {name} T1", operands)


def _arithmetic(node: exp.Expr) -> str | None:
    name, left, right = ARITHMETIC[type(node)], _kind(node.this), _kind(node.expression)
    # A literal STRING may be a date.
    if left is None or right is None or kinds.is_soft(node.this) or kinds.is_soft(node.expression):
        return None
    taken = left in NUMBERS and right in NUMBERS
    if name in "+-":
        taken |= (left, right) in (("DATE", "INT64"), ("INTERVAL", "INTERVAL")) or (left in TIMES and right == "INTERVAL")
    if name == "+":
        taken |= (left, right) == ("INT64", "DATE") or (left == "INTERVAL" and right in TIMES)
    if name == "-":
        taken |= left in TIMES and FAMILIES.get(left, left) == FAMILIES.get(right, right)
    if name in "*/":
        taken |= (left, right) == ("INTERVAL", "INT64") or (name == "*" and (left, right) == ("INT64", "INTERVAL"))
    return None if taken else _no_operator(name, (left, right))


def _membership(node: exp.In) -> str | None:
    values = list(node.expressions)
    if query := node.args.get("query"):
        inner = query.this if isinstance(query, exp.Subquery) else query
        values = [] if inner.is_star else inner.selects[:1]
    elif unnest := node.args.get("unnest"):
        array = unnest.expressions[0] if isinstance(unnest, exp.Unnest) and unnest.expressions else unnest
        element = (
            array.type.expressions[0] if array.type and array.type.this == kinds.Type.ARRAY and array.type.expressions else None
        )
        values = [exp.Cast(this=exp.null(), to=element, _type=element)] if element is not None else []
    if not values or _agree([node.this, *values]):
        return None
    return f"No matching signature for operator IN for argument types {_types([node.this])} and {_set(values)}"


def _conditional(node: exp.If | exp.Case) -> str | None:
    if isinstance(node, exp.If):
        if isinstance(node.parent, exp.Case):
            return None
        results = [branch for branch in (node.args.get("true"), node.args.get("false")) if branch is not None]
        condition = _kind(node.this)
        if condition not in (None, "BOOL"):
            return f"No matching signature for function IF\n  Argument types: {condition}, {_types(results)}"
        return _function("IF", "IF(BOOL, T1, T1)", results, "BOOL, ")
    branches = node.args["ifs"]
    results = [
        each for each in (*(branch.args.get("true") for branch in branches), node.args.get("default")) if each is not None
    ]
    if not _agree(results):
        return (
            "No matching signature for operator CASE; all THEN/ELSE arguments must be coercible to a common type but found: "
            f"{_types(results)}"
        )
    if node.this is not None and not _agree([node.this, *(branch.this for branch in branches)]):
        return f"No matching signature for operator CASE for argument types: {_types([node.this, *(b.this for b in branches)])}"
    for branch in branches if node.this is None else ():
        if _kind(branch.this) not in (None, "BOOL"):
            return f"CASE WHEN condition should return type BOOL, but returns type {_kind(branch.this)}"
    return None


def _set_operation(node: exp.SetOperation) -> str | None:
    if node.args.get("by_name") or node.args.get("on"):
        return None
    queries = list(_leaves(node))
    if any(not isinstance(query, exp.Select) or query.is_star for query in queries):
        return None
    word = f"{type(node).__name__.upper()} {'DISTINCT' if node.args.get('distinct') else 'ALL'}"
    for number, column in enumerate(zip(*(query.expressions for query in queries), strict=False), 1):
        if not _agree(list(column)):
            return f"Column {number} in {word} has incompatible types: {_types(list(column))}"
    return None


def _leaves(node: exp.Expr) -> Iterator[exp.Expr]:
    while isinstance(node, exp.Subquery | exp.Paren):
        node = node.this
    if isinstance(node, exp.SetOperation):
        yield from _leaves(node.this)
        yield from _leaves(node.expression)
    else:
        yield node


def _condition(node: exp.Expr) -> str | None:
    """A condition is a BOOL; DuckDB takes any number for one."""
    if type(node) in CLAUSES and (kind := _kind(node.this)) not in (None, "BOOL"):
        return f"{CLAUSES[type(node)]} should return type BOOL, but returns type {kind}"
    if isinstance(node, exp.Join) and (on := node.args.get("on")) is not None and (kind := _kind(on)) not in (None, "BOOL"):
        return f"JOIN ON clause should return type BOOL, but returns type {kind}"
    if isinstance(node, exp.And | exp.Or | exp.Not):
        operands = [each for each in (node.this, node.args.get("expression")) if each is not None]
        if any(_kind(each) not in (None, "BOOL") for each in operands):
            return f"No matching signature for operator {type(node).__name__.upper()} for argument types: {_types(operands)}"
    return None


def _assignment(value: exp.Expr, name: str, kind: Kind, how: str, number: int) -> str | None:
    own = _kind(value)
    if own is None or kind is None or own == kind or kind in WIDER.get(own, ()):
        return None
    if kinds.is_soft(value) and kind in TIMES:
        return None
    if own == "FLOAT64" and kind in NUMBERS[2:] and isinstance(kinds.bare(value), exp.Literal | exp.Neg):
        return None
    if how == "Assignment":
        return f"Value of type {own} cannot be assigned to {name}, which has type {kind}"
    what = f"{how} {number}" if how == "Query column" else how
    return f"{what} has type {own} which cannot be inserted into column {name}, which has type {kind}"


def _place(node: exp.Expr) -> str:
    """`` at [line:column]`` of the first name or literal of an expression that came with its place."""
    places = [(each.meta["start"], each.meta) for each in node.walk() if "start" in each.meta]
    if not places:
        return ""
    meta = min(places, key=lambda place: place[0])[1]
    return f" at [{meta['line']}:{meta['col'] - (meta['end'] - meta['start'])}]"
