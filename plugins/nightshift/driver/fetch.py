"""Reads the objects that payloads name (an image at gs://...)."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.driver.patience import Patience
from nightshift.store import StoreUnavailable, open_store, split_object_url, status_of
from nightshift.tasks.base import BadInput, Fetch, Fetching

STORES_KEPT: Final = 64
_PASSING: Final = (408, 429)
"""The statuses below 500 that concern the moment and not the object."""
_GZIP: Final = "gzip"


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
        """What the row's object or name is to blame for is BadInput; anything else is StoreUnavailable."""
        try:
            bucket, name = split_object_url(want.url)
        except ValueError as error:
            raise BadInput(str(error)) from error
        if want.buckets is not None and bucket not in want.buckets:
            raise BadInput(f"{want.url} is in a bucket that the job does not list under request.buckets")
        try:
            # Not a range: Cloud Storage refuses every range of an empty object. The size is known before the body is read.
            found = await obstore.get_async(self._store(bucket), name)
            size = found.meta["size"]
            if size > want.bytes_max:
                raise BadInput(f"the object {want.url} has {size:,} bytes; at most {want.bytes_max:,} are read")
            body = bytes(await found.bytes_async())
        except (obstore.exceptions.BaseError, OSError) as error:
            raise _judged(error, want.url) from error
        return _unpacked(body, want) if found.attributes.get("Content-Encoding") == _GZIP else body

    def _store(self, bucket: str) -> ObjectStore:
        if bucket not in self._stores:
            if len(self._stores) >= STORES_KEPT:
                self._stores.clear()
            # Without this, Cloud Storage unpacks what is stored as gzip, and cannot tell its size; obstore refuses that.
            self._stores[bucket] = open_store(f"gs://{bucket}", {"Accept-Encoding": _GZIP})
        return self._stores[bucket]


def _judged(error: Exception, url: str) -> BadInput | StoreUnavailable:
    status = status_of(error)
    if status == 404:
        return BadInput(f"the object {url} does not exist")
    if status in (401, 403):
        return BadInput(f"no permission to read {url}")
    if status is not None and 400 <= status < 500 and status not in _PASSING:
        return BadInput(f"the object {url} cannot be read: Cloud Storage refuses the request with status {status}")
    return StoreUnavailable(f"read {url}: {error}")


def _unpacked(body: bytes, want: Fetch) -> bytes:
    try:
        unpacked = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(body, want.bytes_max + 1)
    except zlib.error as error:
        raise BadInput(f"the object {want.url} is stored as gzip, but cannot be unpacked: {error}") from error
    if len(unpacked) > want.bytes_max:
        raise BadInput(f"the object {want.url} has more than {want.bytes_max:,} bytes when it is unpacked")
    return unpacked
