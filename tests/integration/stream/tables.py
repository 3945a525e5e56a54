"""A sink over a real PostgreSQL with a table of its own, and the outcomes that tests write to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import yaml
from psycopg import sql

from nightshift.spec import StreamSpec, load_stream
from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.postgres import PostgresSink
from nightshift.stream.schema import Table
from nightshift.tasks.base import load_kind
from tests.integration.emulators import PostgresServer
from tests.integration.pubsub import unique

BEGAN: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
MODEL: Final = "m@1"
COMPLETION: Final[Mapping[str, Any]] = {"task": "completion", "request": {"prompt": "{{ text }}"}}
EMBEDDING: Final[Mapping[str, Any]] = {"task": "embedding", "request": {"input": "{{ text }}"}}
JOB: Final[Mapping[str, Any]] = {
    "job": "texts",
    "owner": "tests",
    "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
    "engine": {"max_num_seqs": 4},
    "latency": {"target": "60s"},
    "dead_letters": {"topic": "texts-dead"},
    "compute": {"profile": "cpu"},
}


class Place:
    """One table of one stream. keys: its key columns. work: the sections task and request."""

    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        *keys: str,
        work: Mapping[str, Any] = COMPLETION,
        table: str | None = None,
        column: str = "answer",
        ordering: bool = False,
        shared: bool = False,
        job: str = "texts",
    ) -> None:
        self.server = server
        self.table = table or f"t_{unique()}"
        sections = {
            "job": job,
            "source": {"subscription": "texts", "key": list(keys), "ordering": ordering},
            "sink": {"table": self.table, "column": column, "shared": shared},
        }
        self.spec = self._load(folder, sections, work)
        self.column = column

    def _load(self, folder: Path, sections: Mapping[str, Any], work: Mapping[str, Any]) -> StreamSpec:
        file = folder / f"{unique()}.yaml"
        file.write_text(yaml.safe_dump({**JOB, **sections, **work}))
        return load_stream(file)

    def sink(self, url: str | None = None) -> PostgresSink:
        """One that is not open yet."""
        table = Table(self.spec, load_kind(self.spec).prediction_type)
        return PostgresSink(url or self.server.url, table, MODEL)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[PostgresSink]:
        sink = self.sink()
        await sink.open()
        try:
            yield sink
        finally:
            await sink.close()

    def do(self, statement: str) -> None:
        """Something that somebody else does. {}: stands for the table."""
        with psycopg.connect(self.server.url) as connection:
            connection.execute(sql.SQL(statement.replace("{}", self.table)))

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url) as connection:
            return connection.execute(sql.SQL(statement.replace("{}", self.table))).fetchall()

    def answers(self) -> dict[str, str]:
        """Of each message in the table, its prediction as text."""
        return dict(self.ask(f"SELECT nightshift_message_id, {self.column}::text FROM {{}}"))

    def dead(self) -> dict[str, str]:
        """Of each dead letter, its reason."""
        return dict(self.ask("SELECT message_id, reason FROM {}_dead_letters"))

    def types(self) -> dict[str, str]:
        """Columns of the table, but those that every sink has."""
        found = self.ask(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = '{}'::regclass AND attnum > 0 ORDER BY attnum"
        )
        return {name: kind for name, kind in found if not name.startswith("nightshift_")}


def a_message(name: str, at: float = 0.0, **attributes: str) -> Message:
    """at: seconds after the first."""
    return Message(name, b"data", attributes, "", BEGAN + timedelta(seconds=at))


def an_answer(message: Message | str, prediction: Any = "yes", *key: str, tries: int = 1) -> Answered:
    message = a_message(message) if isinstance(message, str) else message
    return Answered(message, key or (message.id,), prediction, tries)


def a_death(message: Message | str, reason: str = "rejected", text: str = "no") -> Dead:
    message = a_message(message) if isinstance(message, str) else message
    return Dead(message, reason, text, 400, 2)
