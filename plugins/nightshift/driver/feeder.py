"""Opens chunks: chooses the next one, and reads its rows and what earlier attempts saved, one chunk ahead of the senders."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from nightshift.driver.backoff import Backoff
from nightshift.driver.codec import ChunkRefused
from nightshift.driver.commits import Codec
from nightshift.driver.stats import Stats
from nightshift.driver.work_stealing import Ranges
from nightshift.run import chunks
from nightshift.run.chunks import Saved
from nightshift.run.ledger import Ledger
from nightshift.run.parquet_cost import TooLarge
from nightshift.run.parquet_rows import check, pieces
from nightshift.tasks.base import BadInput, RowName, row_name

log = logging.getLogger(__name__)

BATCH_ROWS: Final = 256
"""Rows turned into Python objects at once: few enough not to hold up requests."""
BATCH_BYTES: Final = 8 << 20
"""The same in bytes: a row may hold an image."""
COMMITTED_READ: Final = 3
"""Committed chunks in which an answered row is looked for: most have one."""
ALL_EVERY_S: Final = 60.0
ALL_EVERY_S_PER_CHUNK: Final = 0.0005
"""A LIST of everything costs a page per thousand chunks: a thousand helpers of a huge run must not ask all the time."""
_NO_VALUE: Final = (ValueError, OverflowError, pa.ArrowException)


class Reader(Protocol):
    """`nightshift.run.inputs.InputReader`, packed, or another source of rows. Called in a thread, one call at a time."""

    def read(self, chunk: int) -> pa.Table: ...


@dataclass(frozen=True)
class Opened:
    """A chunk that is ready to be sent. partials: where earlier attempts saved rows of it, by attempt."""

    number: int
    table: pa.Table
    partials: dict[str, str]


@dataclass(eq=False)
class Feeder:
    """Finds the next chunk of one worker and fetches what it needs.

    carried: the input's columns that a chunk has, too. news(): called after every check of the ledger.
    """

    ranges: Ranges
    ledger: Ledger
    reader: Reader
    codec: Codec
    patience: Backoff
    stats: Stats
    _: KW_ONLY
    carried: list[str]
    news: Callable[[], None]
    _seen_all_at: float | None = field(init=False, default=None)
    _reading: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def next_chunk(self) -> Opened | None:
        """The next uncommitted chunk, marked as open; None when all that is left is open here.

        Raises StoreUnavailable, InputChanged, ForeignObject, ChunkRefused.
        """
        while (chunk := await self._choose()) is not None:
            # Others may have committed it since: a LIST is cheaper than a minute of an accelerator.
            await self.look_again(range(chunk, self.ranges.shard_of(chunk).stop))
            if chunk in self.ranges.committed:
                continue
            self.ranges.open(chunk)
            table = await self._read(chunk)
            try:
                check(table.select(self.carried))
            except TooLarge as error:
                raise ChunkRefused(chunk, error) from error
            self.stats.bytes_read += table.nbytes
            partials = await self.patience.outlast(partial(self.ledger.partials, chunk), f"partials of chunk {chunk}")
            return Opened(chunk, table, partials)
        return None

    async def saved(self, opened: Opened) -> dict[str, Saved]:
        """What earlier attempts saved of the chunk, by attempt. Raises StoreUnavailable.

        Not before there is room for the chunk: this may be as much as all of its answers.
        """
        found: dict[str, Saved] = {}
        for attempt, path in opened.partials.items():
            body = await self.patience.outlast(partial(self.ledger.read_partial, path), path)
            if (saved := await asyncio.to_thread(self._decoded, path, body or b"", opened)) is not None:
                found[attempt] = saved
        return found

    async def answered_elsewhere(
        self, known: tuple[int, int] | None, columns: tuple[str, ...]
    ) -> tuple[int, Mapping[str, Any]] | None:
        """A row that was answered in another attempt: its ordinal and these columns of it; None if none is found.

        known: such a row as chunk and ordinal, if there is one; else one of a committed chunk is taken. Raises
        StoreUnavailable.
        """
        if known is None:
            await self.look_again(self.ranges.everything)
            known = await self._answered_in(list(itertools.islice(self.ranges.committed, COMMITTED_READ)))
        if known is None:
            return None
        chunk, ordinal = known
        table = await self._read(chunk)
        return ordinal, next(rows_of(table.slice(ordinal - self.ranges.first_of(chunk), 1), columns))

    async def _answered_in(self, chunks: list[int]) -> tuple[int, int] | None:
        for chunk in chunks:
            body = await self.patience.outlast(lambda chunk=chunk: self.ledger.read(chunk), f"chunk {chunk}")  # type: ignore[misc]
            if body is not None and (offset := await asyncio.to_thread(self.codec.first_answered, body)) is not None:
                return chunk, self.ranges.first_of(chunk) + offset
        return None

    async def _read(self, chunk: int) -> pa.Table:
        async with self._reading:
            return await self.patience.outlast(lambda: asyncio.to_thread(self.reader.read, chunk), f"input of chunk {chunk}")

    async def look_again(self, chunks: range) -> None:
        """Learns which of these chunks were committed since the last check. Raises StoreUnavailable, ForeignObject."""
        await self.patience.outlast(lambda: self.ledger.refresh(self.ranges.committed, chunks), "listing")
        self.news()

    async def look_around(self, open_chunks: list[int]) -> None:
        """Checks the ranges of these chunks; while helping, now and then at all ranges."""
        loop = asyncio.get_running_loop()
        every_s = max(ALL_EVERY_S, len(self.ranges.everything) * ALL_EVERY_S_PER_CHUNK)
        if self._seen_all_at is not None and loop.time() - self._seen_all_at > every_s:
            self._seen_all_at = loop.time()
            await self.look_again(self.ranges.everything)
            return
        for shard in dict.fromkeys(self.ranges.shard_of(chunk) for chunk in open_chunks):
            await self.look_again(shard)

    @property
    def helping(self) -> bool:
        return self._seen_all_at is not None

    async def _choose(self) -> int | None:
        chunk = self.ranges.next_home()
        if chunk is not None:
            return chunk
        if not self.helping:
            # An owner only needs its own range; a helper needs all of them.
            self._seen_all_at = asyncio.get_running_loop().time()
            await self.look_again(self.ranges.everything)
        return self.ranges.next_to_help()

    def _decoded(self, path: str, body: bytes, opened: Opened) -> Saved | None:
        """One partial; None for a torn or foreign one: partials only save work."""
        # The error stays in this frame: one that a task raises would keep the chunk's rows until the next garbage collection.
        carried = opened.table.select(self.carried)
        try:
            return self.codec.decode(body, opened.number, self.ranges.first_of(opened.number), carried)
        except chunks.NotAChunk as error:
            log.warning("partial ignored", extra={"fields": {"path": path, "error": str(error)}})
            return None


def rows_of(table: pa.Table, columns: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, which may be packed, as mappings of these columns, made a batch at a time.

    A value that Python cannot hold (a string that is not UTF-8, a date after the year 9999) raises BadInput when it is read,
    so it affects only its own row.
    """
    table = table.select(list(columns))
    slices = (table.slice(start, BATCH_ROWS) for start in range(0, len(table), BATCH_ROWS))
    for batch in itertools.chain.from_iterable(pieces(each, BATCH_BYTES) for each in slices):
        try:
            yield from batch.to_pylist()
        except _NO_VALUE:
            yield from (_BrokenRow(batch.slice(number, 1)) for number in range(len(batch)))


def names_of(keys: pa.Table, ordinals: range) -> Iterator[RowName]:
    """What tells each row apart in every run of its partition: its key columns as JSON.

    A key that Python cannot hold is not one that a user can read either: the row's ordinal stands for it.
    """
    for ordinal, key in zip(ordinals, rows_of(keys, tuple(keys.column_names)), strict=True):
        try:
            name: RowName = row_name(list(key.values()))
        except BadInput:
            name = ordinal
        yield name


class _BrokenRow(Mapping[str, Any]):
    """One row, each value made when it is read."""

    def __init__(self, row: pa.Table) -> None:
        self._row = row

    def __getitem__(self, name: str) -> Any:
        try:
            return self._row.column(name)[0].as_py()
        except _NO_VALUE as error:
            raise BadInput(f"the column {name} has a value that cannot be read: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._row.schema.names)

    def __len__(self) -> int:
        return len(self._row.schema.names)
