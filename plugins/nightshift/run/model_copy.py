"""A model of the Hub as files in a bucket: each file of one commit, written once.

The folder ends in the commit, so its files never change. A copy that was cut off goes on with the missing files. A file is
there whole or not at all, and ``config.json`` comes last, so no engine starts with a folder that is not complete.
"""

from __future__ import annotations

import hashlib
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import IO, Final
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from nightshift.run.hub_revision import PAUSES_S, HubFile, HubUnavailable, endpoint_of, files_at, request_of
from nightshift.store import first_words

LAST: Final = "config.json"
BLOCK: Final = 16 << 20
"""Bytes that are read, and uploaded, at a time; at most `AT_ONCE` of these blocks are held."""
AT_ONCE: Final = 8
TIMEOUT_S: Final = 60.0
"""Without a byte."""
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
    fetch: Callable[[urllib.request.Request], IO[bytes]] | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Copies what is missing; returns the bytes of all files. done: told of each file, and whether it was copied now.

    folder: of `folder_of`. environment: HF_ENDPOINT, HF_TOKEN. fetch: opens a URL. Raises HubUnavailable, NoSuchRevision,
    OtherFile, and the store's errors.
    """
    files = wanted(files_at(repository, commit, environment, pause))
    there = {meta["path"]: meta["size"] for page in obstore.list(folder) for meta in page}
    for file in files:
        if file.name in there and there[file.name] != file.size:
            raise OtherFile(
                f"{file.name} has {there[file.name]:,} bytes there, and {file.size:,} at {repository} {commit[:12]}. Nothing "
                "is written over: delete it, or name another folder."
            )
    base = f"{endpoint_of(environment)}/{quote(repository)}/resolve/{commit}/"
    for file in files:
        if file.name not in there:
            request = request_of(base + quote(file.name), environment.get("HF_TOKEN"))
            _copy_file(folder, file, request, fetch or _fetch, pause)
        done(file, file.name not in there)
    return sum(file.size for file in files)


def _copy_file(
    folder: ObjectStore,
    file: HubFile,
    request: urllib.request.Request,
    fetch: Callable[[urllib.request.Request], IO[bytes]],
    pause: Callable[[float], None],
) -> None:
    """An upload whose source raises is not completed, so the object appears only if it is whole."""
    for seconds in (*PAUSES_S, None):
        try:
            with fetch(request) as reply:
                obstore.put(folder, file.name, _blocks(reply, file), chunk_size=BLOCK, max_concurrency=AT_ONCE)
            return
        except BaseError:
            raise  # The store's own, which has tried several times.
        except (OSError, HTTPException) as error:
            problem = f"{file.name}: {first_words(error)}"
        if seconds is not None:
            pause(seconds)
    raise HubUnavailable(f"{request.full_url}: {problem}")


def _blocks(reply: IO[bytes], file: HubFile) -> Iterator[bytes]:
    digest, size = hashlib.sha256(), 0
    while block := reply.read(BLOCK):
        digest.update(block)
        size += len(block)
        yield block
    if size != file.size or file.sha256 not in (None, digest.hexdigest()):
        raise _Differs(f"{size:,} bytes came with another content than the Hub names for its {file.size:,}")


def _fetch(request: urllib.request.Request) -> IO[bytes]:
    opened: IO[bytes] = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    return opened
