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
"""Names that key columns must not have."""


def with_keys(keys: Sequence[str], *, reasoning: bool = False) -> tuple[str, ...]:
    """All columns of a chunk in order: the key columns follow the ordinal. reasoning: whether the job keeps it."""
    return (ORDINAL, *keys, *CHUNK_COLUMNS[1:], *((REASONING,) if reasoning else ()))
