"""A watched folder on Cloud Storage: its objects, and the markers of those that are done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

import obstore

from nightshift.store import ObjectFile, ObjectStorage, StoreUnavailable, is_hidden
from nightshift.stream.folder_rows import rows
from nightshift.stream.folder_source import Found

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

MARKERS: Final = "_nightshift"


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
        try:
            async for page in obstore.list(self._store, chunk_size=1000):
                for meta in page:
                    yield meta
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"list the watched folder: {error}") from error


def _found(meta: ObjectMeta) -> Found:
    """The version is the instant of creation and the ETag: a listing does not tell the generation, and these stand for it."""
    created, e_tag = meta["last_modified"], meta["e_tag"]
    tag = (e_tag or "").strip('"')
    return Found(meta["path"], f"{created:%Y%m%dT%H%M%S%f}-{tag}", meta["size"], e_tag, created)
