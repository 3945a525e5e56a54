"""What an engine has compiled, as one archive, so that the next engine of the same kind need not compile it (ADR 0032).

The archive is a tar without compression, followed by the 32 bytes of its SHA-256. It is code: an engine runs what is in it. So
it stays below its own job's prefix, where only that job's workers write, and all of it is checked before any of it is used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Final

from nightshift.run.names import WORKERS

KEY_VARIABLE: Final = "ENGINE_CACHE_KEY"
ROOT_VARIABLE: Final = "VLLM_CACHE_ROOT"
"""vLLM's own."""
COMPILED: Final = "torch_compile_cache"
"""Below the root: what vLLM's documentation says may be copied to another machine."""
FOLDERS: Final = (COMPILED, "modelinfos")
"""All that is kept. The second is what vLLM has found out about the model's class, which takes a process with torch; each entry
has the digest of the code that it is about."""
BYTES_MOST: Final = 256 << 20
"""Of the tar, and of what is in it. A driver holds a whole one while it writes it."""
FILES_MOST: Final = 50_000

_DIGEST: Final = hashlib.sha256().digest_size
ARCHIVE_BYTES_MOST: Final = BYTES_MOST + _DIGEST
_BLOCK: Final = 1 << 20
_TARGETS: Final = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU architecture", "CPU part", "Features")
"""The lines of /proc/cpuinfo that a compiler for this very machine goes by."""


class BrokenArchive(ValueError):
    """Not an archive as `pack` makes them, or one that was altered."""


class NothingToPack(ValueError):
    """There is nothing in the folder, or more than an archive may have."""


@dataclass(frozen=True)
class Place:
    """root: the engine's cache, as this process sees it. key: of engine and machine type, from the manifest."""

    root: Path
    key: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place | None:
        """None unless the environment names both."""
        root, key = environment.get(ROOT_VARIABLE), environment.get(KEY_VARIABLE)
        return cls(Path(root), key) if root and key else None

    def path(self, job: str) -> str:
        """Of the archive in the bucket. The CPU is part of the name: vLLM's own key of what it compiles does not have it."""
        return f"{WORKERS}/{job}/compile-cache/{self.key}-{cpu_digest()}.tar"


def cpu_digest(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Eight hex digits of what code compiled for this CPU may rely on."""
    try:
        first = Path(cpuinfo).read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    found = [line for line in first.splitlines() if line.partition("\t")[0].partition(":")[0].strip() in _TARGETS]
    return hashlib.sha256("\n".join([platform.machine(), *found]).encode()).hexdigest()[:8]


def pack(root: Path, archive: IO[bytes], stopped: Callable[[], bool] = lambda: False) -> int:
    """Writes the archive of an engine's cache; returns its bytes. archive: seekable, empty. stopped: whether to give up, asked
    before each file.

    Only ordinary files go in, and no link is followed: an engine may have put one there. Raises NothingToPack, OSError; and
    InterruptedError if it was stopped.
    """
    if not is_filled(root):
        raise NothingToPack(f"{root / COMPILED} has no files")
    files = 0
    too_much = NothingToPack(f"{root} has more than {BYTES_MOST >> 20} MiB or {FILES_MOST:,} files")
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, file in _files_of(root):
            with file:
                if stopped():
                    raise InterruptedError("it was stopped")
                member = tarfile.TarInfo(name)
                member.size = os.fstat(file.fileno()).st_size
                files += 1
                if archive.tell() + member.size > BYTES_MOST or files > FILES_MOST:
                    raise too_much
                tar.addfile(member, file)
    if (size := archive.tell()) > BYTES_MOST:
        raise too_much
    archive.write(_digest(archive, size))
    return size + _DIGEST


def unpack(archive: IO[bytes], folder: Path) -> int:
    """The files of an archive, in a folder that is made for them; returns how many. archive: seekable, at its beginning.

    Raises BrokenArchive, before it has written anything if a byte of it was altered; OSError.
    """
    size = archive.seek(0, os.SEEK_END) - _DIGEST
    if not 0 < size <= BYTES_MOST or _digest(archive, size) != archive.read():
        raise BrokenArchive("its digest is not that of its content")
    archive.seek(0)
    files = total = 0
    folder.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=archive, mode="r|") as tar:
            for member in tar:
                files, total = files + 1, total + member.size
                if files > FILES_MOST or total > BYTES_MOST:
                    raise BrokenArchive("it has too many files, or too large ones")
                _write(tar, member, folder)
    except tarfile.TarError as error:
        raise BrokenArchive(f"it is not a tar archive: {error}") from error
    return files


def _digest(archive: IO[bytes], size: int) -> bytes:
    """Of its first bytes; it is then read up to there."""
    archive.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (block := archive.read(min(_BLOCK, size))):
        digest.update(block)
        size -= len(block)
    return digest.digest()


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Writes an ordinary file below the folder, and nothing else anywhere."""
    parts = PurePosixPath(member.name).parts
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
        raise BrokenArchive(f"{member.name!r} in it is not an ordinary file")
    if len(parts) < 2 or parts[0] not in FOLDERS or ".." in parts or "\0" in member.name:
        raise BrokenArchive(f"{member.name!r} in it is not a name below its folders")
    target = folder.joinpath(*parts)
    content = tar.extractfile(member)
    assert content is not None, "of an ordinary file there is"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The folder is new and all in it is from here, so there is no link to follow; "x" refuses a name that comes twice.
        with target.open("xb") as file:
            while block := content.read(_BLOCK):
                file.write(block)
    except (FileExistsError, NotADirectoryError) as error:
        raise BrokenArchive(f"{member.name!r} in it comes twice") from error


def is_filled(root: Path) -> bool:
    """Whether an engine has compiled anything there."""
    try:
        return any((root / COMPILED).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _files_of(root: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The ordinary files of the folders, opened, by their names below the root, in order. Those that vanish meanwhile are left
    out."""
    walks = [os.fwalk(root / each, onerror=_unless_gone) for each in FOLDERS if (root / each).is_dir()]
    for where, folders, names, descriptor in chain.from_iterable(walks):
        folders.sort()
        for name in sorted(names):
            try:
                # Not a pipe that nobody writes to, either: the open would wait.
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    continue
                raise error
            if not stat.S_ISREG(os.fstat(file).st_mode):
                os.close(file)
                continue
            yield str(PurePosixPath(where, name).relative_to(root)), os.fdopen(file, "rb")


def _unless_gone(error: OSError) -> None:
    """Half a folder is not an archive."""
    if not isinstance(error, FileNotFoundError):
        raise error
