"""Reads the objects that payloads name (an image at gs://...)."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.store import ObjectStore

from nightshift.driver.patience import Patience
from nightshift.store import StoreUnavailable, open_store
from nightshift.tasks.base import BadInput, Fetch, Fetching

STORES_KEPT = 64


class Fetcher:
    """Completes the payloads of one kind. Each bucket is opened once."""

    def __init__(self, kind: Fetching, patience: Patience) -> None:
        self._kind = kind
        self._patience = patience
        self._stores: dict[str, ObjectStore] = {}

    def bytes_most(self, payload: Any) -> int:
        """Bytes of the object that a payload lacks, at most."""
        want = self._kind.fetches(payload)
        return 0 if want is None else want.bytes_max

    async def complete(self, payload: Any) -> Any:
        """The payload with the object that it names. Raises BadInput if that cannot be had, StoreUnavailable."""
        want = self._kind.fetches(payload)
        if want is None:
            return payload
        body = await self._patience.outlast(lambda: self._read(want), want.url)
        return await asyncio.to_thread(self._kind.with_bytes, payload, body)

    async def _read(self, want: Fetch) -> bytes:
        store, path = self._locate(want.url)
        try:
            # One byte more than is allowed shows that an object is too large without reading all of it.
            result = await obstore.get_async(store, path, options={"range": (0, want.bytes_max + 1)})
            return bytes(await result.bytes_async())
        except (FileNotFoundError, obstore.exceptions.NotFoundError) as error:
            raise BadInput(f"the object {want.url} does not exist") from error
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError, PermissionError) as error:
            raise BadInput(f"no permission to read {want.url}") from error
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"read {want.url}: {error}") from error

    def _locate(self, url: str) -> tuple[ObjectStore, str]:
        parts = urlsplit(url)
        base = f"{parts.scheme}://{parts.netloc}"
        if base not in self._stores:
            if len(self._stores) >= STORES_KEPT:
                self._stores.clear()
            try:
                self._stores[base] = open_store(base)
            except ValueError as error:
                raise BadInput(f"{url} cannot be read: {error}") from error
        return self._stores[base], parts.path.lstrip("/")
