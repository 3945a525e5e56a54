"""The sink of files: Parquet on Cloud Storage, in folders by the hour in which messages were published.

A file is there whole or not at all: it is put with the precondition that it does not exist. Its name follows from its messages,
so a put whose reply was lost is repeated without harm. A folder of files cannot be asked which messages are in it. So this
process remembers for a while what it has written; another process, or this one after a kill, does not, and then a message may
be in two files. Both are in the folder of the same hour, and a reader drops the second row, as the load into BigQuery does
(`nightshift.stream.bigquery.load`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from nightshift.spec import StreamSpec, stream_files
from nightshift.spec.sinks import files
from nightshift.store import Objects, ObjectStorage, StoreUnavailable, open_store, status_of
from nightshift.stream.messages import Answered, Dead, Message, Outcome
from nightshift.stream.parquet import Format
from nightshift.stream.ports import Collect, Locked, SinkRefused, Standing, Unavailable
from nightshift.stream.remembered_ids import RememberedIds
from nightshift.tasks.base import TaskKind

log = logging.getLogger(__name__)

SomeOutcome = TypeVar("SomeOutcome", bound=Outcome)

FILE_BYTES: Final = 64 << 20
"""Of messages and answers, as they are in memory, the most in one file."""
REMEMBER_MOST: Final = 500_000
"""Ids that are remembered: about 100 MB. A message whose acknowledgement was lost comes again when its lease ends, after ten
minutes at most; one that another process held meanwhile may come much later."""
DESCRIPTION: Final = "stream.json"
"""Beside the folders: what the files are of."""
_REFUSALS: Final = (401, 403, 404)


class FileSink:
    """`nightshift.stream.ports.Sink`. objects: of the stream's folder. now(): in UTC.

    It keeps all outcomes of a message. `nightshift.stream.bigquery.merge` counts an answer rather than a dead letter, whichever
    was first, and of answers the earliest one (answered_at) of the batch that is merged first.
    rows, every_s: how many rows a file has, and how long one waits for others.
    """

    def __init__(
        self,
        objects: Objects,
        form: Format,
        *,
        rows: int,
        every_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self.collect = Collect(rows=rows, size=FILE_BYTES, age_s=every_s)
        self._objects = objects
        self._form = form
        self._now = now
        self._written = RememberedIds(REMEMBER_MOST)

    async def open(self) -> None:
        """Says in the folder what its files are. Raises SinkRefused if they are another's, Locked, Unavailable."""
        body = self._form.description
        try:
            if await self._objects.create(DESCRIPTION, body) or (found := await self._objects.read(DESCRIPTION)) == body:
                return
        except StoreUnavailable as error:
            cause = error.__cause__
            refused = isinstance(cause, Exception) and status_of(cause) in _REFUSALS
            raise (Locked if refused else Unavailable)(str(error)) from error
        said = (found or b"").decode(errors="replace")
        raise SinkRefused(
            f"the folder has another stream's files, or other columns: {DESCRIPTION} says {said}, and this stream is "
            f"{body.decode()}. Name another folder in sink.files"
        )

    async def close(self) -> None:
        """There is nothing to close."""

    async def known(self, messages: Sequence[tuple[Message, tuple[str, ...] | None]]) -> list[Standing | Dead]:
        return [Standing.OVER if message.id in self._written else Standing.NEW for message, _ in messages]

    async def write(self, answered: Sequence[Answered]) -> frozenset[str]:
        now = self._now()
        # All are encoded before any is put: what does not fit its column is refused with nothing written.
        # Encoded in a thread: a large file takes longer than the loop may stand still.
        files = [(part, await asyncio.to_thread(self._form.answers, part, now)) for part in _by_hour(answered)]
        await self._put(stream_files.ANSWERS, files)
        return frozenset()

    async def sound(self) -> bool:
        """A file takes whatever its columns hold: what it refuses is never the folder's fault."""
        return True

    async def write_dead_letters(self, dead: Sequence[Dead]) -> frozenset[str]:
        now = self._now()
        files = [(part, await asyncio.to_thread(self._form.dead, part, now)) for part in _by_hour(dead)]
        await self._put(stream_files.DEAD, files)
        return frozenset()

    async def _put(self, kind: str, files: Sequence[tuple[Sequence[Outcome], bytes]]) -> None:
        for outcomes, body in files:
            name = self._form.name(kind, outcomes)
            try:
                fresh = await self._objects.create(name, body)
            except StoreUnavailable as error:
                raise Unavailable(str(error)) from error
            self._written.add(each.message.id for each in outcomes)
            log.info("file", extra={"fields": {"name": name, "rows": len(outcomes), "bytes": len(body), "new": fresh}})


def _by_hour(outcomes: Sequence[SomeOutcome]) -> list[list[SomeOutcome]]:
    """Those of one folder together, in a fixed order."""
    parts: dict[str, list[SomeOutcome]] = {}
    for each in sorted(outcomes, key=lambda each: (each.message.published, each.message.id)):
        parts.setdefault(stream_files.folder("", each.message.published), []).append(each)
    return list(parts.values())


def make(spec: StreamSpec, kind: TaskKind, model: str, url: str) -> FileSink:
    """url: not used."""
    assert isinstance(spec.sink, files.FileSink)
    return FileSink(
        ObjectStorage(open_store(spec.sink.files)),
        Format(spec, kind.prediction_type, model),
        rows=spec.sink.rows,
        every_s=spec.sink.every_seconds,
        now=lambda: datetime.now(UTC),
    )
