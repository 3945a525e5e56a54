"""The tables of the storage emulator."""

from __future__ import annotations

from pathlib import Path

from local.data_file import DataFile

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


class Database(DataFile):
    """One connection, for one thread. Raises DataDirError."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "catalog.sqlite", schema=SCHEMA, version=SCHEMA_VERSION, emulator="storage")
