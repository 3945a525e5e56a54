"""The files of a stream: where each row goes, and what its columns are called. Pure.

A stream writes them (`nightshift.stream.files`) and a loader reads them (`nightshift.stream.bigquery.load`)::

    PREFIX/answers/dt=2026-11-20/hour=13/DIGEST.parquet
    PREFIX/dead_letters/dt=2026-11-20/hour=13/DIGEST.parquet

The folders are the hour in UTC in which a message was published, written as Hive writes partitions. That time is the same in
every delivery, so all copies of a message are in one folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nightshift.spec.columns import REASONING

if TYPE_CHECKING:
    import pyarrow as pa

ANSWERS: Final = "answers"
DEAD: Final = "dead_letters"
DAY: Final = "dt"
HOUR: Final = "hour"
SUFFIX: Final = ".parquet"
FOLDER_COLUMNS: Final = (DAY, HOUR)
"""Columns that a reader of the folders adds, so no column of a file may have their names."""

MESSAGE_ID: Final = "nightshift_message_id"
PUBLISH_TIME: Final = "nightshift_publish_time"
MODEL: Final = "nightshift_model"
TRIES: Final = "nightshift_tries"
ANSWERED_AT: Final = "nightshift_answered_at"
KEY: Final = "key_"
"""Begins the names of a dead letter's key columns, which are NULL if its key could not be read."""


def folder(kind: str, published: datetime) -> str:
    """Of a message's outcome, below the prefix. kind: ANSWERS or DEAD."""
    at = published.astimezone(UTC)
    return f"{kind}/{DAY}={at:%Y-%m-%d}/{HOUR}={at:%H}"


def answer_schema(keys: Sequence[str], column: str, prediction: pa.DataType, *, reasoning: bool) -> pa.Schema:
    """keys: the key columns, as text. column: that of the prediction. reasoning: whether the model's is kept."""
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    return pa.schema(
        [
            *((key, pa.string()) for key in keys),
            (column, prediction),
            *(((REASONING, pa.string()),) if reasoning else ()),
            (MESSAGE_ID, pa.string()),
            (PUBLISH_TIME, moment),
            (MODEL, pa.string()),
            (TRIES, pa.int32()),
            (ANSWERED_AT, moment),
        ]
    )


def dead_schema(keys: Sequence[str]) -> pa.Schema:
    """As the table of dead letters in PostgreSQL, and the key. attributes: a JSON object."""
    import pyarrow as pa

    moment = pa.timestamp("us", "UTC")
    return pa.schema(
        [
            ("message_id", pa.string()),
            ("publish_time", moment),
            ("ordering_key", pa.string()),
            ("attributes", pa.string()),
            ("data", pa.binary()),
            ("reason", pa.string()),
            ("text", pa.string()),
            ("status", pa.int32()),
            ("tries", pa.int32()),
            ("model", pa.string()),
            ("dead_at", moment),
            *((f"{KEY}{key}", pa.string()) for key in keys),
        ]
    )
