"""The tables of the Pub/Sub emulator, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from local.data_file import DataFile

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE owners (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (kind, name)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    published_us INTEGER NOT NULL,
    key TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE held (
    owner INTEGER NOT NULL,
    message INTEGER NOT NULL,
    acked INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (owner, message)
) WITHOUT ROWID;
"""


class Database(DataFile):
    """One connection, for one thread. Raises DataDirError.

    owners: topics and subscriptions, each with its protobuf message. held: which subscription keeps which message.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "pubsub.sqlite", schema=SCHEMA, version=SCHEMA_VERSION, emulator="Pub/Sub")

    def owners(self) -> list[tuple[int, str, bytes]]:
        """Id, kind and protobuf message, oldest first."""
        return self.execute("SELECT id, kind, body FROM owners ORDER BY id").fetchall()

    def messages(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Id, publish time in microseconds since 1970, ordering key and body, oldest first."""
        return self.execute("SELECT id, published_us, key, body FROM messages ORDER BY id")

    def held(self, owner: int) -> list[tuple[int, int, int]]:
        """Message id, whether it is acknowledged, and its attempts, oldest first."""
        statement = "SELECT message, acked, attempts FROM held WHERE owner = ? ORDER BY message"
        return self.execute(statement, owner).fetchall()

    def add_owner(self, kind: str, name: str, body: bytes) -> int:
        statement = "INSERT INTO owners (kind, name, body) VALUES (?, ?, ?) RETURNING id"
        (number,) = self.execute(statement, kind, name, body).fetchone()
        return int(number)

    def change_owner(self, owner: int, body: bytes) -> None:
        self.execute("UPDATE owners SET body = ? WHERE id = ?", body, owner)

    def remove_owner(self, owner: int) -> None:
        self.execute("DELETE FROM owners WHERE id = ?", owner)

    def add_messages(self, rows: Iterable[tuple[int, int, str, bytes]]) -> None:
        self.execute_many("INSERT INTO messages VALUES (?, ?, ?, ?)", rows)

    def remove_messages(self, numbers: Iterable[int]) -> None:
        self.execute_many("DELETE FROM messages WHERE id = ?", ((number,) for number in numbers))

    def hold(self, owner: int, rows: Iterable[tuple[int, bool, int]]) -> None:
        """rows: message id, whether it is acknowledged, its attempts. Replaces what is there."""
        statement = "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)"
        self.execute_many(statement, ((owner, *row) for row in rows))

    def release(self, owner: int, numbers: Iterable[int]) -> None:
        statement = "DELETE FROM held WHERE owner = ? AND message = ?"
        self.execute_many(statement, ((owner, number) for number in numbers))
