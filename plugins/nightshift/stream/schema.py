"""The sink's two tables: how they are made, what a table that is there must have, and the statements that use them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import orjson
from psycopg import sql

from nightshift.spec.columns import REASONING
from nightshift.spec.sinks.postgres import TableSink
from nightshift.spec.stream import Messages
from nightshift.spec.stream_files import ANSWERED_AT, MESSAGE_ID, MODEL, PUBLISH_TIME, TRIES
from nightshift.stream.ports import SinkRefused
from nightshift.stream.session import Connection
from nightshift.stream.table_checks import (
    SEARCHED,
    check_generated,
    check_late,
    check_required,
    check_statement,
    check_value,
    claim,
    columns_of,
    ensure_vectors,
    full_name,
    note_index,
    sample,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.spec import StreamSpec

OWN: Final = {
    MESSAGE_ID: "text NOT NULL",
    PUBLISH_TIME: "timestamptz NOT NULL",
    MODEL: "text NOT NULL",
    TRIES: "integer NOT NULL",
    ANSWERED_AT: "timestamptz NOT NULL DEFAULT now()",
}
"""The columns that nightshift adds to the key and the prediction."""
DEAD: Final = {
    "message_id": "text PRIMARY KEY",
    "publish_time": "timestamptz NOT NULL",
    "ordering_key": "text NOT NULL",
    "attributes": "jsonb NOT NULL",
    "data": "bytea NOT NULL",
    "reason": "text NOT NULL",
    "text": "text NOT NULL",
    "status": "integer",
    "tries": "integer NOT NULL",
    "model": "text NOT NULL",
    "dead_at": "timestamptz NOT NULL DEFAULT now()",
    "redriven_at": "timestamptz",
    "redriven_as": "text",
}
"""The columns of a dead letter. redriven_at, redriven_as: when it was published again, and as which message id."""

_TIME: Final = sql.Identifier(PUBLISH_TIME)
_ID: Final = sql.Identifier(MESSAGE_ID)
_REDRIVEN: Final = sql.SQL("'[.]r[1-9][0-9]*$'")
"""The end of a redriven message's id (`nightshift.stream.redriven_ids`)."""
_ENDS_REDRIVEN: Final = re.compile(r"[.]r[1-9][0-9]*\Z")

Row = list[Any]
"""An answer as it is written: key columns (if the job names some) and prediction as text, reasoning (if it is kept), message
id, publish time, tries."""


