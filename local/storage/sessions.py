"""Uploads in several requests: resumable sessions (JSON API) and multipart uploads (XML API). Both outlive the process."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from local.storage.bodies import Bodies, Body, Incoming
from local.storage.catalog import Catalog
from local.storage.database import Database
from local.storage.errors import no_such_upload
from local.storage.preconditions import Preconditions
from local.storage.stored import Fields, StoredObject

LIFETIME_US = 7 * 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Session:
    """An upload that was started.

    ``digests`` are those the client stated at the start: ``crc32c`` and ``md5``, base64. ``result`` is the object's JSON
    resource once a resumable upload is complete.
    """

    id: str
    bucket: str
    name: str
    fields: Fields
    conditions: Preconditions
    digests: dict[str, str]
    file: str
    result: dict[str, Any] | None


class Sessions:
    """Like the catalog, for the event loop's thread only."""

    def __init__(self, database: Database, bodies: Bodies, catalog: Catalog) -> None:
        self._database = database
        self._bodies = bodies
        self._catalog = catalog
        self._incoming: dict[str, Incoming] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def start(
        self, bucket: str, name: str, fields: Fields, conditions: Preconditions, digests: dict[str, str] | None = None
    ) -> Session:
        """Raises ApiError 404 (bucket), and 412 if a precondition already fails."""
        conditions.check(self._catalog.find(bucket, name))
        session = Session(uuid.uuid4().hex, bucket, name, fields, conditions, digests or {}, uuid.uuid4().hex, None)
        settings = (json.dumps(fields), json.dumps(asdict(conditions)), json.dumps(session.digests))
        values = (session.id, self._catalog.now_us(), bucket, name, *settings, session.file)
        self._database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", *values)
        return session

    def get(self, session_id: str) -> Session:
        """Raises ApiError 404."""
        statement = "SELECT id, bucket, name, fields, preconditions, digests, file, result FROM sessions WHERE id = ?"
        row = self._database.execute(statement, session_id).fetchone()
        if row is None:
            raise no_such_upload(session_id)
        fields, conditions, digests = json.loads(row[3]), Preconditions(**json.loads(row[4])), json.loads(row[5])
        result = json.loads(row[7]) if row[7] else None
        return Session(row[0], row[1], row[2], fields, conditions, digests, row[6], result)

    def lock(self, session: Session) -> asyncio.Lock:
        """Hold this while a request appends to the session or ends it."""
        return self._locks[session.id]

    def incoming(self, session: Session) -> Incoming:
        """The bytes received so far, including those that an earlier process received."""
        if session.id not in self._incoming:
            self._incoming[session.id] = self._bodies.resume(session.file)
        return self._incoming[session.id]

    def finish(self, session: Session, render: Callable[[StoredObject], dict[str, Any]]) -> dict[str, Any]:
        """Turns the bytes of a resumable upload into its object; ``render(object)`` is kept as the answer.

        Raises ApiError 404 and 412, which end the session.
        """
        body = self.incoming(session).finish()
        try:
            with self._database.transaction():
                stored = self._catalog.put(session.bucket, session.name, body, session.fields, session.conditions)
                result = render(stored)
                self._database.execute("UPDATE sessions SET result = ? WHERE id = ?", json.dumps(result), session.id)
        except BaseException:
            self.drop(session)
            raise
        self._forget(session)
        return result

    def drop(self, session: Session) -> None:
        """Ends a session and discards what it received."""
        self._forget(session)
        with self._database.transaction():
            files = [session.file] if session.result is None else []
            files += [body.file for body in self.parts(session).values()]
            self._database.execute("DELETE FROM sessions WHERE id = ?", session.id)
            self._database.execute("DELETE FROM parts WHERE session = ?", session.id)
            for file in files:
                self._database.after_commit(partial(self._bodies.remove, file))

    def parts(self, session: Session) -> dict[int, Body]:
        rows = self._database.execute(
            "SELECT number, file, size, crc32c, md5 FROM parts WHERE session = ? ORDER BY number", session.id
        )
        return {row[0]: Body(*row[1:]) for row in rows}

    def put_part(self, session: Session, number: int, body: Body) -> None:
        """Adds a part; replaces an earlier one with the same number. Raises ApiError 404 if the upload has ended."""
        with self._database.transaction():
            self.get(session.id)
            replaced = self.parts(session).get(number)
            values = (session.id, number, body.file, body.size, body.crc32c, body.md5)
            self._database.execute("INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?, ?)", *values)
            if replaced is not None:
                self._database.after_commit(partial(self._bodies.remove, replaced.file))

    def complete(self, session: Session, whole: Body, conditions: Preconditions) -> StoredObject:
        """Makes ``whole``, assembled from the parts, the object. Raises ApiError 404 and 412; then the caller discards it."""
        with self._database.transaction():
            self.get(session.id)
            stored = self._catalog.put(session.bucket, session.name, whole, session.fields, conditions)
            self.drop(session)
        return stored

    def expire(self) -> None:
        """Ends sessions that are older than Cloud Storage allows."""
        oldest = self._catalog.now_us() - LIFETIME_US
        for (session_id,) in self._database.execute("SELECT id FROM sessions WHERE started_us < ?", oldest).fetchall():
            self.drop(self.get(session_id))

    def _forget(self, session: Session) -> None:
        if incoming := self._incoming.pop(session.id, None):
            incoming.pause()
        self._locks.pop(session.id, None)
