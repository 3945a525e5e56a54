"""The sink: a table of PostgreSQL or AlloyDB, and beside it a table of dead letters. `nightshift.stream.schema` has their form.

A message has one outcome, the first that is committed: an answer is written unless its message is a dead letter, and the other
way round. So that two transactions cannot each miss the other, writers of answers share an advisory lock, and a writer of dead
letters has it alone for the moment that it takes; dead letters are rare, and come in batches. Of messages with one key the
newest stays (`Table.superseded`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from nightshift.spec import StreamSpec
from nightshift.stream.google_login import Token
from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.ports import Collect, Locked, SinkRefused, Standing, Unavailable, Unwritable
from nightshift.stream.schema import Table, literal
from nightshift.stream.sink_address import ENCRYPTED, Address, parse
from nightshift.tasks.base import TaskKind

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

log = logging.getLogger(__name__)

T = TypeVar("T")
Connection = psycopg.AsyncConnection[TupleRow]

CONNECT_S: Final = 10
STATEMENT_S: Final = 30
"""A statement that takes longer is broken off, and tried again."""
TRANSACTION_S: Final = STATEMENT_S + 5
"""A transaction of which nothing is heard for so long has lost its server: the connection is given up."""
LOCK_S: Final = 1
"""How long a statement waits for what another transaction holds."""
DEAD_LOCK_S: Final = 5
"""Longer than writers of answers hold the advisory lock: they may wait for a row meanwhile."""
SEARCH_S: Final = 2
"""How long an earlier answer is looked for, for which there is no index."""
AROUND_LOCKS_S: Final = 10
"""How long the answers of one write are sorted into those whose rows are locked and the others."""
COLLECT: Final = Collect(rows=500, size=float("inf"), age_s=0.02, aside=0)
"""A transaction for each answer would cost more than the answers. While the database is away, what waits leaves no room."""
_AWAY: Final = ("08", "25", "28", "3D", "40", "53", "57", "58")
"""Classes of SQLSTATE that tell of the server's state, or of other transactions; all others refuse what was asked."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_LOCKED: Final = re.compile(
    r'authentication failed|no pg_hba\.conf entry for|role ".*" (?:does not exist|is not permitted to log in)'
    r'|database ".*" does not exist|no password supplied'
)
_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_S,
    "application_name": "nightshift",
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""libpq's parameters, unless the address has them. tcp_user_timeout: in milliseconds."""
_LIMITS: Final = {
    "statement_timeout": f"{STATEMENT_S}s",
    "idle_in_transaction_session_timeout": f"{STATEMENT_S}s",
    "lock_timeout": f"{LOCK_S}s",
}
"""The server's settings in each transaction, unless the address has them in `options`."""


class Blocked(Unavailable):
    """Another transaction holds what is needed."""


class BrokenOff(Unavailable):
    """The server ended the transaction, or took too long for it: it may have time for a smaller one."""


