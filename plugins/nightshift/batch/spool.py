"""Input that can be read only once, or has to be unpacked: a copy of it, which goes away with the process."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from nightshift.batch import paths
from nightshift.batch.recognize import GZIP, START_BYTES, ZSTD
from nightshift.batch.source import BatchFile, source_of

BUFFER: Final = 1 << 20


class NotUnpacked(ValueError):
    """Compressed input is damaged, or ends too early."""


class SpooledFile:
    """A `BatchFile` over a copy. The copy has no name, so that nothing of it stays, whatever ends the process."""

    def __init__(self, name: str, copy: IO[bytes]) -> None:
        self.name = name
        self._copy = copy
        copy.flush()
        self._size = os.fstat(copy.fileno()).st_size

    def open(self) -> IO[bytes]:
        self._copy.seek(0)
        return open(os.dup(self._copy.fileno()), "rb", buffering=BUFFER)

    def read(self, start: int, length: int) -> bytes:
        parts = []
        while length and (part := os.pread(self._copy.fileno(), min(length, 1 << 30), start)):
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts)

    def version(self) -> str:
        return str(self._size)


def ready(name: str, folder: str, say: Callable[[str], None]) -> BatchFile:
    """The input in a form that can be read in any order. folder: for copies, which go away at the end. say: tells of them.

    Raises ValueError for what cannot be input, NotUnpacked, StoreUnavailable, OSError.
    """
    stream = None if "://" in name else _passing(name)
    shown = paths.shown(name, "standard input")
    if stream is None:
        file = source_of(name)
    else:
        say(f"{shown} can be read only once, so it is copied into {folder}. To resume, send the same again")
        with stream:
            file = _copied(shown, stream, folder)
    with file.open() as opened:
        start = opened.read(START_BYTES)
    if not start.startswith((GZIP, ZSTD)):
        return file
    if stream is None:
        say(f"{shown} is unpacked into {folder}")
    return _unpacked(file, start, folder)


def _passing(name: str) -> IO[bytes] | None:
    """A stream of what `name` means if it is no file. Raises ValueError for a folder, a disk or a socket, OSError."""
    descriptor = paths.descriptor_of(name, paths.STDIN)
    if descriptor is not None:
        return open(os.dup(descriptor), "rb", buffering=BUFFER)
    if (refusal := paths.refusal(Path(name).stat().st_mode)) is not None:
        raise ValueError(refusal)
    return None if Path(name).is_file() else open(name, "rb", buffering=BUFFER)


def _copied(name: str, stream: IO[bytes], folder: str) -> SpooledFile:
    copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it stays open as long as the input is read
    shutil.copyfileobj(stream, copy, BUFFER)
    return SpooledFile(name, copy)


def _unpacked(file: BatchFile, start: bytes, folder: str) -> SpooledFile:
    with file.open() as stream:
        packed: Any = gzip.GzipFile(fileobj=stream) if start.startswith(GZIP) else pa.CompressedInputStream(stream, "zstd")
        try:
            return _copied(file.name, packed, folder)
        except (EOFError, OSError, zlib.error) as error:
            # What the system says has a number; what is said of the content has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise NotUnpacked(f"it is compressed, but damaged or not whole: {error}") from error
