"""A model of the Hub as files in a bucket: each file of one commit, written once.

The folder ends in the commit, so its files never change. A copy that was cut off goes on with the missing files. A file is
there whole or not at all, and ``config.json`` comes last, so no engine starts with a folder that is not complete.

What lies there is believed by its digest, which the copy writes into the object's metadata. An object without one, of an
earlier release or by another hand, is read. A name that the commit lacks is refused: an engine may load what has it.
"""

from __future__ import annotations

import hashlib
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.models.hub_revision import PAUSES_S, HubFile, HubUnavailable, endpoint_of, files_at, request_of
from nightshift.store import first_words

if TYPE_CHECKING:
    from obstore import Attributes

LAST: Final = "config.json"
DIGEST: Final = "nightshift-digest"
"""The key of the object's metadata: ``sha256:HEX``, or ``git:HEX`` of a file that Git itself keeps."""
BLOCK: Final = 16 << 20
"""Bytes that are read, and uploaded, at a time; at most `AT_ONCE` of these blocks are held."""
AT_ONCE: Final = 8
TIMEOUT_S: Final = 60.0
"""Without a byte."""
NAMED_MOST: Final = 10
_Used = TypeVar("_Used")
_open: Final = partial(urllib.request.urlopen, timeout=TIMEOUT_S)
_OTHER_WEIGHTS: Final = (".bin", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth")
"""Formats that repeat what safetensors have."""


class OtherFile(ValueError):
    """An object in the folder is not the file of this commit."""


class _Differs(OSError):
    """What was read is not what the Hub says that the file is."""


def folder_of(root: str, repository: str, commit: str) -> str:
    """Where the copy is. root: ``gs://BUCKET[/FOLDER]``."""
    return f"{root.rstrip('/')}/{repository}/{commit}"


def wanted(files: Sequence[HubFile]) -> tuple[HubFile, ...]:
    """What an engine may need, in the order in which it is copied: as vLLM's loader chooses, safetensors if there are any, and
    never the folder ``original``."""
    safe = any(each.name.endswith(".safetensors") for each in files)
    found = [
        each
        for each in files
        if not each.name.startswith(("original/", ".")) and not (safe and each.name.endswith(_OTHER_WEIGHTS))
    ]
    return tuple(sorted(found, key=lambda each: (each.name == LAST, each.name)))


def copy(
    repository: str,
    commit: str,
    folder: ObjectStore,
    environment: Mapping[str, str],
    done: Callable[[HubFile, bool], None],
    *,
    fetch: Callable[[urllib.request.Request], IO[bytes]] = _open,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Copies what is missing, checks what is there; returns the bytes of all files. done: told of each file, and whether it was
    copied now.

    folder: of `folder_of`. environment: HF_ENDPOINT, HF_TOKEN. fetch: opens a URL. Raises HubUnavailable, NoSuchRevision,
    OtherFile, and the store's errors.
    """
    listed = files_at(repository, commit, environment, pause)
    files, at = wanted(listed), f"{repository} {commit[:12]}"
    there = _listed(folder, listed, at)
    base = f"{endpoint_of(environment)}/{quote(repository)}/resolve/{commit}/"

    def content_of(file: HubFile, use: Callable[[Iterator[bytes]], _Used]) -> _Used:
        request = request_of(base + quote(file.name), environment.get("HF_TOKEN"))
        return _from_hub(file, request, fetch, pause, use)

    for file in listed:
        if file.name in there and (other := _other(folder, file, there[file.name], content_of)):
            raise OtherFile(f"{file.name} {other} at {at}. Nothing is written over: delete it, or name another folder.")
    for file in files:
        if file.name not in there:
            if file.name == LAST:
                _listed(folder, listed, at)  # What came meanwhile.
            content_of(file, partial(_store, folder, file))
        done(file, file.name not in there)
    return sum(file.size for file in files)


def _listed(folder: ObjectStore, files: Sequence[HubFile], at: str) -> dict[str, int]:
    """The objects of the folder, with their bytes. Raises OtherFile if the commit lacks one."""
    there = {meta["path"]: meta["size"] for page in obstore.list(folder) for meta in page}
    # Empty ones stand for folders, as the console of Cloud Storage makes them.
    foreign = sorted({name for name, size in there.items() if size} - {file.name for file in files})
    if foreign:
        named = ", ".join(foreign[:NAMED_MOST]) + (", ..." if len(foreign) > NAMED_MOST else "")
        raise OtherFile(
            f"{n(len(foreign), 'object')} in the folder, but not at {at}: {named}. An engine may load them with the model: "
            "delete them if you did not put them there, or name another folder."
        )
    return there


def _other(folder: ObjectStore, file: HubFile, size: int, content_of: Callable[..., str]) -> str | None:
    """How the object of this name differs from the commit's file, as words before "at"; None if it is that file."""
    if size != file.size:
        return f"has {size:,} bytes there, and {file.size:,}"
    expected = _named(file) or content_of(file, partial(_digest, file))
    found = obstore.get(folder, file.name, options={"head": True}).attributes.get(DIGEST)
    if found is None:
        found = _digest(file, map(bytes, obstore.get(folder, file.name).stream(min_chunk_size=BLOCK)))
    return None if found == expected else f"has another content there ({found}) than {expected}"


def _named(file: HubFile) -> str | None:
    """The digest that the Hub names; None if it names none, as some mirrors do for small files."""
    if file.sha256 is not None:
        return f"sha256:{file.sha256}"
    return None if file.git is None else f"git:{file.git}"


def _hash(file: HubFile) -> tuple[str, hashlib._Hash]:
    """Of which kind the file's digest is, and what computes it."""
    if file.sha256 is None and file.git is not None:
        return "git", hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    return "sha256", hashlib.sha256()


def _digest(file: HubFile, blocks: Iterator[bytes]) -> str:
    kind, digest = _hash(file)
    for block in blocks:
        digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def _store(folder: ObjectStore, file: HubFile, blocks: Iterator[bytes]) -> None:
    named = _named(file)
    attributes: Attributes | None = {DIGEST: named} if named else None
    obstore.put(folder, file.name, blocks, attributes=attributes, chunk_size=BLOCK, max_concurrency=AT_ONCE)


def _from_hub(
    file: HubFile,
    request: urllib.request.Request,
    fetch: Callable[[urllib.request.Request], IO[bytes]],
    pause: Callable[[float], None],
    use: Callable[[Iterator[bytes]], _Used],
) -> _Used:
    """What `use` makes of the file's content. An upload whose source raises is not completed, so the object appears only if it
    is whole."""
    for seconds in (*PAUSES_S, None):
        try:
            with fetch(request) as reply:
                return use(_blocks(reply, file))
        except BaseError:
            raise  # The store's own, which has tried several times.
        except (OSError, HTTPException) as error:
            problem = f"{file.name}: {first_words(error)}"
        if seconds is not None:
            pause(seconds)
    raise HubUnavailable(f"{request.full_url}: {problem}")


def _blocks(reply: IO[bytes], file: HubFile) -> Iterator[bytes]:
    (kind, digest), size = _hash(file), 0
    while block := reply.read(BLOCK):
        digest.update(block)
        size += len(block)
        yield block
    if size != file.size or _named(file) not in (None, f"{kind}:{digest.hexdigest()}"):
        raise _Differs(f"{size:,} bytes came with another content than the Hub names for its {file.size:,}")
