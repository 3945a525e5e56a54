"""Turns an open chunk into the bytes of its object and back, and records who made it."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from nightshift.driver.scheduler import OpenChunk
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result, Saved
from nightshift.spec import columns

GROUP_BYTES: Final = 64 << 20
"""Answers of a row group of a chunk. Today's plans have smaller chunks; one of an earlier version may have 800 MB."""
_ENCODED: Final = Result(-1, None, None, None, 0)
"""Stands for the answer of a row that is in the chunk's bytes."""
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)
"""glibc keeps the memory of small objects that are gone, and would still have that of the answers when the bytes need it."""


class ParquetCodec:
    """The Parquet form (`nightshift.run.chunks`) of one attempt's chunks. model: the job's model section, as JSON.

    chunk_rows: of the plan; nothing with more rows is unpacked. reasoning: whether the job keeps the model's.
    """

    def __init__(
        self,
        *,
        run_id: str,
        plan_uid: str = "",
        attempt: str,
        node: str,
        model: dict[str, str],
        engine_version: str,
        prediction_type: pa.DataType,
        chunk_rows: int | None = None,
        reasoning: bool = False,
    ) -> None:
        self._run_id = run_id
        self._plan_uid = plan_uid
        self._attempt = attempt
        self._node = node
        self._model = model
        self._engine_version = engine_version
        self.prediction_type = prediction_type
        self._chunk_rows = chunk_rows
        self._optional = (columns.REASONING,) if reasoning else ()

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes:
        """The chunk's object if every row has a result, else a partial with the rows that this attempt computed itself: the
        others are still in the partials that they came from. keys: the key columns of all rows of the chunk.

        The chunk's answers go into the bytes: it keeps which rows were answered, but not what. Both together would need twice
        the memory. So a chunk can be encoded only once; raises ValueError the second time.
        """
        if any(result is _ENCODED for result in chunk.results.values()):
            raise ValueError(f"chunk {chunk.number} was encoded before: its answers are gone")
        results = chunk.in_order() if chunk.complete else chunk.own()
        if len(results) < chunk.expected:
            keys = keys.take([result.ordinal - chunk.first for result in results])
        dead = sum(result.reason is not None for result in results)
        provenance = Provenance(
            run_id=self._run_id,
            plan_uid=self._plan_uid,
            chunk=chunk.number,
            attempt=self._attempt,
            node=self._node,
            model=self._model,
            engine_version=self._engine_version,
            started=datetime.fromtimestamp(chunk.opened, UTC).isoformat(timespec="seconds"),
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            predictions=len(results) - dead,
            dead_letters=dead,
            prompt_tokens=chunk.prompt_tokens,
            output_tokens=chunk.output_tokens,
            truncated=chunk.truncated,
            taken=tuple(chunk.taken) if chunk.complete else (),
        )
        group_rows = max(1, GROUP_BYTES * len(results) // max(1, chunk.answer_bytes))
        return self._bytes(keys, _handed_over(chunk, results, group_rows), provenance, group_rows)

    def decode(self, body: bytes, chunk: int) -> Saved:
        """A partial. Raises NotAChunk if it is torn, has too many rows, or belongs to another run or chunk."""
        results, provenance = chunks.decode_results(body, self._results, rows=self._chunk_rows)
        if (provenance.run_id, provenance.plan_uid, provenance.chunk) != (self._run_id, self._plan_uid, chunk):
            raise chunks.NotAChunk(f"it belongs to chunk {provenance.chunk} of {provenance.whose}")
        return Saved(results, replace(provenance.parts[0], rows=len(results)))

    def first_answered(self, body: bytes, rows: int | None = None) -> int | None:
        """The place, from 0, of the first row with a prediction in a chunk; None if there is none, or it is not a chunk.

        rows: the most that a chunk of its plan has, if that is another run's.
        """
        try:
            table, _ = chunks.decode_outcomes(body, rows=rows or self._chunk_rows)
        except chunks.NotAChunk:
            return None
        place = pc.index(table.column(columns.DEAD_REASON).is_null(), True).as_py()
        return None if place < 0 else int(place)

    def _bytes(self, keys: pa.Table, results: Iterable[Result], provenance: Provenance, group_rows: int) -> bytes:
        return chunks.encode(keys, results, self.prediction_type, provenance, group_rows=group_rows, optional=self._optional)

    def _results(self, table: pa.Table) -> list[Result]:
        return chunks.results_of(table, optional=self._optional)


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
