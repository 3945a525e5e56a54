"""The SQLite file of an emulator's data folder: its tables, its transactions, and its lock against a second process."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class DataDirError(Exception):
    """The data folder cannot be used; the message says why."""


class DataFile:
    """One connection, for one thread. Holds the lock on the folder as long as the process runs.

    schema: the statements that make the tables of a new file. version: of the schema, 1 at least. emulator: whose folder this
    is, for messages. Raises DataDirError.
    """

    def __init__(self, folder: Path, name: str, *, schema: str, version: int, emulator: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataDirError(f"{folder} is in use by another {emulator} emulator.") from None
        self._after_commit: list[Callable[[], None]] = []
        self._connection = sqlite3.connect(folder / name, isolation_level=None)
        # A commit is one append to the write-ahead log. Without syncs only the kernel has it, but that outlives this process.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        (found,) = self._connection.execute("PRAGMA user_version").fetchone()
        if found == 0:
            self._connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;")
        elif found != version:
            raise DataDirError(f"{folder} was written by another version of this emulator ({found}, not {version}).")

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._connection.executemany(statement, rows)

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
