"""The rows of an object in a watched folder, each as the data of a message: a line as it is, a record as a JSON object."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, BinaryIO, Final

import orjson

from nightshift.store import ObjectChanged, StoreUnavailable

LINE_BYTES_MOST: Final = 10_000_000
"""As much as a message of Pub/Sub may have."""
BUFFER_BYTES: Final = 1 << 20
BATCH_ROWS: Final = 1000


class BrokenObject(Exception):
    """The object is not of its format, or not from here on."""


def rows(file: io.RawIOBase, form: str) -> Iterator[bytes]:
    """form: json, text, parquet or avro. Raises BrokenObject, and what reading the file raises."""
    try:
        yield from _READERS[form](file)
    except (BrokenObject, ObjectChanged, StoreUnavailable):
        raise
    except Exception as error:  # Neither pyarrow nor fastavro has a common base for what a broken file makes them raise.
        raise BrokenObject(f"it is not {form}: {error!r}") from error


def _lines(file: io.RawIOBase) -> Iterator[bytes]:
    """Without their ends; empty ones are left out."""
    reader = io.BufferedReader(file, BUFFER_BYTES)
    number = 0
    while line := reader.readline(LINE_BYTES_MOST + 1):
        number += 1
        if len(line) > LINE_BYTES_MOST:
            raise BrokenObject(f"its line {number} has more than {LINE_BYTES_MOST} bytes")
        if data := line.rstrip(b"\r\n"):
            yield data


def _parquet(file: io.RawIOBase) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS):
        yield from map(_json, batch.to_pylist())


def _avro(file: io.RawIOBase) -> Iterator[bytes]:
    """Of an object container file, which has its own schema."""
    import fastavro

    stream: BinaryIO = io.BufferedReader(file, BUFFER_BYTES)
    for record in fastavro.reader(stream):
        if not isinstance(record, dict):
            raise BrokenObject("its schema is not a record")
        yield _json(record)


def _json(row: Mapping[str, Any]) -> bytes:
    """Times as ISO 8601, decimal numbers as text, bytes in base64."""
    return orjson.dumps(row, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be a column")


_READERS: Final[Mapping[str, Callable[[io.RawIOBase], Iterator[bytes]]]] = {
    "json": _lines,
    "text": _lines,
    "parquet": _parquet,
    "avro": _avro,
}
