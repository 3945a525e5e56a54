"""Turns an open chunk into the bytes of its object and back, and records who made it."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.driver.open_chunk import OpenChunk
from nightshift.run import chunks, parquet_cost, parquet_rows
from nightshift.run.chunks import Provenance, Result, Saved
from nightshift.run.parquet_cost import TooLarge, text_bytes
from nightshift.spec import columns

GROUP_BYTES: Final = 64 << 20
"""Answers and copied columns of a row group of a chunk. A plan sees to smaller chunks, as far as answers can be foreseen
(docs/operate/limits.md)."""
_ENCODED: Final = Result(-1, None, None, None, 0)
"""Stands for the answer of a row that is in the chunk's bytes."""
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
"""glibc keeps the memory of small objects that are gone, and would still have that of the answers when the bytes need it."""


class ChunkRefused(Exception):
    """The seal would refuse this chunk of the plan, so no attempt can compute it."""

    def __init__(self, chunk: int, error: ValueError) -> None:
        fit = error.fit if isinstance(error, TooLarge) else None
        rows = f"to {fit:,} or less" if fit else "lower"
        super().__init__(
            f"chunk {chunk} would be refused by the seal: {error}. Set chunk_rows {rows} in the "
            "job's file, or take a long column out of source.pass_through, and trigger the DAG with fresh"
        )


@dataclass(frozen=True, kw_only=True)
class ParquetCodec:
    """The Parquet form (`nightshift.run.chunks`) of one attempt's chunks. model: the job's model section, as JSON.

    chunk_rows: of the plan; nothing with more rows is unpacked. optional: columns that its chunks have besides.
    """

    run_id: str
    plan_uid: str = ""
    attempt: str
    node: str
    model: dict[str, str]
    engine_version: str
    prediction_type: pa.DataType
    chunk_rows: int | None = None
    optional: tuple[str, ...] = ()

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes:
        """The chunk's object if every row has a result, else a partial with the rows that this attempt computed itself: the
        others are still in the partials that they came from. keys: the key columns of all rows of the chunk.

        The chunk's answers go into the bytes: it keeps which rows were answered, but not what. Both together would need twice
        the memory. So a chunk can be encoded only once; raises ValueError the second time, and ChunkRefused for bytes that the
        seal would refuse.
        """
        if any(result is _ENCODED for result in chunk.results.values()):
            raise ValueError(f"chunk {chunk.number} was encoded before: its answers are gone")
        results = chunk.in_order() if chunk.complete else chunk.own()
        if len(results) < chunk.expected:
            keys = keys.take([result.ordinal - chunk.first for result in results])
        dead = sum(result.reason is not None for result in results)
        provenance = Provenance(
            run_id=self.run_id,
            plan_uid=self.plan_uid,
            chunk=chunk.number,
            attempt=self.attempt,
            node=self.node,
            model=self.model,
            engine_version=self.engine_version,
            started=datetime.fromtimestamp(chunk.opened, UTC).isoformat(timespec="seconds"),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            predictions=len(results) - dead,
            dead_letters=dead,
            prompt_tokens=chunk.prompt_tokens,
            output_tokens=chunk.output_tokens,
            truncated=chunk.truncated,
            taken=tuple(chunk.taken) if chunk.complete else (),
        )
        size = chunk.answer_bytes + sum(map(text_bytes, keys.columns))
        group_rows = max(1, GROUP_BYTES * len(results) // max(1, size))
        results_left = _handed_over(chunk, results, group_rows)
        body = chunks.encode(
            keys, results_left, self.prediction_type, provenance, group_rows=group_rows, optional=self.optional
        )
        try:
            parquet_cost.check_own(body)
        except ValueError as error:
            raise ChunkRefused(chunk.number, error) from error
        return body

    def decode(self, body: bytes, chunk: int, first: int, keys: pa.Table) -> Saved:
        """A partial of the chunk. first: the ordinal of its first row; keys: the key columns of all its rows.

        Raises NotAChunk if it is torn, has too many rows, or belongs to another run, chunk or row. The seal would refuse a
        chunk that was made of it, and every attempt would make the same one again.
        """

        def read(table: pa.Table) -> list[Result]:
            _check_rows(table, first, keys)
            return self._results(table)

        results, provenance = chunks.decode_results(body, read, rows=self.chunk_rows, keys=keys.column_names)
        if (provenance.run_id, provenance.plan_uid, provenance.chunk) != (self.run_id, self.plan_uid, chunk):
            raise chunks.NotAChunk(f"it belongs to chunk {provenance.chunk} of {provenance.whose}")
        return Saved(results, replace(provenance.parts[0], rows=len(results)))

    def first_answered(self, body: bytes, rows: int | None = None) -> int | None:
        """The place, from 0, of the first row with a prediction in a chunk; None if there is none, or it is not a chunk.

        rows: the most that a chunk of its plan has, if that is another run's.
        """
        try:
            table, _ = chunks.decode_outcomes(body, rows=rows or self.chunk_rows)
        except chunks.NotAChunk:
            return None
        place = pc.index(table.column(columns.DEAD_REASON).is_null(), True).as_py()
        return None if place < 0 else int(place)

    def _results(self, table: pa.Table) -> list[Result]:
        if (kind := table.schema.field(columns.PREDICTION).type) != self.prediction_type:
            raise chunks.NotAChunk(f"its predictions are of type {kind}, and the job's of type {self.prediction_type}")
        return chunks.results_of(table, optional=self.optional)


def _check_rows(table: pa.Table, first: int, keys: pa.Table) -> None:
    """Raises NotAChunk unless each row is one of the chunk, as a prediction or as a dead letter. keys: of all its rows."""
    ordinals = pa.array(range(first, first + len(keys)), pa.int64())
    places = pc.index_in(table.column(columns.ORDINAL), ordinals)
    if places.null_count:
        raise chunks.NotAChunk(f"it has rows that are not between {first} and {first + len(keys) - 1}")
    if differ := parquet_rows.other_columns(keys.take(places), table):
        raise chunks.NotAChunk(f"it has other keys than the rows that it answers ({', '.join(differ)})")
    answered, dead = (pc.is_valid(table.column(name)) for name in (columns.PREDICTION, columns.DEAD_REASON))
    if not pc.all(pc.xor(answered, dead)).as_py():
        raise chunks.NotAChunk("it has a row that is neither a prediction nor a dead letter, or both")


def _handed_over(chunk: OpenChunk, results: list[Result], group_rows: int) -> Iterator[Result]:
    """The results, each of which the chunk and the list let go of when it has been read."""
    for place, result in enumerate(results):
        if place and place % group_rows == 0:
            _trim(0)
        if result.reason is None:
            chunk.results[result.ordinal] = results[place] = _ENCODED
        yield result


def dead_reasons(chunk: OpenChunk) -> Counter[str]:
    """How many dead letters a chunk has, by reason."""
    return Counter(result.reason for result in chunk.results.values() if result.reason is not None)
