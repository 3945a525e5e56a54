"""The columns of every chunk, which the ledger's readers and writers, the warehouse and lineage share with the job's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ORDINAL: Final = "ordinal"
PREDICTION: Final = "prediction"
DEAD_REASON: Final = "dead_reason"
DEAD_MESSAGE: Final = "dead_message"
ATTEMPTS: Final = "attempts"

CHUNK_COLUMNS: Final = (ORDINAL, PREDICTION, DEAD_REASON, DEAD_MESSAGE, ATTEMPTS)
"""What no key column may be called."""


def with_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """All columns of a chunk in their order: the key columns stand behind the ordinal."""
    return (ORDINAL, *keys, *CHUNK_COLUMNS[1:])
