"""Reads the objects that payloads name (an image at gs://...)."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.driver import backoff
from nightshift.driver.backoff import Backoff
from nightshift.store import StoreUnavailable, open_store, split_object_url, status_of
from nightshift.tasks.base import BadInput, Fetch, Fetching

STORES_KEPT: Final = 64
_PASSING: Final = (401, 408, 429)
"""The statuses below 500 that concern the moment and not the object; 401 is about the worker's own credentials."""
_GZIP: Final = "gzip"


class _Forbidden(BadInput):
    """The worker has no permission to read this object."""


class Fetcher:
    """Completes the payloads of one kind. Each bucket is opened once.

    What fails for long, or is forbidden, is judged beside an object of the same bucket that was read before: if that one can
    still be read, the row is to blame, else the store.
    """

    def __init__(self, kind: Fetching, patience: Backoff) -> None:
        self._kind = kind
        self._patience = patience
        self._stores: dict[str, ObjectStore] = {}
        self._readable: dict[str, Fetch] = {}
        """The object that was read last, by bucket."""

    def bytes_most(self, payload: Any) -> int:
        """Bytes of the object that a payload lacks, at most."""
        want = self._kind.fetches(payload)
        return 0 if want is None else want.bytes_max

    async def complete(self, payload: Any) -> Any:
        """The payload with the object that it names. Raises BadInput if that cannot be had, StoreUnavailable."""
        want = self._kind.fetches(payload)
        if want is None:
            return payload
        try:
            body = await self._patience.outlast(lambda: self._allowed(want), want.url)
        except StoreUnavailable as error:
            body = await self._once_more(want, error)
        return await asyncio.to_thread(self._kind.with_bytes, payload, body)

    async def _allowed(self, want: Fetch) -> bytes:
        """The object. If a bucket that could be read before is forbidden now, that is no row's fault: StoreUnavailable."""
        try:
            return await self._read(want)
        except _Forbidden as error:
            if (other := self._readable.get(_bucket(want))) is None:
                raise
            try:
                await self._read(other)
            except _Forbidden:
                raise StoreUnavailable(f"{error}, though {other.url} could be read before") from error
            raise

    async def _once_more(self, want: Fetch, error: StoreUnavailable) -> bytes:
        """Reads what could not be read within the budget, beside an object that could."""
        if (other := self._readable.get(_bucket(want))) is None:
            raise error
        try:
            await self._read(other)
        except BadInput:
            raise error from None
        try:
            return await self._read(want)
        except StoreUnavailable as again:
            raise BadInput(
                f"the object {want.url} could not be read in {backoff.STORE_BUDGET_S:.0f} s, though {other.url} can be: {again}"
            ) from again

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
        if found.attributes.get("Content-Encoding") == _GZIP:
            body = await asyncio.to_thread(_unpacked, body, want)
        self._readable[bucket] = want
        return body

    def _store(self, bucket: str) -> ObjectStore:
        if bucket not in self._stores:
            if len(self._stores) >= STORES_KEPT:
                self._stores.clear()
                self._readable.clear()
            # Without this, Cloud Storage unpacks what is stored as gzip, and cannot tell its size; obstore refuses that.
            self._stores[bucket] = open_store(f"gs://{bucket}", {"Accept-Encoding": _GZIP})
        return self._stores[bucket]


def _judged(error: Exception, url: str) -> BadInput | StoreUnavailable:
    status = status_of(error)
    if status == 404:
        return BadInput(f"the object {url} does not exist")
    if status == 403:
        return _Forbidden(f"no permission to read {url}")
    if status is not None and 400 <= status < 500 and status not in _PASSING:
        return BadInput(f"the object {url} cannot be read: Cloud Storage refuses the request with status {status}")
    return StoreUnavailable(f"read {url}: {error}")


def _unpacked(body: bytes, want: Fetch) -> bytes:
    """All of it: a file may have several parts, and one that was cut must not pass for a smaller picture."""
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(body)).read(want.bytes_max + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise BadInput(f"the object {want.url} is stored as gzip, but cannot be unpacked: {error}") from error
    if len(unpacked) > want.bytes_max:
        raise BadInput(f"the object {want.url} has more than {want.bytes_max:,} bytes when it is unpacked")
    return unpacked


def _bucket(want: Fetch) -> str:
    return split_object_url(want.url)[0]
