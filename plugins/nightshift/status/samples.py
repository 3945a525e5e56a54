"""Sample rows of a run with their prompts and answers, from a stated number of chunks.

The choice is the same every time: chunks and rows are drawn by a hash of their numbers. Dead letters are not among the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.answers.bounded import as_json, shown
from nightshift.run.chunks import NotAChunk
from nightshift.run.names import RunRef
from nightshift.spec.columns import ATTEMPTS, CHUNK_COLUMNS, ORDINAL, PREDICTION, REASONING
from nightshift.status.folder import Chunk, RunFolder, chosen
from nightshift.status.prompts import Prompts, PromptText
from nightshift.status.source_rows import Row, SourceRows

ROWS: Final = 20
CHUNKS: Final = 4


@dataclass(frozen=True)
class Sample:
    """One answered row. finish_reason: "stop" or "length" if it is known: if none or all of its chunk's answers were cut; else
    None. tokens_in, tokens_out: of a mean row of its chunk, as the engine reported them; None if it reported none. row: the
    columns of the exported row; if it is gone, those that the chunk has. row_problem: why it, and `prompt`, are missing."""

    ordinal: int
    key: Mapping[str, Any]
    prompt: PromptText
    answer: Any
    reasoning: str | None
    finish_reason: str | None
    tokens_in: float | None
    tokens_out: float | None
    attempts: int
    chunk: int
    row: Mapping[str, Any]
    row_problem: str | None

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "prompt": self.prompt.to_json()}


@dataclass(frozen=True)
class Samples:
    """chunks: of the plan; committed: of these; read: of these, for the samples. left_out: columns that are too large to be
    read for a look. problems: chunks that could not be read, by path."""

    run: str
    rows: tuple[Sample, ...]
    chunks: int
    committed: int
    read: int
    left_out: tuple[str, ...]
    problems: Mapping[str, str]

    @property
    def basis(self) -> str:
        """What the samples are from, for people."""
        return f"{n(len(self.rows), 'row')} from {self.read:,} of {n(self.committed, 'committed chunk')}"

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "rows": [each.to_json() for each in self.rows], "basis": self.basis}


def samples(store: ObjectStore, run: RunRef, *, rows: int = ROWS, chunks: int = CHUNKS) -> Samples:
    """Reads `chunks` committed chunks and one row group of the exported rows for each. Raises what `RunFolder` raises."""
    folder = RunFolder(store, run)
    plan = folder.plan
    if plan is None:
        return Samples(run.prefix, (), 0, 0, 0, (), {})
    committed = folder.committed()
    drawn = chosen(committed, chunks, run.run_id)
    source, prompts, key = SourceRows(store, run, plan), Prompts(folder.spec), folder.spec.source.key
    found: list[Sample] = []
    problems: dict[str, str] = {}
    for at, number in enumerate(drawn):
        # What one chunk lacks, the next ones give.
        wanted = -(-(rows - len(found)) // (len(drawn) - at))
        try:
            chunk = folder.chunk(number)
        except NotAChunk as error:
            problems[folder.work.chunk_path(number)] = str(error)
            continue
        answered = chunk.table.filter(pc.is_valid(chunk.table.column(PREDICTION)))
        places = chosen(range(len(answered)), wanted, f"{run.run_id}/{number}")
        found += [sample_of(chunk, answered.slice(place, 1), key, source, prompts) for place in places]
    return Samples(
        run.prefix, tuple(found), plan.chunk_count, len(committed), len(drawn) - len(problems), source.left_out, problems
    )


def sample_of(chunk: Chunk, one: pa.Table, key: Sequence[str], source: SourceRows, prompts: Prompts) -> Sample:
    """one: a table of this row of the chunk. key: the key columns."""
    [values] = one.to_pylist()
    row: Row = source.row(values[ORDINAL])
    tokens_in, tokens_out = chunk.provenance.prompt_tokens_all, chunk.provenance.output_tokens_all
    count = max(1, chunk.table.num_rows)
    return Sample(
        values[ORDINAL],
        {name: shown(values.get(name)) for name in key},
        prompts.of(row.values) if row.values else PromptText({}, row.problem),
        shown(values[PREDICTION]),
        shown(values.get(REASONING)),
        finish_reason(chunk),
        tokens_in / count if tokens_in else None,
        tokens_out / count if tokens_out else None,
        values[ATTEMPTS],
        chunk.number,
        {**carried(values), **row.shown()},
        row.problem,
    )


def carried(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row of a chunk: the columns that were copied from the source, so that they are known even if the source is gone."""
    return {name: shown(value) for name, value in values.items() if name not in (*CHUNK_COLUMNS, REASONING)}


def finish_reason(chunk: Chunk) -> str | None:
    """Of every answer of the chunk, if it is known: a chunk says how many were cut, not which. None for answers that are no
    texts."""
    if not pa.types.is_string(chunk.table.schema.field(PREDICTION).type):
        return None
    if chunk.truncated == 0:
        return "stop"
    return "length" if chunk.truncated >= chunk.provenance.predictions else None
