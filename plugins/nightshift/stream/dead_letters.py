"""The table of dead letters (`nightshift.stream.schema`): lists them, and marks each once when it is redriven."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from psycopg import sql

from nightshift.stream import redriven_ids
from nightshift.stream.messages import Message
from nightshift.stream.ports import SinkRefused, Unwritable
from nightshift.stream.schema import age
from nightshift.stream.session import Connection, Session
from nightshift.stream.sink_address import parse
from nightshift.stream.table_checks import columns_of, full_name

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from nightshift.spec import StreamSpec

T = TypeVar("T")

_AGE: Final = age(sql.Identifier("message_id"))
_COLUMNS: Final = {"redriven_at": "timestamptz", "redriven_as": "text"}


@dataclass(frozen=True)
class Selection:
    """Which dead letters, of those that were not redriven. reasons: empty for any. since, until: limits of dead_at, the second
    excluded. most: up to N, the oldest by dead_at.
    """

    reasons: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    most: int = 1000


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter that is selected. size: of its data, in bytes."""

    message_id: str
    reason: str
    size: int


class DeadLetterTable:
    """The table of dead letters of one stream. url: as `nightshift.stream.postgres.PostgresSink` takes it.
    credentials: of a Google account that it may name; by default the environment's.

    Every method raises Unavailable and SinkRefused. Raises BadUrl.
    """

    def __init__(self, url: str, spec: StreamSpec, credentials: Credentials | None = None) -> None:
        address = parse(url)
        assert spec.sink.dead_letters_table is not None, "nightshift.stream.names.redriven_from says so before"
        self._shown = spec.sink.dead_letters_table
        self._table = sql.Identifier(*self._shown.split("."))
        self._session = Session(address, credentials)

    async def select(self, selection: Selection) -> tuple[list[DeadLetter], int]:
        """Those that are selected, in the order in which they were published; and how many more there are beyond `most`."""

        async def ask(connection: Connection) -> tuple[list[DeadLetter], int]:
            await self._check(connection)
            where, values = _condition(selection)
            parts = {"table": self._table, "where": where}
            counted = await connection.execute(sql.SQL("SELECT count(*) FROM {table} WHERE {where}").format(**parts), values)
            row = await counted.fetchone()
            oldest = sql.SQL(
                "SELECT message_id, reason, octet_length(data) FROM (SELECT * FROM {table} WHERE {where} "
                "ORDER BY dead_at, message_id LIMIT %s) AS oldest ORDER BY publish_time, {age}"
            ).format(**parts, age=_AGE)
            found = [
                DeadLetter(*each) for each in await (await connection.execute(oldest, [*values, selection.most])).fetchall()
            ]
            return found, (row[0] if row else 0) - len(found)

        return await self._run(ask)

    async def redrive(self, ids: Sequence[str], publish: Callable[[Sequence[Message]], Awaitable[set[str]]]) -> set[str]:
        """Publishes these, in the order of their publishing, then marks those that `publish` says are published; returns them.

        One transaction, which locks their rows: another redrive at the same time passes them over. If it fails after
        they were published, they are not marked, and are published again: under the same message id, so they stay one message.
        """

        async def work(connection: Connection) -> set[str]:
            chosen = sql.SQL(
                "SELECT message_id, data, attributes, ordering_key, publish_time FROM {table} "
                "WHERE message_id = ANY(%s) AND redriven_at IS NULL ORDER BY publish_time, {age} FOR UPDATE SKIP LOCKED"
            ).format(table=self._table, age=_AGE)
            rows = await (await connection.execute(chosen, [list(ids)])).fetchall()
            published = await publish([Message(*row) for row in rows])
            mark = sql.SQL(
                "UPDATE {table} AS t SET redriven_at = clock_timestamp(), redriven_as = u.own "
                "FROM unnest(%s::text[], %s::text[]) AS u (id, own) WHERE t.message_id = u.id"
            ).format(table=self._table)
            done = sorted(published)
            marked = await connection.execute(mark, [done, [redriven_ids.next_id(each) for each in done]])
            if marked.rowcount < len(done):
                raise Unwritable("a trigger keeps the change from being made, without an error")
            return published

        return await self._run(work)

    @property
    def table(self) -> str:
        return self._shown

    async def close(self) -> None:
        await self._session.close()

    async def _run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await self._session.run(work)
        except Unwritable as error:
            raise SinkRefused(f"the table {self._shown} does not let a dead letter be marked as redriven: {error}") from error

    async def _check(self, connection: Connection) -> None:
        name = await full_name(connection, sql.Identifier(*self._shown.split(".")))
        if name is None:
            raise SinkRefused(f"there is no table {self._shown}: the stream makes it when it starts")
        self._table = name
        columns = await columns_of(connection, name)
        lacking: Mapping[str, str] = {name: kind for name, kind in _COLUMNS.items() if name not in columns}
        if lacking:
            adds = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in lacking.items())
            raise SinkRefused(
                f"the table {self._shown} lacks {' and '.join(lacking)}: ALTER TABLE {self._table.as_string(None)} {adds}"
            )


def _condition(selection: Selection) -> tuple[sql.Composable, list[Any]]:
    """What follows WHERE, and its parameters."""
    conditions, values = ["redriven_at IS NULL"], []
    for condition, value in (
        ("reason = ANY(%s)", list(selection.reasons) or None),
        ("dead_at >= %s", selection.since),
        ("dead_at < %s", selection.until),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    return sql.SQL(" AND ".join(conditions)), values
