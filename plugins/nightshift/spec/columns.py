"""The columns of every chunk, shared by the ledger's readers and writers, the warehouse, lineage and the job's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ORDINAL: Final = "ordinal"
PREDICTION: Final = "prediction"
DEAD_REASON: Final = "dead_reason"
DEAD_MESSAGE: Final = "dead_message"
ATTEMPTS: Final = "attempts"
REASONING: Final = "reasoning"
"""Only of a job that keeps the model's reasoning; in tables and in the files of a stream, too."""

CHUNK_COLUMNS: Final = (ORDINAL, PREDICTION, DEAD_REASON, DEAD_MESSAGE, ATTEMPTS)
"""Names that the columns of a query that a chunk carries must not have."""


def with_carried(carried: Sequence[str], *, reasoning: bool = False) -> tuple[str, ...]:
    """All columns of a chunk in order. carried: the query's, which follow the ordinal. reasoning: whether the job keeps it."""
    return (ORDINAL, *carried, *CHUNK_COLUMNS[1:], *((REASONING,) if reasoning else ()))