class PostgresSink:
    """`nightshift.stream.ports.Sink`. url: postgresql://...; its password never appears in an error. model: for provenance.

    The first outcome of a message that is committed counts, an answer or a dead letter; later ones are refused. Raises BadUrl.
    """

    collect = COLLECT

    def __init__(self, url: str, table: Table, model: str) -> None:
        address = parse(url)
        self._table = table
        self._model = model
        # Asking must not wait for a long write.
        self._asking, self._writing = Session(address), Session(address)
        self._most = COLLECT.rows
        self._last: list[Any] | None = None

    async def open(self) -> None:
        """Makes the tables, unless they are there. Raises SinkRefused if they are, and do not fit; Unavailable."""
        try:
            await self._writing.run(self._table.prepare)
        except Unwritable as error:
            raise SinkRefused(f"the table {self._table.shown} cannot be used: {error}") from error

    async def close(self) -> None:
        await self._asking.close()
        await self._writing.close()

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        try:
            return await self._asking.run(lambda connection: self._known(connection, messages))
        except Unwritable as error:
            if len(messages) > 1:
                middle = len(messages) // 2
                return [*await self.known(messages[:middle]), *await self.known(messages[middle:])]
            ((message, key),) = messages
            if key is None:
                raise Unavailable(f"the tables cannot be read: {error}") from error
            # If its key does not fit the column, there is no row of it; writing it will say why.
            return await self.known([(message, None)])

    async def _known(
        self, connection: Connection, messages: Sequence[tuple[Message, tuple[str, ...] | None]]
    ) -> list[Standing | Dead]:
        ids = [_holdable(message.id) for message, _ in messages]
        found = await connection.execute(
            sql.SQL("SELECT message_id, reason, text, status, tries FROM {} WHERE message_id = ANY(%s)").format(
                self._table.dead
            ),
            [ids],
        )
        dead = {row[0]: row[1:] for row in await found.fetchall()}
        keyed = [
            (message, key) for name, (message, key) in zip(ids, messages, strict=True) if key is not None and name not in dead
        ]
        over = await self._over(connection, keyed)
        return [
            Dead(message, *dead[name]) if name in dead else (Standing.OVER if name in over else Standing.NEW)
            for name, (message, _) in zip(ids, messages, strict=True)
        ]

    async def _over(self, connection: Connection, keyed: Sequence[tuple[Message, tuple[str, ...]]]) -> set[str]:
        """The ids (`_holdable`) of those that are answered, or superseded by an answer to a newer one of their key."""
        if not keyed:
            return set()
        if not self._table.keyed:
            keyed = [(message, (_holdable(message.id),)) for message, _ in keyed]
        columns: list[Any] = [[key[place] for _, key in keyed] for place in range(len(self._table.keys))]
        published, names = [message.published for message, _ in keyed], [_holdable(message.id) for message, _ in keyed]
        rows = await connection.execute(self._table.superseded, [*columns, published, names])
        return {row[0] for row in await rows.fetchall()}

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        # In the order of their keys, so that two subscribers which write the same ones do not wait for each other in a circle.
        rows = [(each.message.id, self._row(each)) for each in sorted(answered, key=lambda each: each.key)]
        held: frozenset[str] = frozenset()
        while rows:
            # As many as the server has time for.
            part, rows = dict(rows[: self._most]), rows[self._most :]
            held |= await self._write(part)
        # Only when all are written: else those that are to be written again would meet parts that are too large again.
        self._most = min(self._most * 2, COLLECT.rows)
        return held

    async def _write(self, rows: dict[str, list[Any]]) -> frozenset[str]:
        """rows: by message id. Returns the ids of those that others hold."""
        try:
            await self._writing.run(lambda connection: self._insert(connection, list(rows.values())))
        except Blocked:
            return await self._write_around(rows)
        except BrokenOff:
            # A trigger may raise whatever it likes, for one row every time: that row is set aside while others are taken.
            if len(rows) == 1 and self._most == 1 and await self.sound():
                return frozenset(rows)
            self._most = max(1, len(rows) // 2)
            raise
        self._last = next(reversed(rows.values()))
        return frozenset()

    async def _insert(self, connection: Connection, rows: Sequence[list[Any]]) -> None:
        await connection.execute(self._table.share)
        async with connection.cursor() as cursor:
            await cursor.executemany(self._table.upsert, rows)

    async def _write_around(self, rows: dict[str, list[Any]]) -> frozenset[str]:
        """Writes those whose rows are free, and returns the ids of the others."""
        clock = asyncio.get_running_loop().time
        end = clock() + AROUND_LOCKS_S
        held: set[str] = set()
        parts = [rows]
        while parts:
            part = parts.pop()
            if clock() > end:
                # Whether the rest are free is unknown.
                held |= part.keys()
                continue
            try:
                held |= await self._writing.run(lambda connection: self._insert_free(connection, part))  # noqa: B023
            except Blocked:
                if len(part) == 1:
                    held |= part.keys()
                    continue
                # What another transaction inserts just now cannot be seen, so it is searched for.
                items = list(part.items())
                parts += [dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])]
        return frozenset(held)

    async def _insert_free(self, connection: Connection, rows: dict[str, list[Any]]) -> set[str]:
        await connection.execute(self._table.share)
        places = list(range(len(rows)))
        columns: list[Any] = [[row[place] for row in rows.values()] for place in self._table.key_places]
        found = await connection.execute(self._table.held, [*columns, places, *columns, places])
        held = {row[0] for row in await found.fetchall()}
        await self._insert(connection, [row for place, row in enumerate(rows.values()) if place not in held])
        return {name for place, name in enumerate(rows) if place in held}

    async def sound(self) -> bool:
        async def rewrite(connection: Connection) -> bool:
            if (row := self._last) is None:
                # An answer of this model, as `upsert` takes it, that another process has written.
                await connection.execute("SELECT set_config('statement_timeout', %s, true)", [f"{SEARCH_S}s"])
                found = await (await connection.execute(self._table.a_row, [self._model])).fetchone()
                if found is None:
                    return False
                row = list(found)
            async with connection.transaction(force_rollback=True):
                await connection.execute(self._table.upsert, row)
                # Those that are checked late.
                await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return True

        try:
            return await self._writing.run(rewrite)
        except (Unwritable, Blocked, BrokenOff):
            return False

    def _row(self, each: Answered) -> list[Any]:
        message, prediction = each.message, literal(each.prediction, self._table.prediction_type)
        key, name = each.key if self._table.keyed else (), _holdable(message.id)
        reasoning = [each.reasoning and _holdable(each.reasoning)][: len(self._table.written) - 1]
        return [*key, prediction, *reasoning, name, message.published, self._model, each.tries, name]

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        try:
            return await self._writing.run(lambda connection: self._keep_dead(connection, dead))
        except Unwritable:
            if len(dead) > 1:
                middle = len(dead) // 2
                return await self.write_dead_letters(dead[:middle]) | await self.write_dead_letters(dead[middle:])
            if dead[0].key is None:
                raise
            # If its key does not fit the column, there is no row of it.
            return await self.write_dead_letters([replace(dead[0], key=None)])

    async def _keep_dead(self, connection: Connection, dead: Sequence[Dead]) -> frozenset[str]:
        await connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{DEAD_LOCK_S}s"])
        await connection.execute(self._table.exclude)
        over = await self._over(connection, [(each.message, each.key) for each in dead if each.key is not None])
        names = {_holdable(each.message.id): each for each in dead}
        rows = [self._dead_row(name, each) for name, each in sorted(names.items()) if name not in over]
        async with connection.cursor() as cursor:
            await cursor.executemany(self._table.insert_dead_letter, rows)
        found = await connection.execute(
            sql.SQL("SELECT message_id FROM {} WHERE message_id = ANY(%s)").format(self._table.dead), [list(names)]
        )
        kept = {row[0] for row in await found.fetchall()}
        return frozenset(each.message.id for name, each in names.items() if name not in kept)

    def _dead_row(self, name: str, each: Dead) -> list[Any]:
        message = each.message
        return [
            name,
            message.published,
            _holdable(message.ordering_key),
            Jsonb({_holdable(name): _holdable(value) for name, value in message.attributes.items()}),
            message.data,
            each.reason,
            _holdable(each.text),
            each.status,
            each.tries,
            self._model,
            name,
        ]


