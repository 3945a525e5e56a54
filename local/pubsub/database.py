"""The SQLite file: its tables, its transactions, and its lock against a second process."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

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


class DataDirError(Exception):
    """The data folder cannot be used; the message says why."""


class Database:
    """One connection, for one thread. Holds the lock on the folder as long as the process lives.

    owners: topics, subscriptions and snapshots, each with its protobuf message. held: which of them keeps which message.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirError(f"{folder} is in use by another Pub/Sub emulator.") from None
        self._connection = sqlite3.connect(folder / "pubsub.sqlite", isolation_level=None)
        # A commit is one append to the write-ahead log. Without syncs only the kernel has it, but that outlives this process.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._create_tables(folder)

    def _create_tables(self, folder: Path) -> None:
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            self._connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif found != SCHEMA_VERSION:
            raise DataDirError(f"{folder} was written by another version of this emulator ({found}, not {SCHEMA_VERSION}).")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits the whole block or nothing. A block inside another joins it."""
        if self._connection.in_transaction:
            yield
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def owners(self) -> list[tuple[int, str, bytes]]:
        """Id, kind and protobuf message, oldest first."""
        return self._connection.execute("SELECT id, kind, body FROM owners ORDER BY id").fetchall()

    def messages(self) -> Iterator[tuple[int, int, str, bytes]]:
        """Id, publish time in microseconds since 1970, ordering key and body, oldest first."""
        return self._connection.execute("SELECT id, published_us, key, body FROM messages ORDER BY id")

    def held(self, owner: int) -> list[tuple[int, int, int]]:
        """Message id, whether it is acknowledged, and its attempts, oldest first."""
        statement = "SELECT message, acked, attempts FROM held WHERE owner = ? ORDER BY message"
        return self._connection.execute(statement, (owner,)).fetchall()

    def add_owner(self, kind: str, name: str, body: bytes) -> int:
        statement = "INSERT INTO owners (kind, name, body) VALUES (?, ?, ?) RETURNING id"
        (number,) = self._connection.execute(statement, (kind, name, body)).fetchone()
        return int(number)

    def change_owner(self, owner: int, body: bytes) -> None:
        self._connection.execute("UPDATE owners SET body = ? WHERE id = ?", (body, owner))

    def remove_owner(self, owner: int) -> None:
        self._connection.execute("DELETE FROM owners WHERE id = ?", (owner,))

    def add_messages(self, rows: Iterable[tuple[int, int, str, bytes]]) -> None:
        self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", rows)

    def remove_messages(self, numbers: Iterable[int]) -> None:
        self._connection.executemany("DELETE FROM messages WHERE id = ?", ((number,) for number in numbers))

    def hold(self, owner: int, rows: Iterable[tuple[int, bool, int]]) -> None:
        """rows: message id, whether it is acknowledged, its attempts. Replaces what is there."""
        statement = "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)"
        self._connection.executemany(statement, ((owner, *row) for row in rows))

    def release(self, owner: int, numbers: Iterable[int]) -> None:
        statement = "DELETE FROM held WHERE owner = ? AND message = ?"
        self._connection.executemany(statement, ((owner, number) for number in numbers))
