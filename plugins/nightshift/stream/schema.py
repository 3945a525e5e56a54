"""The sink's two tables: how they are made, what a table that is there must have, and the statements that use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from nightshift.spec.stream import TableSink
from nightshift.spec.stream_files import ANSWERED_AT, MESSAGE_ID, MODEL, PUBLISH_TIME, TRIES
from nightshift.stream.parts import SinkRefused

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.spec import StreamSpec

Connection = psycopg.AsyncConnection[TupleRow]

OWN: Final = {
    MESSAGE_ID: "text NOT NULL",
    PUBLISH_TIME: "timestamptz NOT NULL",
    MODEL: "text NOT NULL",
    TRIES: "integer NOT NULL",
    ANSWERED_AT: "timestamptz NOT NULL DEFAULT now()",
}
"""The columns that nightshift adds to the key and the prediction."""
DEAD: Final = """
    message_id text PRIMARY KEY, publish_time timestamptz NOT NULL, ordering_key text NOT NULL, attributes jsonb NOT NULL,
    data bytea NOT NULL, reason text NOT NULL, text text NOT NULL, status integer, tries integer NOT NULL,
    model text NOT NULL, dead_at timestamptz NOT NULL DEFAULT now(), redriven_at timestamptz, redriven_as text"""
"""The columns of a dead letter. redriven_at, redriven_as: when it was published again, and as which message id."""


class Table:
    """The tables of one stream. keyed: whether the job names key columns; else the message id is the key.

    prediction_type: of the column, as PostgreSQL writes it, without its length; known after `prepare`.
    """

    def __init__(self, spec: StreamSpec, prediction: pa.DataType) -> None:
        assert isinstance(spec.sink, TableSink)
        self._spec = spec
        self._sink = spec.sink
        self._prediction = prediction
        self.name = sql.Identifier(*self._sink.table.split("."))
        self.dead = sql.Identifier(*self._sink.dead_letters_table.split("."))
        self.keyed = bool(spec.source.key)
        self.keys = spec.source.key or (MESSAGE_ID,)
        self.prediction_type = ""
        self._key_types: tuple[str, ...] = ()

    async def prepare(self, connection: Connection) -> None:
        """Makes what is missing, and learns the types of what is there. Raises SinkRefused."""
        # Two subscribers that start together would both make the table, and one of them fail.
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [self._sink.table])
        columns = await self._columns(connection, self.name)
        if not columns:
            await self._create(connection)
            columns = await self._columns(connection, self.name)
        # Not IF NOT EXISTS: that needs the right to create tables even where there is nothing to create.
        if not await self._columns(connection, self.dead):
            await connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self.dead, sql.SQL(DEAD)))
        self._check(columns)
        if not await self._is_unique(connection):
            listed = ", ".join(map(_quoted, self.keys))
            raise SinkRefused(
                f"the table {self._sink.table} has no unique index on {listed}, so nothing would keep a row from being "
                f"written twice: CREATE UNIQUE INDEX ON {self.name.as_string(None)} ({listed})"
            )
        self.prediction_type = columns[self._sink.column]
        self._key_types = tuple(columns[key] for key in self.keys)

    async def _create(self, connection: Connection) -> None:
        keys = [sql.SQL("{} text").format(sql.Identifier(key)) for key in self._spec.source.key]
        own = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in OWN.items()]
        kind = await self._wanted_type(connection)
        column = sql.SQL("{} {} NOT NULL").format(sql.Identifier(self._sink.column), sql.SQL(kind))
        primary = sql.SQL("PRIMARY KEY ({})").format(_joined(self.keys))
        parts = sql.SQL(", ").join([*keys, column, *own, primary])
        await connection.execute(sql.SQL("CREATE TABLE {} ({})").format(self.name, parts))
        if self._spec.source.key:
            await connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(self.name, sql.Identifier(MESSAGE_ID)))

    async def _wanted_type(self, connection: Connection) -> str:
        """A vector where pgvector is installed and the job says how long, else what holds the Arrow type."""
        import pyarrow as pa

        kind = self._prediction
        dimensions = getattr(self._spec.request, "dimensions", None)
        if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            found = await connection.execute("SELECT to_regtype('vector') IS NOT NULL")
            row = await found.fetchone()
            if row and row[0] and dimensions:
                return f"vector({dimensions})"
            return "double precision[]" if pa.types.is_float64(kind.value_type) else "real[]"
        if pa.types.is_string(kind):
            return "text"
        if pa.types.is_floating(kind):
            return "double precision"
        if pa.types.is_integer(kind):
            return "bigint"
        return "boolean" if pa.types.is_boolean(kind) else "jsonb"

    async def _columns(self, connection: Connection, table: sql.Identifier) -> Mapping[str, str]:
        """Names and types; empty if there is no such table.

        Types without a length, with which a cast would cut a text that is too long: the column itself refuses it.
        """
        found = await connection.execute(
            "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [table.as_string(connection)],
        )
        return dict(await found.fetchall())

    def _check(self, columns: Mapping[str, str]) -> None:
        lacking = [name for name in (*self.keys, self._sink.column, *OWN) if name not in columns]
        if lacking:
            adds = ", ".join(f"ADD COLUMN {_quoted(name)} {OWN.get(name, 'TYPE')}" for name in lacking)
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
    def upsert(self) -> sql.Composed:
        """Parameters: key columns and prediction as text, message id, publish time, model, tries, and the message id again."""
        columns = (*self._spec.source.key, self._sink.column, *list(OWN)[:4])
        key_types = self._key_types if self.keyed else ()
        casts = [sql.SQL("%s::text::{}").format(sql.SQL(kind)) for kind in (*key_types, self.prediction_type)]
        own = [sql.SQL(each) for each in ("%s::text", "%s::timestamptz", "%s::text", "%s::int")]
        updated = [name for name in (self._sink.column, *list(OWN)[:4]) if name not in self.keys]
        return sql.SQL(
            "INSERT INTO {table} AS t ({columns}) SELECT {values} WHERE NOT EXISTS (SELECT FROM {dead} WHERE message_id = %s) "
            "ON CONFLICT ({keys}) DO UPDATE SET {updates}, {answered_at} = now() "
            "WHERE (t.{time}, t.{id}) < (EXCLUDED.{time}, EXCLUDED.{id})"
        ).format(
            table=self.name,
            columns=_joined(columns),
            values=sql.SQL(", ").join([*casts, *own]),
            dead=self.dead,
            keys=_joined(self.keys),
            updates=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated),
            answered_at=sql.Identifier(ANSWERED_AT),
            time=sql.Identifier(PUBLISH_TIME),
            id=sql.Identifier(MESSAGE_ID),
        )

    @cached_property
    def superseded(self) -> sql.Composed:
        """Of messages given as arrays (key columns as text, publish times, ids), the ids of those that have an outcome."""
        names = [f"k{place}" for place in range(len(self.keys))]
        same = [
            sql.SQL("t.{} = u.{}::{}").format(sql.Identifier(key), sql.Identifier(name), sql.SQL(kind))
            for key, name, kind in zip(self.keys, names, self._key_types, strict=True)
        ]
        arrays = [sql.SQL(each) for each in [*["%s::text[]"] * len(names), "%s::timestamptz[]", "%s::text[]"]]
        return sql.SQL(
            "SELECT u.id FROM unnest({arrays}) AS u ({names}, published, id) JOIN {table} AS t ON {same} "
            "WHERE (t.{time}, t.{own}) >= (u.published, u.id)"
        ).format(
            arrays=sql.SQL(", ").join(arrays),
            names=_joined(names),
            table=self.name,
            same=sql.SQL(" AND ").join(same),
            time=sql.Identifier(PUBLISH_TIME),
            own=sql.Identifier(MESSAGE_ID),
        )

    @cached_property
    def bury(self) -> sql.Composed:
        """Parameters: the columns of a dead letter but dead_at, and the message id again."""
        return sql.SQL(
            "INSERT INTO {dead} (message_id, publish_time, ordering_key, attributes, data, reason, text, status, tries, model) "
            "SELECT %s::text, %s::timestamptz, %s::text, %s::jsonb, %s::bytea, %s::text, %s::text, %s::int, %s::int, %s::text "
            "WHERE NOT EXISTS (SELECT FROM {table} WHERE {id} = %s) ON CONFLICT (message_id) DO NOTHING"
        ).format(dead=self.dead, table=self.name, id=sql.Identifier(MESSAGE_ID))


def literal(prediction: Any, kind: str) -> str:
    """A prediction as text that PostgreSQL reads as this type."""
    if isinstance(prediction, str) and kind not in ("json", "jsonb"):
        return prediction
    text = orjson.dumps(prediction, default=list).decode()
    return f"{{{text[1:-1]}}}" if kind.endswith("[]") else text


def _quoted(name: str) -> str:
    """A column's name for a statement that a person may copy."""
    return sql.Identifier(name).as_string(None)


def _joined(names: Sequence[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))