class Table:
    """The tables of one stream. keyed: whether the job names key columns; else the message id is the key.

    written: the columns of what the model wrote. prediction_type: of the first, as PostgreSQL writes it, without its length.
    It, and the schemas of name and dead, are known after `prepare`.
    """

    def __init__(self, spec: StreamSpec, prediction: pa.DataType) -> None:
        assert isinstance(spec.sink, TableSink)
        self._spec = spec
        self._sink = spec.sink
        self._prediction = prediction
        self.name = sql.Identifier(*self._sink.table.split("."))
        self.dead = sql.Identifier(*self._sink.dead_letters_table.split("."))
        self.keyed = bool(spec.source.key)
        self._ordered = isinstance(spec.source, Messages) and spec.source.ordering
        self.keys = spec.source.key or (MESSAGE_ID,)
        self.written = (self._sink.column, *((REASONING,) if spec.request.keeps_reasoning else ()))
        self.prediction_type = ""
        self._key_types: tuple[str, ...] = ()

    async def prepare(self, connection: Connection) -> None:
        """Makes what is missing, and learns the types of what is there. Raises SinkRefused."""
        # Two subscribers that start together would both make the table, and one of them fail. Many may start together: the
        # last waits for all others, longer than a statement may wait for a row.
        limit = await (await connection.execute("SELECT current_setting('lock_timeout')")).fetchone()
        await connection.execute("SELECT set_config('lock_timeout', '0', true)")
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self._sink.table])
        await connection.execute("SELECT set_config('lock_timeout', %s, true)", limit)
        self.name = await self._found(connection, self.name, self._create)
        self.dead = await self._found(connection, self.dead, self._create_dead)
        columns = await columns_of(connection, self.name)
        self._check(columns)
        if not await self._is_unique(connection):
            listed = ", ".join(map(_quoted, self.keys))
            raise SinkRefused(
                f"the table {self._sink.table} has no unique index on {listed}, so nothing would keep a row from being "
                f"written twice: CREATE UNIQUE INDEX ON {self.name.as_string(None)} ({listed})"
            )
        await check_late(connection, self.name, self.keys)
        self.prediction_type = columns[self._sink.column]
        self._key_types = tuple(columns[key] for key in self.keys)
        await self._fit(connection)
        await claim(connection, self.name, self._spec, shared=self._sink.shared)
        if (kind := self.prediction_type.rpartition(".")[2]) in SEARCHED:
            await note_index(connection, self.name, self._sink.column, kind)

    async def _found(
        self, connection: Connection, table: sql.Identifier, create: Callable[[Connection], Awaitable[None]]
    ) -> sql.Identifier:
        """The table's full name; it is made if there is none."""
        # Not IF NOT EXISTS: that needs the right to create tables even where there is nothing to create.
        if (name := await full_name(connection, table)) is None:
            await create(connection)
            name = await full_name(connection, table)
        assert name is not None
        return name

    async def _fit(self, connection: Connection) -> None:
        """Whether answers and dead letters can be written. Raises SinkRefused."""
        written = (*self._spec.source.key, *self.written, *OWN)
        await check_generated(connection, self.name, written)
        await check_required(connection, self.name, written)
        await check_required(connection, self.dead, DEAD)
        dimensions = getattr(self._spec.request, "dimensions", None)
        value = sample(dimensions, self._prediction)
        if value is not None:
            known = dimensions or not isinstance(value, list)
            kind = await self._whole_type(connection) if known else self.prediction_type
            await check_value(connection, self.name, self._sink.column, kind, literal(value, self.prediction_type))
        await check_statement(connection, self.upsert, len(self._spec.source.key) + len(self.written) + 4)
        await check_statement(connection, self.superseded, len(self.keys) + 2)
        await check_statement(connection, self.insert_dead_letter, 11)

    async def _whole_type(self, connection: Connection) -> str:
        """Of the prediction's column, with its length."""
        found = await connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s",
            [self.name.as_string(None), self._sink.column],
        )
        row = await found.fetchone()
        return str(row[0]) if row else self.prediction_type

    @property
    def shown(self) -> str:
        """The table's name as the job has it."""
        return self._sink.table

    @cached_property
    def share(self) -> bytes:
        """Until the transaction ends, other writers of answers go on, and writers of dead letters wait."""
        return self._lock("pg_advisory_xact_lock_shared")

    @cached_property
    def exclude(self) -> bytes:
        """Until the transaction ends, all other writers wait. Reading, and whatever else others do, goes on."""
        return self._lock("pg_advisory_xact_lock")

    def _lock(self, function: str) -> bytes:
        return _made(
            "SELECT {function}(hashtextextended('nightshift ' || to_regclass({table})::oid, 0))",
            function=sql.SQL(function),
            table=sql.Literal(self.name.as_string(None)),
        )

    def key_of(self, row: Row) -> tuple[str, ...]:
        return tuple(row[: len(self.keys)]) if self.keyed else (row[-3],)

    async def _create(self, connection: Connection) -> None:
        keys = [sql.SQL("{} text").format(sql.Identifier(key)) for key in self._spec.source.key]
        own = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in OWN.items()]
        kind = await self._wanted_type(connection)
        column = sql.SQL("{} {} NOT NULL").format(sql.Identifier(self._sink.column), sql.SQL(kind))
        reasoning = [sql.SQL("{} text").format(sql.Identifier(name)) for name in self.written[1:]]
        primary = sql.SQL("PRIMARY KEY ({})").format(_joined(self.keys))
        parts = sql.SQL(", ").join([*keys, column, *reasoning, *own, primary])
        await connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self.name, parts))
        if self._spec.source.key:
            await connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(self.name, sql.Identifier(MESSAGE_ID)))

    async def _create_dead(self, connection: Connection) -> None:
        listed = ", ".join(f"{name} {kind}" for name, kind in DEAD.items())
        await connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self.dead, sql.SQL(listed)))

    async def _wanted_type(self, connection: Connection) -> str:
        """A vector if the job says how long, else what holds the Arrow type. Raises SinkRefused if vectors are not known."""
        import pyarrow as pa

        kind = self._prediction
        dimensions = getattr(self._spec.request, "dimensions", None)
        if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            if dimensions:
                await ensure_vectors(connection, self._sink.table, self._sink.column)
                return f"vector({dimensions})"
            return "double precision[]" if pa.types.is_float64(kind.value_type) else "real[]"
        if pa.types.is_string(kind):
            return "text"
        if pa.types.is_floating(kind):
            return "double precision"
        if pa.types.is_integer(kind):
            return "bigint"
        return "boolean" if pa.types.is_boolean(kind) else "jsonb"

    def _check(self, columns: Mapping[str, str]) -> None:
        lacking = [name for name in (*self.keys, *self.written, *OWN) if name not in columns]
        if lacking:
            kinds = {**OWN, **dict.fromkeys(self.written[1:], "text")}
            adds = ", ".join(f"ADD COLUMN {_quoted(name)} {kinds.get(name, 'TYPE')}" for name in lacking)
            raise SinkRefused(
                f"the table {self._sink.table} lacks {', '.join(lacking)}. Name a table that does not exist, or "
                f"ALTER TABLE {self.name.as_string(None)} {adds}"
            )

    async def _is_unique(self, connection: Connection) -> bool:
        found = await connection.execute(
            "SELECT array_agg(attname::text ORDER BY attname::text) FROM pg_index JOIN pg_attribute "
            "ON attrelid = indrelid AND attnum = ANY((indkey::int2[])[0:indnkeyatts - 1]) "
            "WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate "
            "AND indpred IS NULL AND indexprs IS NULL "
            "GROUP BY indexrelid",
            [self.name.as_string(connection)],
        )
        return any(row[0] == sorted(self.keys) for row in await found.fetchall())

    @cached_property
    def upsert(self) -> bytes:
        """Writes rows of different keys, in their order, but those that are over. Parameters: the model, and of each value of a
        `Row` an array.
        """
        # Key and prediction as text: PostgreSQL reads them as the columns would.
        kinds = {
            **{name: ("text", kind) for name, kind in zip(self._spec.source.key, self._key_types, strict=False)},
            self._sink.column: ("text", self.prediction_type),
            **dict.fromkeys(self.written[1:], ("text", "text")),
            MESSAGE_ID: ("text", "text"),
            PUBLISH_TIME: ("timestamptz", "timestamptz"),
            TRIES: ("int", "int"),
        }
        names = [f"v{place}" for place in range(len(kinds))]
        columns = (MODEL, *kinds)
        updated = [name for name in columns if name not in self.keys]
        return _made(
            "INSERT INTO {table} AS t ({columns}) SELECT %s::text, {values} "
            "FROM unnest({arrays}) WITH ORDINALITY AS u ({names}, place) "
            "WHERE NOT EXISTS (SELECT FROM {dead} AS d WHERE d.message_id = u.{id}) ORDER BY place "
            "ON CONFLICT ({keys}) DO UPDATE SET {updates}, {answered_at} = now() WHERE NOT ({over})",
            table=self.name,
            columns=_joined(columns),
            values=sql.SQL(", ").join(
                sql.SQL("u.{}::{}").format(sql.Identifier(name), sql.SQL(kind))
                for name, (_, kind) in zip(names, kinds.values(), strict=True)
            ),
            arrays=sql.SQL(", ").join(sql.SQL(f"%b::{kind}[]") for kind, _ in kinds.values()),
            names=_joined(names),
            id=sql.Identifier(names[list(kinds).index(MESSAGE_ID)]),
            dead=self.dead,
            keys=_joined(self.keys),
            updates=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated),
            answered_at=sql.Identifier(ANSWERED_AT),
            over=self._over(sql.SQL("EXCLUDED.{}").format(_TIME), sql.SQL("EXCLUDED.{}").format(_ID)),
        )

    @cached_property
    def superseded(self) -> bytes:
        """Of messages given as arrays (key columns as text, publish times, ids), the ids of those that have an outcome."""
        return _made(
            "SELECT u.id FROM {rows} WHERE {over}",
            rows=self._rows_of(published="timestamptz", id="text"),
            over=self._over(sql.SQL("u.published"), sql.SQL("u.id")),
        )

    @cached_property
    def answered(self) -> sql.Composed:
        """Of message ids (an array), those that a row has."""
        return sql.SQL("SELECT {id} FROM {table} WHERE {id} = ANY(%b)").format(id=_ID, table=self.name)

    @cached_property
    def held(self) -> sql.Composed:
        """Of keys given as arrays, with numbers, and both once more, the numbers of those whose rows another transaction holds.

        The other rows are held by this one from then on.
        """
        return sql.SQL(
            "WITH free AS (SELECT u.place FROM {rows} FOR NO KEY UPDATE OF t SKIP LOCKED) "
            "SELECT u.place FROM {rows} EXCEPT SELECT place FROM free"
        ).format(rows=self._rows_of(place="int"))

    @cached_property
    def a_row(self) -> sql.Composed:
        """A `Row` that a model (the parameter) has answered."""
        texts = [
            sql.SQL("{}::text").format(sql.Identifier(name)) for name in (*self._spec.source.key, *self.written, MESSAGE_ID)
        ]
        return sql.SQL("SELECT {}, {}, {} FROM {} WHERE {} = %s LIMIT 1").format(
            sql.SQL(", ").join(texts), _TIME, sql.Identifier(TRIES), self.name, sql.Identifier(MODEL)
        )

    def _rows_of(self, **more: str) -> sql.Composed:
        """Keys, as arrays of text, joined with their rows. more: further arrays, with their types."""
        names = [f"k{place}" for place in range(len(self.keys))]
        same = [
            sql.SQL("t.{} = u.{}::{}").format(sql.Identifier(key), sql.Identifier(name), sql.SQL(kind))
            for key, name, kind in zip(self.keys, names, self._key_types, strict=True)
        ]
        arrays = [sql.SQL(f"%b::{kind}[]") for kind in (*["text"] * len(names), *more.values())]
        return sql.SQL("unnest({arrays}) AS u ({names}) JOIN {table} AS t ON {same}").format(
            arrays=sql.SQL(", ").join(arrays), names=_joined([*names, *more]), table=self.name, same=sql.SQL(" AND ").join(same)
        )

    def _over(self, published: sql.Composable, name: sql.Composable) -> sql.Composed:
        """Whether the row `t` is the answer to this message, or to a newer one of its key.

        Messages of one request to publish have one time. In order, of those the one that is delivered last is the newest: after
        a message that it delivers again, Pub/Sub delivers again what follows it. A redriven one comes long after its turn.
        """
        parts = {"time": published, "id": name, "own_time": sql.SQL("t.{}").format(_TIME), "own": sql.SQL("t.{}").format(_ID)}
        newer = sql.SQL("({own_time}, {own_age}) >= ({time}, {age})").format(
            **parts, own_age=age(parts["own"]), age=age(parts["id"])
        )
        if not self._ordered:
            return newer
        return sql.SQL(
            "{own_time} > {time} OR ({own_time} = {time} AND ({own} = {id} OR ({id} ~ {redriven} AND {newer})))"
        ).format(**parts, newer=newer, redriven=_REDRIVEN)

    def rounds(self, rows: Sequence[Row]) -> list[list[Row]]:
        """What `upsert` is to write, one after the other, to leave what the rows leave if each is written alone.

        Of each key that is the newest; with `ordering` all of them, since each may replace the one before it (`_over`).
        Keys are compared as texts: `upsert` refuses two that are one to their columns.
        """
        if len({self.key_of(row) for row in rows}) == len(rows):
            return [list(rows)] if rows else []
        by_key: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            by_key.setdefault(self.key_of(row), []).append(row)
        if self._ordered:
            return [[row for row in each if row] for each in zip_longest(*by_key.values())]
        return [[max(each, key=lambda row: (row[-2], _age_of(row[-3]))) for each in by_key.values()]]

    @cached_property
    def insert_dead_letter(self) -> bytes:
        """Parameters: the columns of a dead letter but dead_at, and the message id again."""
        return _made(
            "INSERT INTO {dead} (message_id, publish_time, ordering_key, attributes, data, reason, text, status, tries, model) "
            "SELECT %s::text, %s::timestamptz, %s::text, %s::jsonb, %s::bytea, %s::text, %s::text, %s::int, %s::int, %s::text "
            "WHERE NOT EXISTS (SELECT FROM {table} WHERE {id} = %s) ON CONFLICT (message_id) DO NOTHING",
            dead=self.dead,
            table=self.name,
            id=_ID,
        )


