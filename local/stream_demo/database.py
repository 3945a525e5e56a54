"""What the demo reads from the sink: how far the stream has got, the proof at its end, and the search."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import orjson
import psycopg
from psycopg import sql


@dataclass(frozen=True)
class Progress:
    """answered: rows of the sink. p50_s, p99_s: of their latencies in the last ten seconds; None if there were none."""

    answered: int
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True)
class Proof:
    """Of the published messages: answered, dead, lost (with no outcome) and twice (with two, or two rows)."""

    published: int
    answered: int
    dead: int
    lost: int
    twice: int


class Database:
    """The sink's tables, in a schema of the demo's own. table: with its schema."""

    def __init__(self, url: str, table: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        schema, _, name = table.partition(".")
        self._schema = sql.Identifier(schema)
        self._table = sql.Identifier(schema, name)
        self._dead = sql.Identifier(schema, f"{name}_dead_letters")

    def clear(self) -> None:
        """Begins with an empty schema."""
        self._connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(self._schema))
        self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(self._schema))

    def progress(self) -> Progress:
        try:
            row = self._connection.execute(
                sql.SQL(
                    "SELECT count(*), percentile_cont(0.5) WITHIN GROUP (ORDER BY s) FILTER (WHERE recent), "
                    "percentile_cont(0.99) WITHIN GROUP (ORDER BY s) FILTER (WHERE recent) FROM "
                    "(SELECT extract(epoch FROM nightshift_answered_at - nightshift_publish_time)::float8 AS s, "
                    "nightshift_answered_at > now() - interval '10 s' AS recent FROM {}) AS t"
                ).format(self._table)
            ).fetchone()
        except psycopg.errors.UndefinedTable:
            return Progress(0, None, None)
        assert row is not None
        return Progress(*row)

    def prove(self, ids: Collection[str]) -> Proof:
        """ids: of all that was published."""
        answered = self._ids("nightshift_message_id", self._table)
        dead = self._ids("message_id", self._dead)
        known = set(answered) | set(dead)
        twice = len(answered) + len(dead) - len(known)
        return Proof(len(ids), len(answered), len(dead), len(set(ids) - known), twice)

    def reasons(self) -> list[tuple[str, int]]:
        query = sql.SQL("SELECT reason, count(*) FROM {} GROUP BY reason ORDER BY reason").format(self._dead)
        return self._connection.execute(query).fetchall()

    def nearest(self, vector: list[float], count: int = 3) -> list[tuple[str, str, float]]:
        """Name, version and cosine of the rows nearest to a vector, by pgvector."""
        query = sql.SQL(
            "SELECT name, version, 1 - (embedding <=> %(vector)s::vector) FROM {} "
            "ORDER BY embedding <=> %(vector)s::vector, name LIMIT %(count)s"
        ).format(self._table)
        return self._connection.execute(query, {"vector": orjson.dumps(vector).decode(), "count": count}).fetchall()

    def _ids(self, column: str, table: sql.Identifier) -> list[str]:
        rows = self._connection.execute(sql.SQL("SELECT {} FROM {}").format(sql.Identifier(column), table)).fetchall()
        return [row[0] for row in rows]
