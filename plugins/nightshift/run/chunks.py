"""The Parquet form of a chunk: one row per ordinal, a prediction or a dead letter, and who made it.

Partials have the same form with only the rows that were finished. The file's ``nightshift`` metadata is a `Provenance`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

METADATA_KEY: Final = b"nightshift"
RESERVED: Final = ("ordinal", "prediction", "dead_reason", "dead_message", "attempts")


class NotAChunk(ValueError):
    """Bytes that are not a chunk of this run."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one row: a prediction, or a dead letter with its reason; exactly one of the two is None.

    reason: from `nightshift.tasks.base.Reason`. message: the engine's own words. attempts: requests the row was part of.
    """

    ordinal: int
    prediction: Any
    reason: str | None
    message: str | None
    attempts: int


@dataclass(frozen=True)
class Provenance:
    """Who made a chunk and from what. Times are ISO 8601 in UTC by the worker's own clock, for people, not for ordering.

    started, finished: when the chunk was opened and when it was encoded. predictions + dead_letters = rows of the file.
    prompt_tokens, output_tokens: what this attempt's requests reported. computed_rows: rows that this attempt worked out;
    merged: {attempt: rows} taken over from what other attempts saved.
    """

    run_id: str
    chunk: int
    attempt: str
    node: str
    model: dict[str, str]
    engine_version: str
    started: str
    finished: str
    predictions: int
    dead_letters: int
    prompt_tokens: int
    output_tokens: int = 0
    computed_rows: int = 0
    merged: dict[str, int] = field(default_factory=dict)


def encode(keys: pa.Table, results: Sequence[Result], prediction_type: pa.DataType, provenance: Provenance) -> bytes:
    """One Parquet file. keys: the key columns of the same rows in the same order; results: sorted by ordinal."""
    columns = {
        "ordinal": pa.array([result.ordinal for result in results], pa.int64()),
        **{name: keys.column(name) for name in keys.column_names},
        "prediction": pa.array([result.prediction for result in results], prediction_type),
        "dead_reason": pa.array([result.reason for result in results], pa.string()),
        "dead_message": pa.array([result.message for result in results], pa.string()),
        "attempts": pa.array([result.attempts for result in results], pa.int32()),
    }
    table = pa.table(columns).replace_schema_metadata({METADATA_KEY: json.dumps(asdict(provenance)).encode()})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def decode(body: bytes) -> tuple[pa.Table, Provenance]:
    """The rows and the provenance. Raises NotAChunk for anything else, a torn upload included."""
    try:
        table = pq.read_table(io.BytesIO(body))
        provenance = Provenance(**json.loads(table.schema.metadata[METADATA_KEY]))
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:  # OSError: what Thrift cannot read
        raise NotAChunk(f"not a chunk: {error!r}") from error
    if missing := [name for name in RESERVED if name not in table.column_names]:
        raise NotAChunk(f"not a chunk: it lacks the columns {missing}")
    return table, provenance


def results_of(table: pa.Table) -> list[Result]:
    """The rows of a decoded partial, as the driver keeps them."""
    columns = [table.column(name).to_pylist() for name in RESERVED]
    return [Result(*values) for values in zip(*columns, strict=True)]
