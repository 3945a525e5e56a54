"""The sink: a table of PostgreSQL or AlloyDB, and beside it a table of dead letters. `nightshift.stream.schema` has their form.

A message has one outcome, the first that is committed: an answer is written unless its message is a dead letter, and the other
way round. So that two transactions cannot each miss the other, burying locks the table of answers for the moment that it takes;
dead letters are rare, and come in batches. Of messages with one key the newest stays: by publish time, and at the same instant
by id.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors, sql
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.parts import Collect, Locked, SinkRefused, Standing, Unavailable, Unwritable
from nightshift.stream.schema import Table, literal

log = logging.getLogger(__name__)

T = TypeVar("T")
Connection = psycopg.AsyncConnection[TupleRow]

CONNECT_S: Final = 10
STATEMENT_S: Final = 30
"""A statement that takes longer is broken off, and tried again."""
COLLECT: Final = Collect(rows=500, size=float("inf"), age_s=0.02, aside=0)
"""A transaction for each answer would cost more than the answers. While the database is away, what waits leaves no room."""
_ROWS_AT_FAULT: Final = (psycopg.DataError, psycopg.IntegrityError, errors.ProgramLimitExceeded)
_LOCKED: Final = re.compile(
    r'authentication failed for user|no pg_hba\.conf entry for|role ".*" (?:does not exist|is not permitted to log in)'
    r'|database ".*" does not exist|no password supplied'
)
# The last one: of the table, which has a constraint that is checked late.
_FOR_GOOD: Final = (psycopg.ProgrammingError, psycopg.NotSupportedError, errors.ObjectNotInPrerequisiteState)


class BadUrl(ValueError):
    """The address of the database is not one."""


class PostgresSink:
    """`nightshift.stream.parts.Sink`. url: postgresql://...; its password never appears in an error. model: for provenance.

    Raises BadUrl.
    """

    collect = COLLECT

    def __init__(self, url: str, table: Table, model: str) -> None:
        check_url(url)
        self._table = table
        self._model = model
        # Asking must not wait for a long write.
        self._asking, self._writing = Session(url), Session(url)

    async def open(self) -> None:
        """Makes the tables, unless they are there. Raises SinkRefused if they are, and do not fit; Unavailable."""
        await self._writing.run(self._table.prepare)

    async def close(self) -> None:
        await self._asking.close()
        await self._writing.close()

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        async def ask(connection: Connection) -> list[Standing | Dead]:
            return await self._known(connection, messages)

        try:
            return await self._asking.run(ask)
        except Unwritable:
            if len(messages) == 1:
                # Its key does not fit the column, so there is no row of it; writing it will say why.
                return [Standing.NEW]
            middle = len(messages) // 2
            return [*await self.known(messages[:middle]), *await self.known(messages[middle:])]

    async def _known(
        self, connection: Connection, messages: Sequence[tuple[Message, tuple[str, ...] | None]]
    ) -> list[Standing | Dead]:
        ids = [message.id for message, _ in messages]
        found = await connection.execute(
            sql.SQL("SELECT message_id, reason, text, status, tries FROM {} WHERE message_id = ANY(%s)").format(
                self._table.dead
            ),
            [ids],
        )
        dead = {row[0]: row[1:] for row in await found.fetchall()}
        keyed = [(message, key) for message, key in messages if key is not None and message.id not in dead]
        over = await self._over(connection, keyed)
        return [
            Dead(message, *dead[message.id]) if message.id in dead else (Standing.OVER if message.id in over else Standing.NEW)
            for message, _ in messages
        ]

    async def _over(self, connection: Connection, keyed: Sequence[tuple[Message, tuple[str, ...]]]) -> set[str]:
        """The ids of those messages that are answered, or superseded by an answer to a newer one of their key."""
        if not keyed:
            return set()
        columns: list[Any] = [[key[place] for _, key in keyed] for place in range(len(self._table.keys))]
        published, names = [message.published for message, _ in keyed], [message.id for message, _ in keyed]
        rows = await connection.execute(self._table.superseded, [*columns, published, names])
        return {row[0] for row in await rows.fetchall()}

    async def write(self, answered: Sequence[Answered]) -> None:
        # In the order of their keys, so that two subscribers which write the same ones do not wait for each other in a circle.
        rows = [self._row(each) for each in sorted(answered, key=lambda each: each.key)]

        async def insert(connection: Connection) -> None:
            async with connection.cursor() as cursor:
                await cursor.executemany(self._table.upsert, rows)

        await self._writing.run(insert)

    def _row(self, each: Answered) -> list[Any]:
        message, prediction = each.message, literal(each.prediction, self._table.prediction_type)
        key = each.key if self._table.keyed else ()
        return [*key, prediction, message.id, message.published, self._model, each.tries, message.id]

    async def bury(self, dead: Sequence[Dead]) -> frozenset[str]:
        async def insert(connection: Connection) -> frozenset[str]:
            return await self._bury(connection, dead)

        try:
            return await self._writing.run(insert)
        except Unwritable as error:
            if all(each.key is None for each in dead):
                raise SinkRefused(f"the table of dead letters refuses a dead letter: {error}") from error
            if len(dead) == 1:
                # Its key does not fit the column, so there is no row of it.
                return await self.bury([replace(dead[0], key=None)])
            middle = len(dead) // 2
            return await self.bury(dead[:middle]) | await self.bury(dead[middle:])

    async def _bury(self, connection: Connection, dead: Sequence[Dead]) -> frozenset[str]:
        await connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(self._table.name))
        over = await self._over(connection, [(each.message, each.key) for each in dead if each.key is not None])
        rows = [self._dead_row(each) for each in sorted(dead, key=lambda each: each.message.id) if each.message.id not in over]
        async with connection.cursor() as cursor:
            await cursor.executemany(self._table.bury, rows)
        ids = [each.message.id for each in dead]
        found = await connection.execute(
            sql.SQL("SELECT message_id FROM {} WHERE message_id = ANY(%s)").format(self._table.dead), [ids]
        )
        return frozenset(ids) - {row[0] for row in await found.fetchall()}

    def _dead_row(self, each: Dead) -> list[Any]:
        message = each.message
        return [
            message.id,
            message.published,
            _holdable(message.ordering_key),
            Jsonb({_holdable(name): _holdable(value) for name, value in message.attributes.items()}),
            message.data,
            each.reason,
            _holdable(each.text),
            each.status,
            each.tries,
            self._model,
            message.id,
        ]


class Session:
    """One connection, opened when it is needed and again when it breaks; one transaction at a time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does some work in one transaction. Raises Unavailable, Unwritable, SinkRefused."""
        async with self._lock:
            try:
                if self._connection is None:
                    self._connection = await self._connect()
                async with self._connection.transaction():
                    return await work(self._connection)
            except _ROWS_AT_FAULT as error:
                raise Unwritable(_said(error)) from error
            except _FOR_GOOD as error:
                raise SinkRefused(_said(error)) from error
            except (psycopg.Error, OSError) as error:
                await self._drop()
                raise (Locked if _is_locked(error) else Unavailable)(_said(error)) from error
            except asyncio.CancelledError:
                # What the server still does of it must not meet the next transaction.
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connect(self) -> Connection:
        # Those of the address come last, so that they count; without them here they would be lost.
        given = psycopg.conninfo.conninfo_to_dict(self._url).get("options") or ""
        limits = f"-c statement_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout={STATEMENT_S}s"
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, connect_timeout=CONNECT_S, options=f"{limits} {given}", application_name="nightshift"
        )
        connection.add_notice_handler(lambda _: None)
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _is_locked(error: BaseException) -> bool:
    """Whether the server itself says that it will not let us in: a connection that fails has no SQLSTATE, only its words.

    Of the classes 28, invalid authorization, and 3D, no such database (PostgreSQL's "Error Codes"). libpq does not hand on the
    code of a connection that was refused, so the words decide; those of a server that speaks another language do not.
    """
    return isinstance(error, psycopg.OperationalError) and _LOCKED.search(str(error)) is not None


def check_url(url: str) -> None:
    """Raises BadUrl. libpq's own words are not used: they repeat the address, or parts of it, which may be its password's."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise BadUrl("NIGHTSHIFT_SINK_URL is not an address of PostgreSQL: postgresql://USER:PASSWORD@HOST/DATABASE") from None
    # Of a password with @ or / in it, libpq takes the rest for host, port or database.
    host, port, database = (str(parts.get(name) or "") for name in ("host", "port", "dbname"))
    odd_port = bool(port) and not port.replace(",", "").isdigit()
    if odd_port or "@" in host[1:] or ("@" in database and "user" not in parts):
        raise BadUrl("NIGHTSHIFT_SINK_URL is not an address of PostgreSQL: write @ / : in its password as %40 %2F %3A")


def _holdable(text: str) -> str:
    """The text without what PostgreSQL cannot hold: a dead letter must not become one for its attributes."""
    return text.replace("\0", "\ufffd")


def _said(error: BaseException) -> str:
    """The server's words, or the library's. The first line: the rest repeats the statement with its values."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
