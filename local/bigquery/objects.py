"""gs:// sources are listed and fetched through Cloud Storage's JSON API.

local-bigquery lets DuckDB's httpfs extension read gs:// through the storage emulator's S3-style XML API. A missing object is
then an "HTTP Error" instead of 404 `notFound`, and DuckDB keeps a cache of what it has read. Here a load lists the objects
that a wildcard matches, copies them into a temporary folder and reads them there.

Without STORAGE_EMULATOR_HOST gs://BUCKET is the folder gcs/BUCKET below the data folder, as in local-bigquery.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import load, runner, storage

_emulator_paths = storage.paths
_load = load.run
# For the load that runs in this thread: the folder for objects, and which object each file is.
_folder: ContextVar[Path] = ContextVar("_folder")
_origins: ContextVar[dict[str, str]] = ContextVar("_origins")


def install() -> None:
    load.paths = paths
    runner.HANDLERS["load"] = run_load


def run_load(cursor: Any, config: Any, upload: str | None) -> Any:
    """The load job's handler, with a temporary folder for what `paths` fetches. Errors name objects, not its files."""
    with tempfile.TemporaryDirectory(prefix="bigquery-load-") as folder:
        _folder.set(Path(folder))
        _origins.set({})
        try:
            return _load(cursor, config, upload)
        except BigQueryError as error:
            for file, uri in _origins.get().items():
                error.message = error.message.replace(file, uri)
            raise


def paths(cursor: Any, uri: str) -> list[str]:
    """Local files with the content of the objects that ``uri`` names. Raises BigQueryError `notFound` if there are none."""
    if not in_emulator(uri):
        return list(_emulator_paths(cursor, uri))
    found = listed(uri) if "*" in uri else [uri]
    if not found:
        raise _missing(uri)
    folder = Path(tempfile.mkdtemp(dir=_folder.get()))
    files = {str(_fetched(name, folder / f"{number:08d}")): name for number, name in enumerate(found)}
    _origins.get().update(files)
    return list(files)


def in_emulator(uri: str) -> bool:
    return storage._emulator(uri) is not None


def listed(uri: str) -> list[str]:
    """The URIs of the objects that a gs:// URI with wildcards matches, in order of their names."""
    bucket, name = _split(uri)
    matches = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
    return sorted(f"gs://{bucket}/{found}" for found in _names(bucket, name.split("*")[0], uri) if matches.fullmatch(found))


def _names(bucket: str, prefix: str, uri: str) -> Iterator[str]:
    query = {"prefix": prefix, "fields": "items/name,nextPageToken"}
    while True:
        with _get(uri, f"/storage/v1/b/{_quoted(bucket)}/o?{urllib.parse.urlencode(query)}") as reply:
            page = json.load(reply)
        yield from (item["name"] for item in page.get("items", []))
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = page["nextPageToken"]


def _fetched(uri: str, target: Path) -> Path:
    bucket, name = _split(uri)
    with _get(uri, f"/storage/v1/b/{_quoted(bucket)}/o/{_quoted(name)}?alt=media") as reply, open(target, "wb") as file:
        shutil.copyfileobj(reply, file, 1 << 20)
    return target


@contextlib.contextmanager
def _get(uri: str, path: str) -> Iterator[Any]:
    try:
        with urllib.request.urlopen(storage._emulator(uri).rstrip("/") + path) as reply:
            yield reply
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise _missing(uri) from None
        raise BigQueryError("invalid", f"Unable to read {uri}: HTTP {error.code}") from error
    except OSError as error:
        raise BigQueryError("invalid", f"Unable to read {uri}: {error}") from error


def _split(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def _quoted(part: str) -> str:
    return urllib.parse.quote(part, safe="")


def _missing(uri: str) -> BigQueryError:
    return BigQueryError("notFound", f"Not found: URI {uri}")
