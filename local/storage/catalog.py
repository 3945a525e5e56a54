"""The buckets and objects. Every change checks its preconditions in its own transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from local.storage.bodies import Bodies, Body
from local.storage.database import Database
from local.storage.errors import conflict, invalid, no_such_bucket, no_such_object
from local.storage.preconditions import Preconditions
from local.storage.stored import Fields, StoredBucket, StoredObject

NAME_MAX_BYTES = 1024
NOT_FOR_OBJECTS = ".well-known/acme-challenge/"
NO_CONDITIONS = Preconditions()
OBJECT_COLUMNS = "bucket, name, generation, metageneration, created_us, updated_us, fields, file, size, crc32c, md5"


class Catalog:
    """Deliberately not thread-safe: it belongs to the event loop's thread, which makes its operations atomic."""

    def __init__(self, database: Database, bodies: Bodies) -> None:
        self._database = database
        self._bodies = bodies
        (newest,) = database.execute("SELECT max(generation) FROM objects").fetchone()
        self._last_us: int = newest or 0

    def now_us(self) -> int:
        """Microseconds since 1970, never the same twice: the source of generations."""
        self._last_us = max(self._last_us + 1, time.time_ns() // 1000)
        return self._last_us

    # Buckets

    def buckets(self) -> list[StoredBucket]:
        rows = self._database.execute("SELECT name, created_us, updated_us, metageneration, fields FROM buckets ORDER BY name")
        return [_bucket(row) for row in rows]

    def bucket(self, name: str) -> StoredBucket:
        """Raises ApiError 404."""
        statement = "SELECT name, created_us, updated_us, metageneration, fields FROM buckets WHERE name = ?"
        row = self._database.execute(statement, name).fetchone()
        if row is None:
            raise no_such_bucket(name)
        return _bucket(row)

    def create_bucket(self, name: str, fields: Fields) -> StoredBucket:
        """Raises ApiError 409 if it exists."""
        now = self.now_us()
        statement = "INSERT INTO buckets VALUES (?, ?, ?, 1, ?) ON CONFLICT DO NOTHING"
        if self._database.execute(statement, name, now, now, json.dumps(fields)).rowcount == 0:
            raise conflict(f"You already own this bucket: {name}")
        return self.bucket(name)

    def change_bucket(self, name: str, fields: Fields) -> StoredBucket:
        self.bucket(name)
        statement = "UPDATE buckets SET fields = ?, updated_us = ?, metageneration = metageneration + 1 WHERE name = ?"
        self._database.execute(statement, json.dumps(fields), self.now_us(), name)
        return self.bucket(name)

    def delete_bucket(self, name: str) -> None:
        """Raises ApiError 404, or 409 if objects are left in it."""
        self.bucket(name)
        if self._database.execute("SELECT 1 FROM objects WHERE bucket = ? LIMIT 1", name).fetchone():
            raise conflict(f"The bucket you tried to delete is not empty: {name}")
        self._database.execute("DELETE FROM buckets WHERE name = ?", name)

    # Objects

    def find(self, bucket: str, name: str) -> StoredObject | None:
        """None if the object is missing. Raises ApiError 404 if the bucket is missing."""
        row = self._database.execute(
            f"SELECT {OBJECT_COLUMNS} FROM objects WHERE bucket = ? AND name = ?", bucket, name
        ).fetchone()
        if row is None:
            self.bucket(bucket)
            return None
        return _object(row)

    def get(self, bucket: str, name: str, generation: int | None = None) -> StoredObject:
        """The object, in the named generation, if any. Raises ApiError 404."""
        found = self.find(bucket, name)
        if found is None or generation not in (None, found.generation):
            raise no_such_object(bucket, name)
        return found

    def scan(self, bucket: str, first: str) -> Iterator[StoredObject]:
        """Objects from the name ``first`` on, ordered by the UTF-8 bytes of their names."""
        statement = f"SELECT {OBJECT_COLUMNS} FROM objects WHERE bucket = ? AND name >= ? ORDER BY name"
        return map(_object, self._database.execute(statement, bucket, first))

    def put(
        self,
        bucket: str,
        name: str,
        body: Body,
        fields: Fields,
        conditions: Preconditions = NO_CONDITIONS,
    ) -> StoredObject:
        """Makes ``body`` the content of an object. Raises ApiError 404 (bucket) and 412; the caller then discards the body."""
        with self._database.transaction():
            current = self.find(bucket, _valid(name))
            conditions.check(current)
            now = self.now_us()
            made = StoredObject(bucket, name, now, 1, now, now, fields, body)
            statement = f"INSERT OR REPLACE INTO objects ({OBJECT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            row = (bucket, name, now, 1, now, now, json.dumps(fields), body.file, body.size, body.crc32c, body.md5)
            self._database.execute(statement, *row)
            if current is not None:
                self._release(current.body)
        return made

    def change(self, current: StoredObject, fields: Fields) -> StoredObject:
        """Replaces an object's metadata; its content stays."""
        statement = (
            "UPDATE objects SET fields = ?, updated_us = ?, metageneration = metageneration + 1 WHERE bucket = ? AND name = ?"
        )
        self._database.execute(statement, json.dumps(fields), self.now_us(), current.bucket, current.name)
        return self.get(current.bucket, current.name)

    def delete(self, current: StoredObject) -> None:
        with self._database.transaction():
            self._database.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", current.bucket, current.name)
            self._release(current.body)

    def _release(self, body: Body) -> None:
        self._database.after_commit(partial(self._bodies.remove, body.file))


def _valid(name: str) -> str:
    """Raises ApiError 400 for a name that Cloud Storage does not accept ("About Cloud Storage objects", requirements)."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise invalid("An object's name must be text that can be encoded as UTF-8.") from None
    if name.startswith(NOT_FOR_OBJECTS):
        raise invalid(f"An object's name must not begin with {NOT_FOR_OBJECTS}")
    if not 1 <= length <= NAME_MAX_BYTES or name in (".", "..") or "\r" in name or "\n" in name:
        raise invalid(f"Not a valid object name (1 to {NAME_MAX_BYTES} bytes, no line breaks): {name[:100]!r}")
    return name


def _bucket(row: tuple[Any, ...]) -> StoredBucket:
    return StoredBucket(row[0], row[1], row[2], row[3], json.loads(row[4]))


def _object(row: tuple[Any, ...]) -> StoredObject:
    bucket, name, generation, metageneration, created_us, updated_us, fields, *body = row
    return StoredObject(bucket, name, generation, metageneration, created_us, updated_us, json.loads(fields), Body(*body))
