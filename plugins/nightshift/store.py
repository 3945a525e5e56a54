"""Object storage through one client: Cloud Storage, a local folder or memory behind obstore's interface (ADR 0001).

``STORAGE_EMULATOR_HOST`` works as in Google's own clients. Every caller has the same retry limits, so an
unreachable store is an error after a bounded time, not a hang.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import obstore
from obstore.store import GCSStore, LocalStore, MemoryStore, ObjectStore

if TYPE_CHECKING:
    from obstore import ObjectMeta

REQUEST_TIMEOUT = timedelta(seconds=60)
RETRY_TIMEOUT = timedelta(seconds=120)


def open_store(url: str) -> ObjectStore:
    """Opens ``gs://BUCKET[/PREFIX]``, ``file:///FOLDER`` (created if missing) or ``memory:///``.

    Raises ValueError for any other URL. Nothing is sent yet: a wrong bucket shows at the first call.
    """
    parts = urlsplit(url)
    if parts.scheme == "gs" and parts.netloc:
        return _cloud_storage(parts.netloc, parts.path.strip("/") or None)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return LocalStore(parts.path, mkdir=True)
    if parts.scheme == "memory":
        return MemoryStore()
    raise ValueError(f"{url!r} is not a store: use gs://BUCKET/PREFIX, file:///FOLDER or memory:///")


def open_folder(bucket: str, folder: str) -> ObjectStore:
    """A folder on Cloud Storage. folder: its name as it is, even with characters that mean something in a URL."""
    return _cloud_storage(bucket, folder)


def get_bytes(store: ObjectStore, path: str) -> bytes | None:
    """The whole object, or None if it does not exist."""
    try:
        return bytes(obstore.get(store, path).bytes())
    except FileNotFoundError:
        return None


def version_of(meta: ObjectMeta) -> str:
    """What tells two objects of one name apart: the generation in Cloud Storage, the ETag in stores without generations."""
    return str(meta["version"] or meta["e_tag"])


def create_or_read(store: ObjectStore, path: str, body: bytes) -> bytes:
    """Creates the object unless it exists; returns what is stored afterwards.

    The create-only precondition lets one writer win. A lost reply does no harm: the retry answers "exists", and our own
    object is read back like any other.
    """
    try:
        obstore.put(store, path, body, mode="create")
    except obstore.exceptions.AlreadyExistsError:
        return bytes(obstore.get(store, path).bytes())
    return body


def _cloud_storage(bucket: str, prefix: str | None) -> GCSStore:
    config: dict[str, str] = {}
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        if "://" not in emulator:
            emulator = f"http://{emulator}"
        # The only way to send no credentials: `skip_signature` still looks for a metadata server.
        key = {"gcs_base_url": emulator, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        config["service_account_key"] = json.dumps(key)
    return GCSStore(
        bucket,
        prefix=prefix,
        config=config,  # type: ignore[arg-type]
        client_options={"allow_http": bool(emulator), "timeout": REQUEST_TIMEOUT, "connect_timeout": timedelta(seconds=10)},
        retry_config={"max_retries": 8, "retry_timeout": RETRY_TIMEOUT},
    )


class ObjectFile(io.RawIOBase):
    """One object as a seekable file, one range request per read: what pyarrow needs to read a Parquet footer or row group.

    (obstore's own reader lacks attributes that pyarrow expects of a file.)
    """

    def __init__(self, store: ObjectStore, path: str, size: int) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        length = min(len(view), self._size - self._position)
        if length <= 0:
            return 0
        view[:length] = memoryview(obstore.get_range(self._store, self._path, start=self._position, length=length))
        self._position += length
        return length


class Objects(Protocol):
    """What the ledger needs of object storage. The simulator implements it too; `ObjectStorage` is the real one."""

    async def create(self, path: str, body: bytes) -> bool:
        """Creates the object, whole or not at all. False if it already exists; raises StoreUnavailable if that is unknown."""
        ...

    async def read(self, path: str) -> bytes | None:
        """The object's bytes, None if it does not exist. Raises StoreUnavailable."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Full paths below the folder `prefix` that sort after `after`, page by page, in lexicographic order.

        Raises StoreUnavailable.
        """
        ...


class StoreUnavailable(Exception):
    """The store could not be asked or did not answer; whether a create took effect is unknown. Trying again is safe."""


class ObjectStorage:
    """`Objects` over an obstore store, for the ledger: every error of the store becomes StoreUnavailable."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def create(self, path: str, body: bytes) -> bool:
        try:
            await obstore.put_async(self._store, path, body, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return False
        except (obstore.exceptions.BaseError, OSError) as error:
            # A worker may create but not overwrite (k8s/README.md), and Cloud Storage may refuse to replace an object before it
            # looks at the precondition.
            if isinstance(error, obstore.exceptions.PermissionDeniedError) and await self.read(path) is not None:
                return False
            raise StoreUnavailable(f"create {path}: {error}") from error
        return True

    async def read(self, path: str) -> bytes | None:
        found = await self.read_version(path)
        return found and found[0]

    async def read_version(self, path: str) -> tuple[bytes, str] | None:
        """The object's bytes and their `version_of`, None if it does not exist. Raises StoreUnavailable."""
        try:
            result = await obstore.get_async(self._store, path)
            return bytes(await result.bytes_async()), version_of(result.meta)
        except FileNotFoundError:
            return None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"read {path}: {error}") from error

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        try:
            if isinstance(self._store, LocalStore):
                # A folder is listed in no particular order.
                for path in sorted([path async for path in self._pages(prefix, after)]):
                    yield path
            else:
                async for path in self._pages(prefix, after):
                    yield path
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"list {prefix}: {error}") from error

    async def _pages(self, prefix: str, after: str) -> AsyncIterator[str]:
        async for page in obstore.list(self._store, prefix, offset=after or None, chunk_size=1000):
            for meta in page:
                yield meta["path"]
