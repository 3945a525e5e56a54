"""What a query reveals without a warehouse: whether it is one SELECT over @partition, and which columns it returns.

The warehouse judges the rest (types, tables, functions) in a dry run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final, Self

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.bigquery import BigQueryParser
from sqlglot.tokenizer_core import Token

from nightshift.spec.periods import END, PARAMETER

Columns = tuple[str, ...] | None
"""Column names in order, as the query spells them; None if they cannot be known."""
TOKENS_MAX: Final = 20_000
"""Of a query. The parser takes up to half a second for so many."""
COLUMNS_MAX: Final = 10_000
"""Of a query's result, by BigQuery's limits. A chain of stars that doubles the columns at each step stops here."""

# sqlglot warns about statements that it only partly supports; they are refused below, with our own message.
logging.getLogger("sqlglot").addHandler(logging.NullHandler())


class BadQuery(ValueError):
    """A query that cannot be a job's source. line: of the query, from 1; None if unknown."""

    def __init__(self, problem: str, remedy: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.line = problem, remedy, line


def parse(query: str) -> exp.Query:
    """Raises BadQuery for anything that does not parse or is not exactly one SELECT."""
    if "{{" in query or "{%" in query:
        raise BadQuery(
            "The query is not rendered as a template", "Write @partition, the date of the run, instead of {{ ds }} and the like"
        )
    try:
        statements = [statement for statement in _statements(query) if statement]
    except BadQuery:
        raise
    except ParseError as error:
        # Its functions' own checks give no place.
        first: dict[str, Any] = error.errors[0] if error.errors else {"description": str(error)}
        near = f" near {first['highlight']!r}" if first.get("highlight") else ""
        # For a missing operand sqlglot names one of its own classes.
        reason = "something is missing there" if first["description"].startswith("Required keyword") else first["description"]
        raise BadQuery(f"The query does not parse{near}: {reason}", "Correct the SQL", first.get("line")) from None
    except SqlglotError:
        detail = "a string, name or comment is not closed"
        raise BadQuery(
            f"The query does not parse: {detail}", "Correct the SQL; check quotes, backquotes and comments"
        ) from None
    except (RecursionError, _TooMuchWork):
        raise BadQuery("The query does not parse: it is nested too deeply", "Write it with fewer levels of brackets") from None
    except Exception as error:  # sqlglot's builders of functions index arguments that may be missing
        raise BadQuery(
            f"The query does not parse: its parser stops with {type(error).__name__}", "Check the arguments of its functions"
        ) from None
    if len(statements) != 1:
        problem = f"The query has {len(statements)} statements" if statements else "The query has no statement"
        raise BadQuery(problem, "Write exactly one SELECT")
    statement = statements[0]
    if not isinstance(statement, exp.Query):
        words = re.sub(r"(?s)/\*.*?\*/|--[^\n]*|#[^\n]*", " ", query).split()
        raise BadQuery(
            f"The query is not a SELECT: it begins with {words[0].upper()}", "Write one SELECT; nightshift itself publishes"
        )
    return statement


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
    if len(tokens) > TOKENS_MAX:
        raise BadQuery(
            f"The query has more than {TOKENS_MAX:,} words and signs", "Keep long lists in a table, and join it in the query"
        )
    return _Parser(dialect=dialect, error_level=ErrorLevel.RAISE).within(tokens).parse(tokens, query)


def parameters(query: exp.Query, *, periods: bool = False) -> Iterator[BadQuery]:
    """What is wrong with the parameters: @partition must be used; with periods, @partition_end may be; there are no others."""
    used = {parameter.name for parameter in query.find_all(exp.Parameter) if _is_named(parameter)}
    if periods:
        known, remedy = {PARAMETER, END}, f"Write @{PARAMETER} and @{END}, the start and end of the run's period"
        condition = f"the time, for example WHERE uploaded_at >= @{PARAMETER} AND uploaded_at < @{END}"
    else:
        known, remedy = {PARAMETER}, f"Write @{PARAMETER}, the date of the run; it is the only parameter"
        condition = f"the date, for example WHERE snapshot_date = @{PARAMETER}"
    if query.find(exp.Placeholder):
        yield BadQuery("The query uses the parameter '?'", remedy)
    for name in sorted(used - known):
        yield BadQuery(f"The query uses @{name}", remedy)
    if PARAMETER not in {name.lower() for name in used}:
        yield BadQuery(
            f"The query does not use @{PARAMETER}, so every run would read the same rows", f"Add a condition on {condition}"
        )


def _is_named(parameter: exp.Parameter) -> bool:
    # @@time_zone is a parameter within a parameter: a system variable.
    return not isinstance(parameter.parent, exp.Parameter) and not isinstance(parameter.this, exp.Parameter)


def tables(query: exp.Query) -> tuple[str, ...]:
    """The tables that a query reads, as it names them, without backquotes: ``[project.]dataset.table``, sorted.

    A name of one part is a common table expression. INFORMATION_SCHEMA has no rows of a table. What a view or a function reads
    is known to the warehouse alone.
    """
    named = (
        [part.name for part in table.parts] for table in query.find_all(exp.Table) if isinstance(table.this, exp.Identifier)
    )
    found = (".".join(parts) for parts in named if len(parts) > 1)
    return tuple(sorted({name for name in found if "INFORMATION_SCHEMA" not in name.upper().split(".")}))


def columns(query: exp.Expr, outer: Mapping[str, Columns] | None = None) -> Columns:
    """The output columns of a query. outer: columns of the common table expressions in scope, by lower-case name."""
    scope = dict(outer or {})
    while isinstance(query, exp.Query):
        for cte in query.ctes:
            scope[cte.alias.lower()] = None  # what a recursive one sees of itself is unknown
            scope[cte.alias.lower()] = columns(cte.this, scope)
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
            found[alias] = columns(source, scope)
        elif isinstance(source, exp.Table) and not source.db and not source.args.get("pivots"):
            found[alias] = scope.get(source.name.lower())
        else:
            found[alias] = None
    return found
