"""The SQLite file: its tables, its transactions, and its lock against a second process."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE buckets (
    name TEXT PRIMARY KEY,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    metageneration INTEGER NOT NULL,
    fields TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE objects (
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    generation INTEGER NOT NULL,
    metageneration INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    fields TEXT NOT NULL,
    file TEXT NOT NULL,
    size INTEGER NOT NULL,
    crc32c TEXT NOT NULL,
    md5 TEXT,
    PRIMARY KEY (bucket, name)
) WITHOUT ROWID;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    started_us INTEGER NOT NULL,
    bucket TEXT NOT NULL,
    name TEXT NOT NULL,
    fields TEXT NOT NULL,
    preconditions TEXT NOT NULL,
    digests TEXT NOT NULL,
    file TEXT NOT NULL,
    result TEXT
) WITHOUT ROWID;
CREATE TABLE parts (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    file TEXT NOT NULL,
    size INTEGER NOT NULL,
    crc32c TEXT NOT NULL,
    md5 TEXT,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""


class DataDirError(Exception):
    """The data folder cannot be used; the message says why."""


class Database:
    """One connection, for one thread. Holds the lock on the folder as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirError(f"{folder} is in use by another storage emulator.") from None
        self._connection = sqlite3.connect(folder / "catalog.sqlite", isolation_level=None)
        self._after_commit: list[Callable[[], None]] = []
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

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

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
            self._after_commit.clear()
            raise
        self._connection.execute("COMMIT")
        actions, self._after_commit = self._after_commit, []
        for action in actions:
            action()

    def after_commit(self, action: Callable[[], None]) -> None:
        """Runs ``action`` once the open transaction is committed; never, if it is rolled back."""
        self._after_commit.append(action)
