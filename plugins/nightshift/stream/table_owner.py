"""Whose table it is. A line of the table's comment says so, because two streams in one table take each other's rows: the newest
message of a key replaces the row, whichever stream it is of, and without a key one stream's message id may be another's.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors, sql
from psycopg.rows import TupleRow

from nightshift.stream.ports import SinkRefused

if TYPE_CHECKING:
    from nightshift.spec import StreamSpec

log = logging.getLogger(__name__)

Connection = psycopg.AsyncConnection[TupleRow]

MARK: Final = "nightshift: "
"""Begins the line. A JSON object follows: job, task, key (its columns), column (that of the prediction)."""


async def claim(connection: Connection, table: sql.Identifier, spec: StreamSpec, *, shared: bool) -> None:
    """Marks the table as this stream's. One that has no mark yet is adopted. shared: other streams may write to it, too.

    Raises SinkRefused if it is another stream's.
    """
    found = await connection.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [table.as_string(None)])
    comment = str((await found.fetchone() or ("",))[0] or "")
    lines = comment.splitlines()
    marks = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    ours = {"job": spec.job, "task": spec.task, "key": list(spec.source.key), "column": spec.sink.column}
    if shared or any(_read(mark) == ours for mark in marks):
        return
    line = MARK + json.dumps(ours)
    if marks:
        others = "\n".join([*(each for each in lines if not each.startswith(MARK)), line])
        raise SinkRefused(
            f"the table {table.as_string(None)} is another stream's: its comment says {' and '.join(marks)}, and this stream "
            f"is {json.dumps(ours)}. Name another table; or say sink.shared: true if both are to write to it; or, if this "
            f"stream replaces the other, {_statement(table, others)}"
        )
    statement = _statement(table, "\n".join([*lines, line]))
    try:
        async with connection.transaction():
            await connection.execute(statement.encode())
    except errors.InsufficientPrivilege:
        log.warning(
            "nothing says whose table this is: only its owner may write that",
            extra={"fields": {"table": table.as_string(None), "statement": statement}},
        )
    else:
        log.info("the table is marked as this stream's", extra={"fields": {"table": table.as_string(None), "mark": line}})


def _statement(table: sql.Identifier, comment: str) -> str:
    return sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(comment)).as_string(None)


def _read(mark: str) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(mark)
    except ValueError:
        return None
