"""The sink: a table of PostgreSQL or AlloyDB, and beside it a table of dead letters. `nightshift.stream.schema` has their form.

A message has one outcome, the first that is committed: an answer is written unless its message is a dead letter, and the other
way round. So that two transactions cannot each miss the other, writers of answers share an advisory lock, and a writer of dead
letters has it alone for the moment that it takes; dead letters are rare, and come in batches. Of messages with one key the
newest stays (`Table.superseded`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from psycopg import errors, sql
from psycopg.types.json import Jsonb

from nightshift.spec import StreamSpec
from nightshift.stream.messages import Answered, Dead, Message, in_parts
from nightshift.stream.ports import Collect, SinkRefused, Standing, Unavailable, Unwritable
from nightshift.stream.schema import Row, Table, literal
from nightshift.stream.session import Blocked, BrokenOff, Connection, Session
from nightshift.stream.sink_address import parse
from nightshift.stream.table_checks import check_kept
from nightshift.tasks.base import TaskKind

DEAD_LOCK_S: Final = 5
"""Longer than writers of answers hold the advisory lock: they may wait for a row meanwhile."""
SEARCH_S: Final = 2
"""How long an earlier answer is looked for, for which there is no index."""
AROUND_LOCKS_S: Final = 10
"""How long the answers of one write are sorted into those whose rows are locked and the others."""
COLLECT: Final = Collect(rows=1000, size=16 << 20, age_s=0.02)
"""A transaction for each answer would cost more than the answers. size: of the texts of one statement, too: client and server
have each several times in memory, and one of more than a GiB is refused."""
SWALLOWED: Final = "the table has no row of it, and no error says why. A trigger that returns NULL keeps rows out, for example"
_JSON_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in a text of a JSON document."""


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
        self._last: Row | None = None

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
        dead = await self._dead(connection, ids)
        over = await self._over(connection, [each for each in messages if _holdable(each[0].id) not in dead])
        return [
            Dead(message, *dead[name]) if name in dead else (Standing.OVER if name in over else Standing.NEW)
            for name, (message, _) in zip(ids, messages, strict=True)
        ]

    async def _dead(self, connection: Connection, ids: Sequence[str]) -> dict[str, tuple[Any, ...]]:
        """Of the dead letters among these ids (`_holdable`) reason, text, status, tries."""
        found = await connection.execute(
            sql.SQL("SELECT message_id, reason, text, status, tries FROM {} WHERE message_id = ANY(%b)").format(
                self._table.dead
            ),
            [list(ids)],
        )
        return {row[0]: row[1:] for row in await found.fetchall()}

    async def _over(self, connection: Connection, messages: Iterable[tuple[Message, tuple[str, ...] | None]]) -> set[str]:
        """The ids (`_holdable`) of those that are answered, or superseded by an answer to a newer one of their key."""
        named = [(_holdable(message.id), message.published, key) for message, key in messages if key is not None]
        return await self._settled(
            connection, [(key if self._table.keyed else (name,), name, time) for name, time, key in named]
        )

    async def _settled(self, connection: Connection, rows: Sequence[tuple[tuple[str, ...], str, datetime]]) -> set[str]:
        """The same, of keys, ids and times."""
        if not rows:
            return set()
        keys, names, published = zip(*rows, strict=True)
        found = await connection.execute(
            self._table.superseded, [*map(list, zip(*keys, strict=True)), list(published), list(names)]
        )
        return {row[0] for row in await found.fetchall()}

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        # In the order of their keys, so that two subscribers which write the same ones do not wait for each other in a circle.
        rows = [(each.message.id, self._row(each)) for each in sorted(answered, key=lambda each: each.key)]
        held: frozenset[str] = frozenset()
        for part in in_parts(rows, _text_size, most=self._most, bytes_most=COLLECT.size):
            held |= await self._write(dict(part))
        # Only when all are written: else those that are to be written again would meet parts that are too large again.
        self._most = min(self._most * 2, COLLECT.rows)
        return held

    async def _write(self, rows: dict[str, Row]) -> frozenset[str]:
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
        except Unwritable as error:
            if len(rows) == 1 or not isinstance(error.__cause__, errors.CardinalityViolation):
                raise Unwritable(self._why(rows.values()) or str(error)) from error
            # Two texts are one key to their columns, such as 7 and 07: one after the other.
            items, middle = list(rows.items()), len(rows) // 2
            return await self._write(dict(items[:middle])) | await self._write(dict(items[middle:]))
        self._last = next(reversed(rows.values()))
        return frozenset()

    async def _check_kept(self, connection: Connection) -> None:
        """Last in a transaction, so that none can change it any more. Raises Unavailable while a crash would take what is
        written.
        """
        try:
            await check_kept(connection, self._table.name, self._table.dead)
        except SinkRefused as error:
            raise Unavailable(str(error)) from error

    async def _insert(self, connection: Connection, rows: Sequence[Row]) -> None:
        """Afterwards each has an outcome that is seen. Raises Unwritable."""
        await connection.execute(self._table.share)
        rounds = self._table.rounds(rows)
        if sum(map(len, rounds)) < len(rows):
            # Of a key whose newest has died, another one counts. None can die from now on.
            dead = await self._dead(connection, [row[-3] for row in rows])
            rounds = self._table.rounds([row for row in rows if row[-3] not in dead])
        for part in rounds:
            written = await connection.execute(self._table.upsert, [self._model, *map(list, zip(*part, strict=True))])
            if written.rowcount < len(part):
                over = await self._settled(connection, [(self._table.key_of(row), *row[-3:-1]) for row in part])
                if {row[-3] for row in part} - over - (await self._dead(connection, [row[-3] for row in part])).keys():
                    await self._check_kept(connection)  # A rule keeps rows out, too.
                    raise Unwritable(SWALLOWED)
        await self._check_kept(connection)

    async def _write_around(self, rows: dict[str, Row]) -> frozenset[str]:
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

    async def _insert_free(self, connection: Connection, rows: dict[str, Row]) -> set[str]:
        await connection.execute(self._table.share)
        places = list(range(len(rows)))
        columns = [list(column) for column in zip(*map(self._table.key_of, rows.values()), strict=True)]
        found = await connection.execute(self._table.held, [*columns, places, *columns, places])
        held = {row[0] for row in await found.fetchall()}
        await self._insert(connection, [row for place, row in enumerate(rows.values()) if place not in held])
        return {name for place, name in enumerate(rows) if place in held}

    async def sound(self) -> bool:
        # Where the message id is the key, rows are only ever added, and a trigger may refuse to change any. If there can be
        # no second row like the last one, or none of such an id, changing it must show as much.
        for more in ("",) if self._table.keyed else (f"{uuid4().int}", ""):
            try:
                return await self._writing.run(lambda connection: self._write_again(connection, more))  # noqa: B023
            except Unwritable as error:
                if not isinstance(error.__cause__, errors.IntegrityError | errors.DataError):
                    return False
            except (Blocked, BrokenOff):
                return False
        return False

    async def _write_again(self, connection: Connection, more: str) -> bool:
        """Writes a row that was written before, and takes it back. more: what its message id gets. False if there is none."""
        if (row := self._last) is None:
            # An answer of this model, as `upsert` takes it, that another process has written.
            await connection.execute("SELECT set_config('statement_timeout', %s, true)", [f"{SEARCH_S}s"])
            found = await (await connection.execute(self._table.a_row, [self._model])).fetchone()
            if found is None:
                return False
            row = list(found)
        async with connection.transaction(force_rollback=True):
            # Newer by the least, so that it is written again.
            name, published, tries = row[-3:]
            await self._insert(connection, [[*row[:-3], name + more, published + timedelta(microseconds=1), tries]])
            # Those that are checked late.
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        return True

    def _row(self, each: Answered) -> Row:
        prediction, key = literal(each.prediction, self._table.prediction_type), each.key if self._table.keyed else ()
        reasoning = [each.reasoning and _holdable(each.reasoning)][: len(self._table.written) - 1]
        return [*key, prediction, *reasoning, _holdable(each.message.id), each.message.published, each.tries]

    def _why(self, rows: Iterable[Row]) -> str | None:
        """Which text of these no column takes, and why: the server says neither."""
        columns = (*(self._table.keys if self._table.keyed else ()), self._table.written[0])
        for row in rows:
            for column, text in zip(columns, row, strict=False):
                nul = (
                    _JSON_NUL.search(text) if column == columns[-1] and self._table.prediction_type == "jsonb" else "\0" in text
                )
                if nul or text.encode(errors="replace").decode() != text:
                    problem = "a NUL character" if nul else "half a surrogate pair"
                    return f'its value of the column "{column}" has {problem}, which PostgreSQL cannot hold'
        return None

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        try:
            return await self._writing.run(lambda connection: self._keep_dead(connection, dead))
        except Unwritable:
            if len(dead) > 1 or dead[0].key is None:
                raise
            # If its key does not fit the column, there is no row of it.
            return await self.write_dead_letters([replace(dead[0], key=None)])

    async def _keep_dead(self, connection: Connection, dead: Sequence[Dead]) -> frozenset[str]:
        await connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{DEAD_LOCK_S}s"])
        await connection.execute(self._table.exclude)
        over = await self._over(connection, [(each.message, each.key) for each in dead])
        names = {_holdable(each.message.id): each for each in dead}
        rows = [self._dead_row(name, each) for name, each in sorted(names.items()) if name not in over]
        async with connection.cursor() as cursor:
            await cursor.executemany(self._table.insert_dead_letter, rows)
        others = names.keys() - (await self._dead(connection, list(names))).keys()
        answered = await connection.execute(self._table.answered, [list(others - over)])
        if others - over - {row[0] for row in await answered.fetchall()}:
            raise Unwritable(SWALLOWED)
        await self._check_kept(connection)
        return frozenset(names[name].message.id for name in others)

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


def _holdable(text: str) -> str:
    """The text without what PostgreSQL cannot hold: a dead letter must not become one for its attributes."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _text_size(row: tuple[str, Row]) -> int:
    return sum(map(len, filter(None, row[1][:-2])))


def make(spec: StreamSpec, kind: TaskKind, model: str, url: str) -> PostgresSink:
    """Raises BadUrl."""
    return PostgresSink(url, Table(spec, kind.prediction_type), model)
