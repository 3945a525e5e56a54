"""Whether a table that is there can take what a stream writes, asked before anything is computed. PostgreSQL itself judges, as
far as it can without a row: it plans the statements, and reads a prediction as the column would.

And whose table it is. A line of the table's comment says so, because two streams in one table take each other's rows: the
newest message of a key replaces the row, whichever stream it is of, and without a key one stream's message id may be
another's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors, sql

from nightshift.stream.ports import SinkRefused
from nightshift.stream.session import Connection, said

if TYPE_CHECKING:
    from nightshift.spec import StreamSpec

log = logging.getLogger(__name__)

SEARCHED: Final = ("vector", "halfvec")
"""pgvector's types of which it makes an index (HNSW: up to 2,000 and 4,000 dimensions; its README, "HNSW")."""
_TABLES: Final = ("r", "p")
"""What pg_class calls a table, and one with partitions."""
_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
MARK: Final = "nightshift: "
"""Begins the line. A JSON object follows: job, task, key (its columns), column (that of the prediction)."""
_NO_FIT: Final = (psycopg.DataError, errors.CannotCoerce, errors.DatatypeMismatch, errors.InternalError_)
"""What reading a value as another type raises. A domain's own condition is not among them: it concerns the value."""


async def full_name(connection: Connection, table: sql.Identifier) -> sql.Identifier | None:
    """The table's name with its schema, which means the same whoever makes another of its name; None if there is none.

    Raises SinkRefused as `check_kept` does.
    """
    await check_kept(connection, table)
    found = await connection.execute(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace "
        "WHERE pg_class.oid = to_regclass(%s)",
        [table.as_string(None)],
    )
    row = await found.fetchone()
    return sql.Identifier(*row) if row else None


async def check_kept(connection: Connection, *tables: sql.Identifier) -> None:
    """Whether what is written to these tables outlives a crash, and is kept there. Raises SinkRefused.

    Of partitions at any depth, too, and of tables that inherit, whose rows are read as the table's and where a trigger may put
    them. What has been written in this transaction cannot become another before it ends.
    """
    found = await connection.execute(
        "WITH RECURSIVE tree (oid) AS (SELECT to_regclass(name)::oid FROM unnest(%s::text[]) AS name "
        "UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = oid) "
        "SELECT relkind::text, relpersistence::text, c.oid::regclass::text, "
        # 2 and 3: on UPDATE, on INSERT. A view's is another.
        "(SELECT min(rulename) FROM pg_rewrite WHERE ev_class = c.oid AND ev_type IN ('2', '3')) AS rule "
        "FROM tree JOIN pg_class AS c USING (oid) WHERE (relpersistence <> 'p' OR relkind NOT IN ('r', 'p') OR relhasrules) "
        # Another connection's temporary ones have no part in the table here.
        "AND NOT pg_is_other_temp_schema(relnamespace) ORDER BY tree.oid",
        [[table.as_string(None) for table in tables]],
    )
    for kind, kept, shown, rule in await found.fetchall():
        if kind not in _TABLES:
            raise SinkRefused(
                f"{shown} is {_KINDS.get(kind, 'no table')}: whether its rows are kept, and where, nightshift cannot see. Name "
                "a table of this database, the one behind it for example"
            )
        if rule is not None:
            raise SinkRefused(
                f"the table {shown} has the rule {rule}, which may do something else in place of a write. DROP RULE it"
            )
        if kept == "t":
            raise SinkRefused(f"the table {shown} is temporary, and ends with its connection. Name the table with its schema")
        # One with partitions has no rows of its own, and no SET LOGGED changes it.
        if kept == "u" and kind == "r":
            raise SinkRefused(
                f"the table {shown} is UNLOGGED: a crash of the server would empty it, of acknowledged messages too. "
                f"ALTER TABLE {shown} SET LOGGED"
            )


async def columns_of(connection: Connection, table: sql.Identifier) -> Mapping[str, str]:
    """Names and types. table: with its schema.

    Types with their schema but PostgreSQL's own, and without a length, with which a cast would cut a text that is too long:
    the column itself refuses it.
    """
    async with connection.transaction(force_rollback=True):
        await connection.execute("SET LOCAL search_path TO pg_catalog, pg_temp")
        found = await connection.execute(
            "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [table.as_string(connection)],
        )
        return dict(await found.fetchall())


async def check_required(connection: Connection, table: sql.Identifier, written: Iterable[str]) -> None:
    """Whether a row with these columns is complete. A trigger may fill in others. Raises SinkRefused."""
    found = await connection.execute(
        "SELECT attname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = atttypid "
        "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND (attnotnull OR typnotnull) "
        "AND NOT atthasdef AND typdefault IS NULL AND attidentity = '' AND attname <> ALL(%s) "
        # 7: for each row, before, on INSERT.
        "AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = attrelid AND tgtype::int & 7 = 7 AND tgenabled <> 'D') "
        "ORDER BY attnum",
        [name := table.as_string(None), list(written)],
    )
    if lacking := [row[0] for row in await found.fetchall()]:
        shown = [sql.Identifier(each).as_string(None) for each in lacking]
        sets = ", ".join(f"ALTER COLUMN {each} SET DEFAULT VALUE" for each in shown)
        raise SinkRefused(
            f"the table {name} refuses every row: its column {', '.join(shown)} is NOT NULL without a default, and nightshift "
            f"does not write it. Name another table, or ALTER TABLE {name} {sets}"
        )


