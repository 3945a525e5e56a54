"""Which commit a branch or tag of a model on the Hugging Face Hub is now, and how large its weights are.

One call of its API, ``GET /api/models/REPOSITORY/revision/REVISION?blobs=true`` (https://huggingface.co/docs/hub/api; ``blobs``
adds the files' sizes), with the variables of its own clients: HF_ENDPOINT, HF_TOKEN for a private or gated model, and the usual
ones for a proxy. The header ``X-Error-Code`` has the reason of a refusal; a missing repository and one that needs a token look
the same (401).
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, TypeVar
from urllib.parse import quote

ENDPOINT: Final = "https://huggingface.co"
TIMEOUT_S: Final = 10.0
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""Between tries. After them, the task's own retries take over."""
REPLY_MAX: Final = 16 << 20
"""Bytes; the reply lists the repository's files."""
SIZE_MAX: Final = 1 << 50
"""Bytes of all files. A pod asks for as much disk as they have."""
_PASSING: Final = (408, 425, 429, 500, 502, 503, 504)
_Found = TypeVar("_Found")


class HubUnavailable(Exception):
    """The Hub could not be asked, or did not answer; trying again may help."""


class NoSuchRevision(ValueError):
    """The Hub does not have the model at that revision, or not for this token."""


@dataclass(frozen=True)
class HubModel:
    """A revision. commit: 40 hex digits. size: bytes of the files that an engine fetches; None if the reply names no sizes."""

    commit: str
    size: int | None


@dataclass(frozen=True)
class HubFile:
    """A file of a revision. size: bytes. sha256: in hex, of a large file; None for one that Git itself keeps. git: the name of
    such a file's content in Git, the SHA-1 of a header and the content; None if the reply does not say it."""

    name: str
    size: int
    sha256: str | None
    git: str | None = None


def model_at(
    repository: str, revision: str, environment: Mapping[str, str], pause: Callable[[float], None] = time.sleep
) -> HubModel:
    """What a revision is now. repository: ORGANISATION/NAME. pause: waits that many seconds.

    Raises HubUnavailable after five tries, and NoSuchRevision.
    """
    return _ask(repository, revision, environment, pause, lambda reply: HubModel(_commit_in(reply), _size_in(reply)))


def files_at(
    repository: str, revision: str, environment: Mapping[str, str], pause: Callable[[float], None] = time.sleep
) -> tuple[HubFile, ...]:
    """All files of a revision. Raises as `model_at`."""
    return _ask(repository, revision, environment, pause, _files_in)


def endpoint_of(environment: Mapping[str, str]) -> str:
    return (environment.get("HF_ENDPOINT") or ENDPOINT).rstrip("/")


def request_of(url: str, token: str | None) -> urllib.request.Request:
    """token: of the Hub; never sent to another host that it redirects to."""
    request = urllib.request.Request(url)
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return request


def _ask(
    repository: str,
    revision: str,
    environment: Mapping[str, str],
    pause: Callable[[float], None],
    read: Callable[[Any], _Found],
) -> _Found:
    endpoint = endpoint_of(environment)
    url = f"{endpoint}/api/models/{quote(repository)}/revision/{quote(revision, safe='')}?blobs=true"
    for seconds in (*PAUSES_S, None):
        try:
            return read(_get(url, environment.get("HF_TOKEN")))
        except urllib.error.HTTPError as error:
            if error.code not in _PASSING:
                raise NoSuchRevision(_refusal(repository, revision, endpoint, error)) from error
            problem = f"{url} answers {error.code}"
        except (OSError, HTTPException, RecursionError, ValueError) as error:
            problem = f"{url}: {error}"
        if seconds is not None:
            pause(seconds)
    raise HubUnavailable(
        f"The commit of hf://{repository} at {revision!r} is not known: {problem}. It is asked for once, when a run is opened. "
        "If Airflow must not reach the Hub, write the commit (40 hex digits) as model.revision, or set HF_HUB_OFFLINE=1 for "
        "Airflow; then the revision is not pinned."
    )


def _get(url: str, token: str | None) -> Any:
    request = request_of(url, token)
    request.add_header("Accept", "application/json")
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return json.loads(reply.read(REPLY_MAX))


def _commit_in(reply: Any) -> str:
    """Raises ValueError for the reply of something that is not the Hub, such as a proxy's page."""
    commit = reply.get("sha") if isinstance(reply, dict) else None
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError("the reply names no commit")
    return commit


def _files_in(reply: Any) -> tuple[HubFile, ...]:
    """Raises ValueError for a reply that does not say what each file is: a copy would not be known to be whole."""
    _commit_in(reply)
    found = []
    for each in reply["siblings"] if isinstance(reply.get("siblings"), list) else ():
        name, size = (each.get("rfilename"), each.get("size")) if isinstance(each, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(size, int) or not _is_size(size):
            raise ValueError("the reply does not name each file with its size")
        lfs, git = each.get("lfs"), each.get("blobId")
        sha256 = str(lfs["sha256"]) if isinstance(lfs, dict) and lfs.get("sha256") else None
        # Of a large file, Git keeps a pointer.
        found.append(HubFile(name, size, sha256, git if isinstance(git, str) and not lfs else None))
    return tuple(found)


def _size_in(reply: Any) -> int | None:
    """As vLLM's loader chooses weights: safetensors if there are any, never the folder ``original``.

    Without safetensors all files count, which is more than any other format needs. What is not weights is small beside them.
    """
    listed = reply.get("siblings")
    files = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    sizes = {
        each["rfilename"]: each["size"]
        for each in files
        if isinstance(each.get("rfilename"), str) and _is_size(each.get("size"))
    }
    wanted = {name: size for name, size in sizes.items() if not name.startswith("original/")}
    safe = [size for name, size in wanted.items() if name.endswith(".safetensors")]
    total = sum(safe or wanted.values())
    return total if 0 < total <= SIZE_MAX else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_MAX


def _refusal(repository: str, revision: str, endpoint: str, error: urllib.error.HTTPError) -> str:
    code = error.headers.get("X-Error-Code", "") if error.headers else ""
    if code == "RevisionNotFound":
        return f"model.revision: {repository} has no branch, tag or commit {revision!r} on {endpoint}. Write one that exists."
    if error.code in (401, 403) or code == "RepoNotFound":
        return (
            f"model.uri: {endpoint} does not show hf://{repository} ({error.code} {code}). Check its name; for a private or "
            "gated model, set HF_TOKEN for Airflow to a token that may read it."
        )
    return f"model.uri: {endpoint} answers {error.code} {code} for hf://{repository} at {revision!r}. Check HF_ENDPOINT too."
