"""Inside a transaction, only the statements that BigQuery's documentation lists are taken.

Source: "Multi-statement transactions", supported statements: SELECT; INSERT, UPDATE, DELETE, MERGE and TRUNCATE TABLE; CREATE
and DROP of temporary tables and functions. Statements of the procedural language that touch no table (SET, IF, loops, RAISE)
are left alone. ASSERT is not listed. Public scripts use it inside transactions; here it is refused, so that nothing rests on
it. The page does not give the words of the refusal: these are ours.
"""

from __future__ import annotations

from typing import Any, Final

from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import query
from sqlglot import exp

TAKEN: Final = (
    exp.Query,
    exp.Insert,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.TruncateTable,
    exp.Transaction,
    exp.Commit,
    exp.Rollback,
)


def check(tree: exp.Expression, context: Any) -> None:
    """For a statement inside a transaction. Raises BigQueryError if the documentation does not list it."""
    if not isinstance(tree, TAKEN) and not _is_temporary(tree, context):
        refuse(query.statement_type(tree) if not isinstance(tree, exp.Command) else tree.name.upper())


def refuse(statement: str) -> None:
    raise BigQueryError("invalidQuery", f"{statement.replace('_', ' ')} is not supported inside a transaction")


def _is_temporary(tree: exp.Expression, context: Any) -> bool:
    """Whether a CREATE or DROP is about a table or function of this script or session."""
    if isinstance(tree, exp.Create):
        return tree.find(exp.TemporaryProperty) is not None
    if not isinstance(tree, exp.Drop):
        return False
    name = tree.find(exp.Table)
    if (tree.args.get("kind") or "").upper() == "FUNCTION":
        return name is None or not name.db
    return name is not None and (name.db.upper() == "_SESSION" or (not name.db and name.name.casefold() in context.temporary))