class Session:
    """One connection, opened when it is needed and again when it breaks; one transaction at a time.

    Nothing outlives a transaction, neither a setting nor a prepared statement, so that a pool such as PgBouncer may give each
    one another connection of the server's. credentials: of a Google account that logs in; by default the environment's.
    """

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        self._url = address.url
        self._parameters = {name: value for name, value in _CONNECTION.items() if name not in address.given}
        self._token = Token(credentials) if address.google_account else None
        if self._token and not address.is_local and not address.sslmode:
            self._parameters["sslmode"] = ENCRYPTED[0]
        limits = [(name, value) for name, value in _LIMITS.items() if name not in str(address.given.get("options") or "")]
        self._limits = sql.SQL("SELECT {}").format(
            sql.SQL(", ").join(sql.SQL("set_config({}, {}, true)").format(*each) for each in limits)
        )
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does some work in one transaction. Raises Unavailable, or Unwritable if the server refuses what is asked."""
        async with self._lock:
            try:
                async with asyncio.timeout(TRANSACTION_S):
                    if self._connection is None:
                        self._connection = await self._connect()
                    async with self._connection.transaction():
                        await self._connection.execute(self._limits)
                        return await work(self._connection)
            except UnicodeError as error:
                raise Unwritable(_said(error)) from error
            except (psycopg.Error, OSError) as error:
                if isinstance(error, psycopg.Error) and _is_refusal(error):
                    raise Unwritable(_said(error)) from error
                if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                    raise Blocked(_said(error)) from error
                await self._drop()
                raise _unavailable(error) from error
            except BaseException:
                # What the server still does of it must not meet the next transaction.
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connect(self) -> Connection:
        login: dict[str, Any] = {"password": await self._token.read()} if self._token else {}
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=None, **self._parameters, **login
        )
        # Each statement must see what was committed before it, whatever the database's default is.
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        connection.add_notice_handler(lambda _: None)
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _is_refusal(error: psycopg.Error) -> bool:
    """Whether the server, or the library in its place, refuses what was asked, and will again."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
    return error.sqlstate[:2] not in _AWAY and error.sqlstate != _LOCK_NOT_AVAILABLE


def _unavailable(error: BaseException) -> Unavailable:
    if isinstance(error, TimeoutError):
        return BrokenOff(f"the server has not answered for {TRANSACTION_S} s")
    if _is_locked(error):
        return Locked(_said(error))
    return (BrokenOff if getattr(error, "sqlstate", None) else Unavailable)(_said(error))


def _is_locked(error: BaseException) -> bool:
    """Whether the server itself says that it will not let us in: a connection that fails has no SQLSTATE, only its words.

    Of the classes 28, invalid authorization, and 3D, no such database (PostgreSQL's "Error Codes"). libpq does not hand on the
    code of a connection that was refused, so the words decide; those of a server that speaks another language do not.
    """
    return isinstance(error, psycopg.OperationalError) and _LOCKED.search(str(error)) is not None


def _holdable(text: str) -> str:
    """The text without what PostgreSQL cannot hold: a dead letter must not become one for its attributes."""
    return text.replace("\0", "\ufffd")


def _said(error: BaseException) -> str:
    """The server's words, or the library's. The first line: the rest repeats the statement with its values."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def make(spec: StreamSpec, kind: TaskKind, model: str, url: str) -> PostgresSink:
    """Raises BadUrl."""
    return PostgresSink(url, Table(spec, kind.prediction_type), model)
