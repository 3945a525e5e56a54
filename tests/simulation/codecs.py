"""A codec that is quick: what the simulation needs of a chunk's object, without Parquet."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pyarrow as pa

from nightshift.driver.open_chunk import OpenChunk
from nightshift.run import chunks
from nightshift.run.chunks import Part, Result, Saved


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object's content. keys: the key of each row, in the order of results."""

    run_id: str
    chunk: int
    attempt: str
    results: list[Result]
    keys: list[int]
    merged: dict[str, int]


class LightCodec:
    """Stands for `nightshift.driver.codec.ParquetCodec` of one attempt."""

    def __init__(self, run_id: str, attempt: str) -> None:
        self._run_id = run_id
        self.attempt = attempt

    def encode(self, chunk: OpenChunk, keys: pa.Table) -> bytes:
        results = chunk.in_order() if chunk.complete else chunk.own()
        column = keys.column("id").to_pylist()
        kept = [column[result.ordinal - chunk.first] for result in results]
        content = (
            self._run_id,
            chunk.number,
            self.attempt,
            [(r.ordinal, r.prediction, r.reason, r.message, r.attempts) for r in results],
            kept,
            {part.attempt: part.rows for part in chunk.taken} if chunk.complete else {},
        )
        return pickle.dumps(content)

    def decode(self, body: bytes, chunk: int, first: int, keys: pa.Table) -> Saved:
        content = decode_light(body)
        if (content.run_id, content.chunk) != (self._run_id, chunk):
            raise chunks.NotAChunk(f"it belongs to chunk {content.chunk} of run {content.run_id}")
        own = dict(enumerate(keys.column("id").to_pylist(), first))
        if content.keys != [own.get(result.ordinal) for result in content.results]:
            raise chunks.NotAChunk("it has other keys than the rows that it answers")
        return Saved(content.results, Part(content.attempt, "node", "0", len(content.results)))

    def first_answered(self, body: bytes, rows: int | None = None) -> int | None:
        results = decode_light(body).results
        return next((place for place, result in enumerate(results) if result.reason is None), None)


def decode_light(body: bytes) -> Decoded:
    """Raises NotAChunk for anything that no LightCodec wrote."""
    try:
        run_id, chunk, attempt, results, keys, merged = pickle.loads(body)
    except Exception as error:
        raise chunks.NotAChunk(f"not a chunk: {error!r}") from error
    return Decoded(run_id, chunk, attempt, [Result(*values) for values in results], keys, merged)


def decode_parquet(body: bytes) -> Decoded:
    """The same of a real chunk object. Raises NotAChunk."""
    table, provenance = chunks.decode(body)
    return Decoded(
        provenance.run_id,
        provenance.chunk,
        provenance.attempt,
        chunks.results_of(table),
        table.column("id").to_pylist(),
        {part.attempt: part.rows for part in provenance.taken},
    )
