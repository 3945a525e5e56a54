"""The shape of a query, read from its words, whatever its grammar is: one SELECT that is closed and complete.

GoogleSQL grows faster than any parser of it, so only what is wrong in every version of it is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from nightshift.spec.lexer import Kind, Word

POSITIONAL: Final = "?"
"""The name of a parameter without one."""
BEGINNINGS: Final = ("SELECT", "WITH", "FROM")
PIPE_WRITES: Final = ("INSERT", "CREATE", "EXPORT", "UPDATE", "DELETE", "MERGE", "DROP TABLE")
"""Pipe operators of GoogleSQL that write, after ``|>``."""
CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
# Reserved words and signs of which a value, a condition or a table must follow.
_OPERATORS: Final = ("=", "!=", "<>", "<=", ">=", "||", "=>")
_CLAUSES: Final = ("WHERE", "HAVING", "QUALIFY", "ON", "BY", "FROM", "UNION", "INTERSECT", "AND", "OR", "WHEN", "THEN", "ELSE")
EXPECTANT: Final = frozenset((*_OPERATORS, *_CLAUSES, "SELECT", "JOIN", "NOT", "LIKE", "BETWEEN", "|>"))
# What is none of these, and begins none.
NOTHING: Final = frozenset((*_OPERATORS, *_CLAUSES, ")", "]", "}", ",", "ORDER", "GROUP", "LIMIT", "END"))
_FUNCTION: Final = (
    "Create the function once, in a dataset (CREATE FUNCTION DATASET.NAME), and let the query call it by that name: the "
    "account of nightshift needs to read that dataset"
)
_WITH: Final = "Write the table as a WITH clause of the SELECT, or create it before the night"
_VALUE: Final = "Write the value where it is used, or in a WITH clause: WITH v AS (SELECT 7 AS days) SELECT ... FROM t, v"
_INSTEAD: Final = (
    *((("CREATE", *word, kind, "FUNCTION"), _FUNCTION) for word in ((), ("OR", "REPLACE")) for kind in ("TEMP", "TEMPORARY")),
    *((("CREATE", *word, kind, "TABLE"), _WITH) for word in ((), ("OR", "REPLACE")) for kind in ("TEMP", "TEMPORARY")),
    (("DECLARE",), _VALUE),
    (("SET",), _VALUE),
)
"""What one SELECT has in place of the statements of a script that begin so."""
_AFTER_PIPE: Final = frozenset(("WHERE", "ORDER", "LIMIT", "UNION", "INTERSECT"))


class BadQuery(ValueError):
    """A query that cannot be a job's source. line: of the query, from 1; None if unknown."""

    def __init__(self, problem: str, remedy: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.line = problem, remedy, line


def check(words: Sequence[Word]) -> None:
    """Raises BadQuery unless the words are one SELECT, without a template, closed and without a gap that is certain."""
    template = next((word for word in words if word.text in ("{{", "{%")), None)
    if template is not None:
        raise not_rendered(template)
    statement = one_statement(words)
    begins = next((word.upper or word.text for word in statement if word.text != "("), "(")
    if begins not in BEGINNINGS:
        remedy = _instead_of([statement]) or "Write one SELECT; nightshift itself publishes"
        raise BadQuery(f"The query is not a SELECT: it begins with {begins}", remedy)
    _check_pipes(statement)
    _check_brackets(statement)
    _check_gaps(statement)


def not_rendered(template: Word) -> BadQuery:
    return BadQuery(
        "The query is not rendered as a template",
        "Write @partition, the date of the run, instead of {{ ds }} and the like",
        template.line,
    )


def one_statement(words: Sequence[Word]) -> Sequence[Word]:
    """Without semicolons after its end. Raises BadQuery for none, and for more than one."""
    separators = [index for index, word in enumerate(words) if word.text == ";"]
    parts = [words[start + 1 : end] for start, end in pairwise([-1, *separators, len(words)])]
    statements = [part for part in parts if part]
    if len(statements) != 1:
        if not statements:
            raise BadQuery("The query has no statement", "Write exactly one SELECT")
        line = statements[1][0].line
        remedy = _instead_of(statements) or "Write exactly one SELECT"
        raise BadQuery(f"The query has {len(statements)} statements", remedy, line)
    return statements[0]


def _instead_of(statements: Sequence[Sequence[Word]]) -> str:
    """How one SELECT does what a script's other statements are for; '' for those that nothing stands for."""
    heads = [[word.upper for word in statement[:5]] for statement in statements]
    remedies = {remedy: None for head in heads for what, remedy in _INSTEAD if head[: len(what)] == list(what)}
    return f"Write exactly one SELECT. {'. '.join(remedies)}" if remedies else ""


def _check_pipes(words: Sequence[Word]) -> None:
    for pipe, operator, *rest in (words[index : index + 3] for index, word in enumerate(words[:-1]) if word.text == "|>"):
        named = f"{operator.upper} {rest[0].upper}" if rest and operator.upper == "DROP" else operator.upper
        if named in PIPE_WRITES:
            raise BadQuery(
                f"The query writes: it has the pipe operator {named}", "Leave it out; nightshift itself publishes", pipe.line
            )


def _check_brackets(words: Sequence[Word]) -> None:
    opened: list[Word] = []
    for word in words:
        if word.kind is not Kind.SIGN:
            continue
        if word.text in CLOSING:
            opened.append(word)
        elif word.text in CLOSING.values() and (not opened or CLOSING[opened.pop().text] != word.text):
            raise BadQuery(
                f"The query does not parse: the bracket {word.text} has no opening one", "Correct the SQL", word.line
            )
    if opened:
        raise BadQuery(
            f"The query does not parse: the bracket {opened[-1].text} is not closed", "Correct the SQL", opened[-1].line
        )


def _check_gaps(words: Sequence[Word]) -> None:
    """Something must stand between two words such as WHERE and =, or after the last."""
    for before, word, after in zip((None, *words), words, (*words[1:], None), strict=False):
        # A field may have a reserved word's name; so may a column in JSON.
        if word.upper not in EXPECTANT or (before is not None and before.text == "."):
            continue
        if after is not None and (after.upper not in NOTHING or (word.text == "|>" and after.upper in _AFTER_PIPE)):
            continue
        near = after or word
        raise BadQuery(f"The query does not parse near {near.text!r}: something is missing there", "Correct the SQL", near.line)


def parameters(words: Sequence[Word]) -> set[str]:
    """The names of the parameters that a query uses, as it writes them; `POSITIONAL` for those without a name."""
    used: set[str] = set()
    for word, after in zip(words, (*words[1:], None), strict=False):
        if word.text == "@" and after is not None and after.kind in (Kind.WORD, Kind.NAME):
            used.add(after.name)
    pattern = _row_pattern(words)
    if any(word.text == POSITIONAL and index not in pattern for index, word in enumerate(words)):
        used.add(POSITIONAL)
    return used


def _row_pattern(words: Sequence[Word]) -> set[int]:
    """Where the words of MATCH_RECOGNIZE's PATTERN (...) stand: there ``?`` is a quantifier."""
    inside: set[int] = set()
    depth = 0
    for index, word in enumerate(words):
        if depth or (word.text == "(" and index and words[index - 1].upper == "PATTERN"):
            depth += {"(": 1, ")": -1}.get(word.text, 0)
            inside.add(index)
    return inside


def is_sorted(words: Sequence[Word]) -> bool:
    """Whether the statement sorts its result: it has an ORDER BY in no brackets, or in brackets around all of it."""
    statement = list(one_statement(words))
    while statement and statement[0].text == "(" and 0 not in (depths := _depths(statement))[:-1] and depths[-1] == 0:
        statement = statement[1:-1]
    pairs = zip(pairwise([*statement, *statement[-1:]]), _depths(statement), strict=True)
    return any(depth == 0 and word.upper == "ORDER" and after.upper == "BY" for (word, after), depth in pairs)


def _depths(words: Sequence[Word]) -> list[int]:
    """How many brackets are open after each of them."""
    signs = (word.text if word.kind is Kind.SIGN else "" for word in words)
    return list(accumulate((sign in CLOSING) - (sign in CLOSING.values()) for sign in signs))
