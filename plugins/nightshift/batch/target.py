"""Where the output goes: an object, a file that appears under its name only when it is whole, or what bytes pass through."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import obstore

from nightshift.batch import paths
from nightshift.batch.source import store_of
from nightshift.store import reaching


class Target(Protocol):
    """name: what people call it. passing: it keeps nothing, so that no progress can lie beside it. waits: `open` may wait."""

    name: str
    passing: bool
    waits: bool

    def open(self) -> None:
        """Opens what can be opened only once, a FIFO when it has a reader. Raises OSError, StoreUnavailable."""
        ...

    def write(self, blocks: Iterator[bytes]) -> None:
        """Raises OSError and obstore's errors."""
        ...


def target_of(name: str, given: str) -> Target:
    """What `name` means; nothing is opened yet. given: the name of the input. Raises ValueError for what cannot be written."""
    if "://" in name:
        return _Object(name)
    descriptor = paths.descriptor_of(name, paths.STDOUT)
    if descriptor is not None:
        return _descriptor(name, descriptor, given)
    try:
        state = Path(name).stat()
    except FileNotFoundError:
        path = Path(os.path.realpath(name))
        _check_folder(path.parent)
        return _File(name, path)
    except OSError as error:
        raise ValueError(f"{error.strerror}") from error
    if (refusal := paths.refusal(state.st_mode)) is not None:
        raise ValueError(refusal)
    _check_apart(given, state)
    if not os.access(name, os.W_OK):
        raise ValueError("it is not writable")
    if not stat.S_ISREG(state.st_mode):
        return _Passing(name, name, waits=stat.S_ISFIFO(state.st_mode))
    path = Path(os.path.realpath(name))
    _check_folder(path.parent)
    return _File(name, path)


def _descriptor(name: str, descriptor: int, given: str) -> Target:
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise ValueError("it is open for reading only")
        _check_apart(given, os.fstat(descriptor))
    except OSError as error:
        raise ValueError(f"{error.strerror}") from error
    return _Passing(paths.shown(name, "standard output"), descriptor)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise ValueError("its folder is not writable")


def _check_apart(given: str, state: os.stat_result) -> None:
    if not stat.S_ISREG(state.st_mode) or "://" in given:
        return
    with contextlib.suppress(OSError):  # There is no such file.
        if os.path.samestat(Path(given).stat(), state):
            raise ValueError("this is the input file")


class _Object:
    """An object of Cloud Storage."""

    passing = waits = False

    def __init__(self, url: str) -> None:
        self.name = url
        self._store, self._path = store_of(url)

    def open(self) -> None:
        """Raises StoreUnavailable if the bucket is not there: after the run is too late to say so."""
        # It may be allowed to write and not to look.
        with reaching(f"look at {self.name}"), contextlib.suppress(obstore.exceptions.PermissionDeniedError):
            next(iter(obstore.list(self._store, self._path, chunk_size=1)), None)

    def write(self, blocks: Iterator[bytes]) -> None:
        obstore.put(self._store, self._path, blocks, use_multipart=True)


class _File:
    """A file on this machine. path: without links, so that the file is replaced and not the link to it."""

    passing = waits = False

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._path = path

    def open(self) -> None:
        pass

    def write(self, blocks: Iterator[bytes]) -> None:
        # A unique name: two processes may finish the same run and write at once, and neither may truncate the other's file.
        unfinished = self._path.with_name(f".nightshift-{uuid.uuid4().hex}")
        try:
            with open(unfinished, "xb") as file:
                self._take_over_owner_and_mode(file.fileno())
                for block in blocks:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            self._replace(unfinished)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _take_over_owner_and_mode(self, descriptor: int) -> None:
        """Those of the file that is replaced, if there is one."""
        try:
            old = self._path.stat()
        except FileNotFoundError:
            return
        mode = stat.S_IMODE(old.st_mode)
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            # What the old group may do is not for another one.
            mode &= mode if os.fstat(descriptor).st_gid == old.st_gid else ~stat.S_IRWXG
        os.fchmod(descriptor, mode)

    def _replace(self, unfinished: Path) -> None:
        try:
            unfinished.replace(self._path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # A single file that is mounted into a container cannot be replaced, only written.
            shutil.copyfile(unfinished, self._path)
            unfinished.unlink()


class _Passing:
    """A pipe, a terminal, a device, or whatever an open descriptor leads to. place: its path, or the descriptor."""

    passing = True

    def __init__(self, name: str, place: str | int, *, waits: bool = False) -> None:
        self.name = name
        self.waits = waits
        self._place = place
        self._file: IO[bytes] | None = None

    def open(self) -> None:
        # Another one of the same descriptor: it goes on where that stands, and closing it leaves that open.
        place = os.dup(self._place) if isinstance(self._place, int) else self._place
        self._file = open(place, "wb", buffering=0)  # noqa: SIM115 - the output comes at the end

    def write(self, blocks: Iterator[bytes]) -> None:
        assert self._file is not None
        with self._file as file:
            for block in blocks:
                rest = memoryview(block)
                while rest:
                    rest = rest[file.write(rest) :]
