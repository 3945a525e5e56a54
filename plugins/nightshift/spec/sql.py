"""What a query reveals without a warehouse: whether it is one SELECT over @partition, and which columns it returns.

The warehouse judges the rest (types, tables, functions, and grammar that sqlglot does not know) in a dry run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Self

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError
from sqlglot.parsers.bigquery import BigQueryParser
from sqlglot.tokenizer_core import Token

from nightshift.spec import lexer, one_select
from nightshift.spec.lexer import Kind, Word
from nightshift.spec.one_select import BadQuery as BadQuery
from nightshift.spec.periods import END, PARAMETER

Columns = tuple[str, ...] | None
"""Column names in order, as the query spells them; None if they cannot be known."""
TOKENS_MAX: Final = 20_000
"""Of a query. The parser takes up to half a second for that many."""
COLUMNS_MAX: Final = 10_000
"""Of a query's result, by BigQuery's limits. A chain of stars that doubles the columns at each step stops here."""
UNNAMED_SHOWN: Final = 3
UNNAMED_CHARS: Final = 60
"""Expressions without a name that a message shows, and characters of each."""

# sqlglot warns about statements that it only partly supports.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Query:
    """One SELECT, as far as it is understood.

    tree: None for SQL that sqlglot does not know; then tables and columns are unknown, and the dry run in the task `plan`
    judges the query. unread: where sqlglot stopped, in words; None if it did not.
    """

    words: tuple[Word, ...]
    tree: exp.Query | None
    unread: str | None = None


def parse(query: str) -> Query:
    """Raises BadQuery for what is not exactly one SELECT, and for SQL that no dialect takes.

    Whether it is one statement, and that a SELECT, is read from its words alone: sqlglot may cut a text otherwise.
    """
    try:
        words = lexer.words(query)
        plain = lexer.without_comments(query)
    except lexer.Unclosed as error:
        raise BadQuery(
            f"The query does not parse: {error.what.lower()} is not closed",
            "Correct the SQL; check quotes, backquotes and comments",
            error.line,
        ) from None
    if len(words) > TOKENS_MAX:
        raise BadQuery(
            f"The query has more than {TOKENS_MAX:,} words and signs", "Keep long lists in a table, and join it in the query"
        )
    one_select.check(words)
    try:
        statements = [statement for statement in _statements(plain) if statement]
    except (RecursionError, _TooMuchWork):
        raise BadQuery("The query does not parse: it is nested too deeply", "Write it with fewer levels of brackets") from None
    except Exception as error:  # of sqlglot's grammar, and of its builders of functions, which index missing arguments
        return Query(tuple(words), None, _where(error))
    statement = statements[0] if len(statements) == 1 else None
    # sqlglot ends a quoted name at an escaped backquote.
    cut_alike = not any(word.kind is Kind.NAME and "\\" in word.text for word in words)
    if isinstance(statement, exp.Query) and cut_alike:
        return Query(tuple(words), statement)
    return Query(tuple(words), None, "its shape is none that it knows")


def unread(query: str) -> str | None:
    """A sentence about a valid query that only BigQuery understands; None if it is understood here. Raises BadQuery."""
    stopped = parse(query).unread
    if stopped is None:
        return None
    return (
        f"source.query is not understood here beyond {stopped}, so its columns are not checked. BigQuery judges it in the task "
        "plan, before anything is computed."
    )


def _where(error: Exception) -> str:
    """Of what sqlglot does not know."""
    first: dict[str, Any] = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
    line = f"line {first['line']}" if first.get("line") else ""
    near = f"near {first['highlight']!r}" if first.get("highlight") else ""
    return " ".join(filter(None, (line, near))) or "one of its functions"


class _TooMuchWork(Exception):
    """The parser has taken far more steps than a query of this length needs."""


class _Parser(BigQueryParser):
    """Limits the parser's steps: it reads ``ARRAY[``, ``STRUCT(`` and others twice at each level, so 30 levels take hours.

    Ordinary queries take one or two steps a token, five levels of STRUCT ten.
    """

    _steps_left = 0

    def within(self, tokens: list[Token]) -> Self:
        self._steps_left = 30_000 + 20 * len(tokens)
        return self

    def _advance(self, times: int = 1) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _TooMuchWork
        super()._advance(times)


def _statements(query: str) -> list[exp.Expr | None]:
    dialect = Dialect.get_or_raise("bigquery")
    tokens = dialect.tokenize(query)
    return _Parser(dialect=dialect, error_level=ErrorLevel.RAISE).within(tokens).parse(tokens, query)


def parameters(query: Query, *, periods: bool = False) -> Iterator[BadQuery]:
    """What is wrong with the parameters: @partition must be used; with periods, @partition_end may be; there are no others."""
    used = one_select.parameters(query.words)
    if periods:
        known, remedy = {PARAMETER, END}, f"Write @{PARAMETER} and @{END}, the start and end of the run's period"
        condition = f"the time, for example WHERE uploaded_at >= @{PARAMETER} AND uploaded_at < @{END}"
    else:
        known, remedy = {PARAMETER}, f"Write @{PARAMETER}, the date of the run; it is the only parameter"
        condition = f"the date, for example WHERE snapshot_date = @{PARAMETER}"
    if one_select.POSITIONAL in used:
        yield BadQuery("The query uses the parameter '?'", remedy)
    for name in sorted(used - known - {one_select.POSITIONAL}):
        yield BadQuery(f"The query uses @{name}", remedy)
    if PARAMETER in {name.lower() for name in used}:
        return
    # A literal may hold braces. Without @partition they are most likely meant as a template.
    template = next((word for word in query.words if word.kind is Kind.TEXT and ("{{" in word.text or "{%" in word.text)), None)
    if template is not None:
        yield one_select.not_rendered(template)
    else:
        yield BadQuery(
            f"The query does not use @{PARAMETER}, so every run would read the same rows", f"Add a condition on {condition}"
        )


def tables(query: Query) -> tuple[str, ...]:
    """The tables that a query reads, as it names them without backquotes, ``[project.]dataset.table``, sorted; none if unknown.

    A name of one part is a common table expression. INFORMATION_SCHEMA has no rows of a table. What a view or a function reads
    is known to the warehouse alone.
    """
    found = query.tree.find_all(exp.Table) if query.tree is not None else ()
    named = ([part.name for part in table.parts] for table in found if isinstance(table.this, exp.Identifier))
    names = (".".join(parts) for parts in named if len(parts) > 1)
    return tuple(sorted({name for name in names if "INFORMATION_SCHEMA" not in name.upper().split(".")}))


def columns(query: Query) -> Columns:
    """The output columns of a query."""
    return _columns(query.tree, {}) if query.tree is not None else None


def unnamed(query: Query) -> str:
    """Which output columns have no name, as a sentence with a space after it; '' if all have one, or they are unknown."""
    tree = query.tree
    while isinstance(tree, exp.Subquery | exp.SetOperation):
        tree = tree.this
    items = [item for item in tree.selects if isinstance(tree, exp.Select) and not _named(item)] if tree else []
    shown = [item.sql(dialect="bigquery")[:UNNAMED_CHARS] for item in items[:UNNAMED_SHOWN]]
    return f"{', '.join(shown)} {'has' if len(items) == 1 else 'have'} no name in it: add AS. " if items else ""


def _named(item: exp.Expr) -> bool:
    return item.is_star or isinstance(item, exp.Alias | exp.Aliases | exp.Column | exp.Dot | exp.Paren)


def _columns(query: exp.Expr, outer: Mapping[str, Columns]) -> Columns:
    """outer: columns of the common table expressions in scope, by lower-case name."""
    scope = dict(outer)
    while isinstance(query, exp.Query):
        for cte in query.ctes:
            scope[cte.alias.lower()] = None  # what a recursive one sees of itself is unknown
            scope[cte.alias.lower()] = _columns(cte.this, scope)
        if isinstance(query, exp.Select):
            return None if query.args.get("kind") == "VALUE" else _selected(query, scope)
        if query.args.get("pivots") or query.args.get("by_name") or not isinstance(query, exp.Subquery | exp.SetOperation):
            return None
        query = query.this
    return None


def _selected(query: exp.Select, scope: Mapping[str, Columns]) -> Columns:
    sources = _sources(query, scope) if query.is_star else None
    names: list[str] = []
    for item in query.selects:
        if item.is_star:
            expanded = _star(item, sources)
            if expanded is None:
                return None
            names.extend(expanded)
        elif isinstance(item, exp.Alias | exp.Column | exp.Dot):
            names.append(item.output_name)
        elif isinstance(item, exp.Paren | exp.Aliases):
            return None
        if len(names) > COLUMNS_MAX:
            return None
    return tuple(names)


def _star(item: exp.Expr, sources: dict[str, Columns] | None) -> Columns:
    """The columns of ``*`` or ``alias.*``, known only when every table behind it is a common table expression or subquery.

    sources: as `_sources` finds them.
    """
    star = item.this if isinstance(item, exp.Column) else item
    if not isinstance(star, exp.Star) or star.args.get("rename"):
        return None
    if isinstance(item, exp.Column):
        known = sources.get(item.table.lower()) if sources else None
    elif sources is None or None in sources.values():
        return None
    elif len(sources) == 1:
        (known,) = sources.values()
    else:
        known = tuple(islice(chain.from_iterable(names or () for names in sources.values()), COLUMNS_MAX + 1))
    if known is None:
        return None
    excluded = {name.name.lower() for name in star.args.get("except_") or ()}
    # A chain of stars hands the same columns on, a thousand times in a long query.
    return tuple(name for name in known if name.lower() not in excluded) if excluded else known


def _sources(query: exp.Select, scope: Mapping[str, Columns]) -> dict[str, Columns] | None:
    """Columns of each table in FROM and JOIN, by lower-case alias; None if they are combined in a way not followed here."""
    joins = query.args.get("joins") or []
    origin = query.args.get("from_")
    if origin is None or query.args.get("laterals") or any(join.args.get("using") or join.method for join in joins):
        return None
    found: dict[str, Columns] = {}
    for number, source in enumerate([origin.this, *(join.this for join in joins)]):
        # A subquery may have no alias; the number keeps two of them apart.
        alias = source.alias_or_name.lower() or str(number)
        if isinstance(source, exp.Subquery):
            found[alias] = _columns(source, scope)
        elif isinstance(source, exp.Table) and not source.db and not source.args.get("pivots"):
            found[alias] = scope.get(source.name.lower())
        else:
            found[alias] = None
    return found