async def check_generated(connection: Connection, table: sql.Identifier, written: Sequence[str]) -> None:
    """Whether these columns may be written at all. Raises SinkRefused."""
    found = await connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = ANY(%s) "
        "AND (attgenerated <> '' OR attidentity = 'a') ORDER BY attnum",
        [name := table.as_string(None), list(written)],
    )
    if own := [sql.Identifier(row[0]).as_string(None) for row in await found.fetchall()]:
        raise SinkRefused(
            f"the table {name} makes its column {', '.join(own)} itself (GENERATED ALWAYS), and nightshift writes it"
        )


async def check_late(connection: Connection, table: sql.Identifier, keys: Sequence[str]) -> None:
    """Whether a constraint on the key is checked at once. Raises SinkRefused."""
    found = await connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND condeferrable AND contype IN ('p', 'u') "
        "AND (SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_attribute "
        "WHERE attrelid = conrelid AND attnum = ANY(conkey)) = %s::text[]",
        [name := table.as_string(None), sorted(keys)],
    )
    if (row := await found.fetchone()) is not None:
        late = sql.Identifier(row[0]).as_string(None)
        raise SinkRefused(
            f"the table {name} checks its constraint {late} late, and ON CONFLICT does not support that: make it NOT "
            f"DEFERRABLE, or ALTER TABLE {name} DROP CONSTRAINT {late}"
        )


async def check_value(connection: Connection, table: sql.Identifier, column: str, kind: str, text: str) -> None:
    """Whether a column of a type (with its length) takes a value that PostgreSQL reads from text. Raises SinkRefused."""
    try:
        async with connection.transaction():
            await connection.execute(sql.SQL("SELECT {}::text::{}").format(text, sql.SQL(kind)))
    except _NO_FIT as error:
        shown = sql.Identifier(column).as_string(None)
        like = text if len(text) <= 40 else f"{text[:40]}..."
        raise SinkRefused(
            f"the column {shown} of the table {table.as_string(None)} is {kind}, and the job's predictions look like "
            f"{like}: {said(error)}. Name another table or column, or give it another type"
        ) from error
    except errors.CheckViolation:
        return


async def check_statement(connection: Connection, statement: bytes, parameters: int) -> None:
    """Whether the server plans a statement, and this account may execute it. Raises what it says."""
    await connection.execute(b"EXPLAIN " + statement, [None] * parameters)


async def ensure_vectors(connection: Connection, table: str, column: str) -> None:
    """Makes the database know pgvector's types, if it does not yet. Raises SinkRefused."""
    found = await connection.execute("SELECT to_regtype('vector') IS NOT NULL, current_database()")
    row = await found.fetchone()
    if row and row[0]:
        return
    try:
        async with connection.transaction():
            await connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as error:
        raise SinkRefused(
            f"the table {table} cannot be made: request.dimensions asks for a vector, which the database {row and row[1]} does "
            f"not know, and this user may not make it: {said(error)}. An administrator runs CREATE EXTENSION vector (pgvector) "
            f"there; or make the table yourself, with {sql.Identifier(column).as_string(None)} real[] NOT NULL"
        ) from error
    log.info("made the extension vector", extra={"fields": {"database": row and row[1]}})


async def note_index(connection: Connection, table: sql.Identifier, column: str, kind: str) -> None:
    """Tells once, when a subscriber starts, that searches read the whole table. Which distance they use, nobody knows here."""
    found = await connection.execute(
        "SELECT EXISTS (SELECT FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey::int2[]) "
        "WHERE indrelid = to_regclass(%s) AND attname = %s)",
        [table.as_string(None), column],
    )
    row = await found.fetchone()
    if row and not row[0]:
        statement = sql.SQL("CREATE INDEX CONCURRENTLY ON {} USING hnsw ({} {})").format(
            table, sql.Identifier(column), sql.SQL(f"{kind}_cosine_ops")
        )
        fields = {"table": table.as_string(None), "statement": statement.as_string(None)}
        log.info("no index on the predictions: a search reads the whole table", extra={"fields": fields})


def sample(dimensions: int | None, prediction: Any) -> Any:
    """A prediction of this Arrow type; None if any text may be one. dimensions: of a vector, if they are known."""
    import pyarrow as pa

    if pa.types.is_list(prediction):
        numbers = pa.types.is_floating(prediction.value_type)
        return [0.5] * (dimensions or 1) if numbers else []
    if pa.types.is_floating(prediction):
        return 0.5
    if pa.types.is_boolean(prediction):
        return True
    if pa.types.is_integer(prediction):
        return 0
    return None if pa.types.is_string(prediction) else {}


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
