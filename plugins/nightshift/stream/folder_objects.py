"""A watched folder on Cloud Storage: its objects with their rows, and the markers of those that are done.

Each row is the data of a message: a line as it is, a record as a JSON object.
"""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import obstore
import orjson

from nightshift.store import ObjectChanged, ObjectFile, ObjectStorage, StoreUnavailable, is_hidden, reaching
from nightshift.stream.folder_source import BrokenObject, Found

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

MARKERS: Final = "_nightshift"
LINE_BYTES_MOST: Final = 10_000_000
"""As much as a message of Pub/Sub may have."""
BUFFER_BYTES: Final = 1 << 20
BATCH_ROWS: Final = 1000


class WatchedFolder:
    """`nightshift.stream.folder_source.Folder`. job: whose markers; another stream that watches the folder has its own."""

    def __init__(self, store: ObjectStore, job: str, form: str) -> None:
        self._store = store
        self._markers = f"{MARKERS}/{job}"
        self._form = form
        self._objects = ObjectStorage(store)

    async def found(self) -> list[Found]:
        return [_found(meta) async for meta in self._listed() if not is_hidden(meta["path"])]

    async def done(self) -> set[str]:
        return {path.rpartition("/")[2] async for path in self._objects.list(self._markers)}

    async def finish(self, marker: str, body: bytes) -> None:
        await self._objects.create(f"{self._markers}/{marker}", body)

    def read(self, found: Found) -> Iterator[bytes]:
        # What is empty has no rows, in any format: a placeholder for a folder, for example.
        if found.size:
            yield from rows(ObjectFile(self._store, found.path, found.size, found.e_tag), self._form)

    async def _listed(self) -> AsyncIterator[ObjectMeta]:
        with reaching("list the watched folder"):
            async for page in obstore.list(self._store, chunk_size=1000):
                for meta in page:
                    yield meta


def _found(meta: ObjectMeta) -> Found:
    """The version is the instant of creation and the ETag: a listing does not tell the generation, and these stand for it."""
    created, e_tag = meta["last_modified"], meta["e_tag"]
    tag = (e_tag or "").strip('"')
    return Found(meta["path"], f"{created:%Y%m%dT%H%M%S%f}-{tag}", meta["size"], e_tag, created)


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
