"""The input file: indexed once, line by line, then read again one chunk at a time. It is never in memory as a whole."""

from __future__ import annotations

import hashlib
import io
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Protocol

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.batch.lines import BOM, parse_line
from nightshift.batch.recognize import LINE_BYTES_MOST, Recognizer
from nightshift.run.inputs import InputChanged
from nightshift.run.plan import Plan
from nightshift.store import ObjectChanged, ObjectFile, StoreUnavailable, open_store, split_object_url

BUFFER: Final = 8 << 20
MARKS_MOST: Final = 1 << 20
"""Most places in the file that an index remembers: 8 MiB, whatever the file's size."""


class BatchFile(Protocol):
    """A file that can be read in pieces. name: what the user calls it."""

    name: str

    def open(self) -> IO[bytes]: ...

    def read(self, start: int, length: int) -> bytes: ...

    def version(self) -> str:
        """A text that changes with the content. Raises OSError if the file is gone."""
        ...


class LocalFile:
    """A file on this machine."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._path = Path(path)

    def open(self) -> IO[bytes]:
        return open(self._path, "rb", buffering=1 << 20)

    def read(self, start: int, length: int) -> bytes:
        with open(self._path, "rb", buffering=0) as file:
            file.seek(start)
            # A raw read returns at most 2 GiB.
            return b"".join(iter(lambda: file.read(min(length - (file.tell() - start), 1 << 30)), b""))

    def version(self) -> str:
        state = self._path.stat()
        return f"{state.st_dev}-{state.st_ino}-{state.st_size}-{state.st_mtime_ns}"


class StoredFile:
    """An object of Cloud Storage. Each method may raise StoreUnavailable."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._store, self._path = store_of(url)

    def open(self) -> IO[bytes]:
        head = self._head()
        return io.BufferedReader(ObjectFile(self._store, self._path, head["size"], head["e_tag"]), BUFFER)

    def read(self, start: int, length: int) -> bytes:
        try:
            return bytes(obstore.get_range(self._store, self._path, start=start, length=length))
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailable(f"read {self.name}: {error}") from error

    def version(self) -> str:
        meta = self._head()
        return f"{meta['size']}-{meta['e_tag']}"

    def _head(self) -> dict[str, Any]:
        try:
            return dict(obstore.head(self._store, self._path))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{self.name} does not exist") from error
        except obstore.exceptions.BaseError as error:
            raise StoreUnavailable(f"read {self.name}: {error}") from error


def source_of(name: str) -> BatchFile:
    """The file that a path or a gs:// URL names. Raises ValueError for another kind of URL."""
    if "://" not in name:
        return LocalFile(name)
    return StoredFile(name)


def store_of(url: str) -> tuple[ObjectStore, str]:
    """``gs://BUCKET/NAME`` as a store and a path in it. Raises ValueError for any other URL."""
    bucket, path = split_object_url(url)
    return open_store(f"gs://{bucket}"), path


@dataclass(frozen=True)
class Index:
    """Where the lines of a file begin. lines: those that are not blank. marks: the offset of every `every`-th line.

    version: of the file that was read; sha256: of its bytes; size: in bytes.
    """

    version: str
    sha256: str
    size: int
    lines: int
    every: int
    marks: array[int]

    def span(self, numbers: range) -> tuple[int, int, int]:
        """Where to read these lines: first byte, number of bytes, and how many lines to skip first."""
        first, skip = divmod(numbers.start, self.every)
        last = -(-numbers.stop // self.every)
        stop = self.marks[last] if last < len(self.marks) else self.size
        return self.marks[first], stop - self.marks[first], skip


def index(source: BatchFile, marks_most: int = MARKS_MOST) -> Index:
    """Reads the file once. Blank lines are ignored, as in vLLM.

    Raises OSError, StoreUnavailable, InputChanged, and NotABatchFile if it holds lines, but no request.
    """
    version = source.version()
    digest = hashlib.sha256()
    marks: array[int] = array("Q")
    every, lines, at = 1, 0, 0
    recognizer = Recognizer()
    try:
        with source.open() as file:
            while line := file.readline(LINE_BYTES_MOST):
                digest.update(line)
                if not _blank(line, at):
                    recognizer.see(line, lines)
                    if lines % every == 0:
                        if len(marks) == marks_most:
                            marks, every = marks[::2], every * 2
                        if lines % every == 0:
                            marks.append(at)
                    lines += 1
                at += len(line)
        same = source.version() == version
    except ObjectChanged:
        same = False
    if not same:
        raise InputChanged(f"{source.name} changed while it was read")
    recognizer.check(lines)
    return Index(version, digest.hexdigest(), at, lines, every, marks)


def _blank(line: bytes, at: int) -> bool:
    return not (line.removeprefix(BOM) if at == 0 else line).strip()


class LineReader:
    """The driver's reader of a batch file: a chunk's lines as a table with the columns custom_id, path, body and error."""

    def __init__(self, source: BatchFile, index: Index, plan: Plan, model: str | None) -> None:
        self._source = source
        self._index = index
        self._plan = plan
        self._model = model

    def read(self, chunk: int) -> pa.Table:
        """Raises InputChanged, StoreUnavailable."""
        numbers = self._plan.chunk_range(chunk)
        start, length, skip = self._index.span(numbers)
        try:
            block = self._source.read(start, length)
            version = self._source.version()
        except FileNotFoundError as error:
            raise InputChanged(f"{self._source.name} is gone; it must stay until the output is written") from error
        except OSError as error:
            raise StoreUnavailable(f"read {self._source.name}: {error}") from error
        if version != self._index.version:
            raise InputChanged(f"{self._source.name} changed after it was read; run the command again to start a new run")
        raws = [line for line in io.BytesIO(block) if not _blank(line, start)]
        lines = [
            parse_line(raw, number + 1, self._model)
            for number, raw in zip(numbers, raws[skip : skip + len(numbers)], strict=True)
        ]
        return pa.table(
            {
                "custom_id": pa.array([line.custom_id for line in lines], pa.string()),
                "path": pa.array([line.path for line in lines], pa.string()),
                "body": pa.array([line.body for line in lines], pa.large_binary()),
                "error": pa.array([line.error for line in lines], pa.string()),
            }
        )