def _made(text: str, **parts: sql.Composable) -> bytes:
    """A statement that is used often, so that it is put together once."""
    return sql.SQL(text).format(**parts).as_bytes(None)


def age(name: sql.Composable) -> sql.Composed:
    """What orders message ids of one publish time, as a list of expressions: Pub/Sub's numbers by their value, a redriven
    message right behind its dead letter.
    """
    return sql.SQL(
        "length(regexp_replace({id}, {redriven}, '')), regexp_replace({id}, {redriven}, '') COLLATE \"C\", "
        'length({id}), {id} COLLATE "C"'
    ).format(id=name, redriven=_REDRIVEN)


def _age_of(name: str) -> tuple[int, str, int, str]:
    """As `age`."""
    base = _ENDS_REDRIVEN.sub("", name)
    return len(base), base, len(name), name


def literal(prediction: Any, kind: str) -> str:
    """A prediction as text that PostgreSQL reads as this type."""
    if isinstance(prediction, str) and kind not in ("json", "jsonb"):
        return prediction
    text = orjson.dumps(prediction, default=list).decode()
    return f"{{{text[1:-1]}}}" if kind.endswith("[]") else text


def _quoted(name: str) -> str:
    """A column's name for a statement that a user may copy."""
    return sql.Identifier(name).as_string(None)


def _joined(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
