"""Object bodies: one file each, complete before anything refers to it, and never changed afterwards."""

from __future__ import annotations

import base64
import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import google_crc32c

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Body:
    """A complete body. ``crc32c`` and ``md5`` are base64, as the API shows them; a body assembled from parts has no ``md5``."""

    file: str
    size: int
    crc32c: str
    md5: str | None


class Incoming:
    """A body being received: appends to its file and keeps the digests up to date."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = 0
        self.size = 0

    @property
    def file(self) -> str:
        return self._path.name

    def write(self, data: bytes) -> None:
        if not data:
            return
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(data)
        self._count(data)

    def pause(self) -> None:
        """Closes the file until the next write; the kernel then has all of it, so it survives if the process is killed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> Body:
        self.pause()
        if self.size == 0:
            self._path.touch()
        return Body(self.file, self.size, _base64(self._crc32c.to_bytes(4, "big")), _base64(self._md5.digest()))

    def discard(self) -> None:
        self.pause()
        self._path.unlink(missing_ok=True)

    def reread(self) -> None:
        """Continues from what an earlier process wrote to the file."""
        if self._path.exists():
            with self._path.open("rb") as file:
                for data in _blocks(file):
                    self._count(data)

    def _count(self, data: bytes) -> None:
        self._md5.update(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self.size += len(data)


class Bodies:
    """The folder of body files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def create(self) -> Incoming:
        return Incoming(self._folder / uuid.uuid4().hex)

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """A new body, discarded if the block raises: a refused or broken write leaves nothing behind."""
        body = self.create()
        try:
            yield body
        except BaseException:
            body.discard()
            raise

    def resume(self, file: str) -> Incoming:
        incoming = Incoming(self._folder / file)
        incoming.reread()
        return incoming

    @contextmanager
    def guarded(self, body: Body) -> Iterator[None]:
        """Discards ``body`` if the block, which should commit it, raises."""
        try:
            yield
        except BaseException:
            self.remove(body.file)
            raise

    def concatenate(self, files: Iterable[BinaryIO]) -> Body:
        """Assembles one body from many, which it closes. Slow: run it in its own thread.

        Takes open files, not bodies, so it does not matter what happens to those objects meanwhile.
        """
        with self.incoming() as whole:
            for file in files:
                with file:
                    for data in _blocks(file):
                        whole.write(data)
            return replace(whole.finish(), md5=None)

    def open(self, body: Body) -> BinaryIO:
        return (self._folder / body.file).open("rb")

    def remove(self, file: str) -> None:
        (self._folder / file).unlink(missing_ok=True)

    def sweep(self, referenced: set[str]) -> None:
        """Removes what a killed process left: bodies that were never committed, or are no longer used."""
        for entry in os.scandir(self._folder):
            if entry.name not in referenced:
                Path(entry.path).unlink()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(COPY_BYTES):
        yield data


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
