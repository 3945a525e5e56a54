"""Object storage through one client: Cloud Storage, a local folder or memory behind obstore's interface (ADR 0001).

``STORAGE_EMULATOR_HOST`` works as in Google's own clients. ``STORAGE_EMULATOR_TOKEN`` says who a process is to an emulator that
knows identities. Every caller has the same retry limits, so an unreachable store is an error after a bounded time, not a hang.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
from obstore.store import GCSStore, LocalStore, MemoryStore, ObjectStore

from nightshift.fields.values import BUCKET_PATTERN, is_this_machine

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import GCSCredential, GCSCredentialProvider

_opened_by: int | None = None
"""The process that has opened a store first, or its parent."""
REQUEST_TIMEOUT = timedelta(seconds=60)
RETRY_TIMEOUT = timedelta(seconds=120)
OBJECT_BYTES_MOST: Final = 512 << 20
"""Of an object that is read whole. A worker may create any under its prefix; a plan's chunks are far smaller."""


def open_store(
    url: str, headers: Mapping[str, str] | None = None, credentials: GCSCredentialProvider | None = None
) -> ObjectStore:
    """Opens ``gs://BUCKET[/PREFIX]``, ``file:///FOLDER`` (created if missing) or ``memory:///``.

    headers: sent with every request to Cloud Storage. credentials: gives its tokens; None: this machine's own account, in a
    pod that of Workload Identity, and none for the emulator. Raises ValueError for any other URL, and for a file of
    credentials that cannot be read. Nothing is sent yet: a wrong bucket shows at the first call.
    """
    _note_process()
    parts = urlsplit(url)
    if parts.scheme == "gs" and parts.netloc:
        return _cloud_storage(parts.netloc, parts.path.strip("/") or None, headers or {}, credentials)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return LocalStore(parts.path, mkdir=True)
    if parts.scheme == "memory":
        return MemoryStore()
    raise ValueError(f"{url!r} is not a store: use gs://BUCKET/PREFIX, file:///FOLDER or memory:///")


def lost_by_fork() -> bool:
    """Whether this process was forked from one that has opened a store. The threads of the store's client do not survive a
    fork: each call would wait for ever."""
    return _opened_by not in (None, os.getpid())


def _note_process() -> None:
    global _opened_by
    _opened_by = _opened_by or os.getpid()


def open_folder(bucket: str, folder: str, credentials: GCSCredentialProvider | None = None) -> ObjectStore:
    """A folder on Cloud Storage. folder: its name as it is, even with characters that mean something in a URL.

    credentials: as `open_store` takes them.
    """
    _note_process()
    return _cloud_storage(bucket, folder, {}, credentials)


def split_object_url(url: str) -> tuple[str, str]:
    """``gs://BUCKET/NAME`` as bucket and name, letter by letter: ``#``, ``?`` and ``%`` are part of a name.

    Raises ValueError for any other text, and for a name that obstore refuses or would alter, so that another object is read.
    """
    bucket, _, name = url.removeprefix("gs://").partition("/")
    if not url.startswith("gs://") or not bucket or not name:
        raise ValueError(f"{url!r} is not the URL of an object: use gs://BUCKET/NAME")
    if not re.fullmatch(BUCKET_PATTERN, bucket):
        raise ValueError(f"{bucket!r} in {url!r} is not a valid bucket name")
    if _CONTROL.search(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise ValueError(
            f"the object {url!r} cannot be read by exactly this name: nightshift reads no names with control characters, "
            "with a slash at either end, or with an empty part, '.' or '..' between slashes"
        )
    return bucket, name


_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def status_of(error: Exception) -> int | None:
    """The HTTP status with which Cloud Storage refused a request; None if obstore's error says nothing about one.

    None too if credentials could not be had: that answer came from another server. obstore has a class of its own for some
    statuses, and for the rest only a text, which begins with its own words; what the server sent comes after the status.
    """
    if str(error).startswith(_NO_TOKEN):
        return None
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    found = _REFUSED.match(str(error)) if isinstance(error, obstore.exceptions.GenericError) else None
    return int(found[1]) if found else None


_STATUSES: Final[dict[type[Exception], int]] = {
    obstore.exceptions.NotModifiedError: 304,
    obstore.exceptions.UnauthenticatedError: 401,
    obstore.exceptions.PermissionDeniedError: 403,
    FileNotFoundError: 404,
    obstore.exceptions.NotFoundError: 404,
    obstore.exceptions.AlreadyExistsError: 409,
    obstore.exceptions.PreconditionError: 412,
}
_TOKEN_REQUEST: Final = "Generic GCS error: Error performing token request: "
_NO_TOKEN: Final = "The operation lacked valid authentication credentials for path External GCP credential provider: "
# Within the URL, spaces are escaped.
_REFUSED: Final = re.compile(
    r"Generic GCS error: (?:Error performing list request: )?Error performing [A-Z]+ \S+ in [^ ,]+(?:, after [^-]*)?"
    r" - Server returned non-2xx status code: (\d{3})"
)


def first_words(error: Exception | str) -> str:
    """An error of obstore as text, without what its objects look like inside, which it adds: 25 lines of Rust."""
    return str(error).partition("\n\nDebug source")[0]


@dataclass(frozen=True)
class Refusal:
    """401 or 403: an account lacks a right, and no repeat gives it one: no outage. name: of the object, or how its name begins.
    account, bucket, name: "" if unknown."""

    status: int
    permission: str
    account: str = ""
    bucket: str = ""
    name: str = ""

    def __str__(self) -> str:
        """The one sentence for it, in tasks, drivers, commands and the doctor."""
        who, where = self.account or "the account", f"gs://{self.bucket}/{self.name}".rstrip("/")
        if not self.bucket:
            return f"{who} may not do that there ({self.status})"
        if self.status == 401:
            return f"Cloud Storage does not accept the credentials of {who}, which needs {self.permission} on {where} (401)"
        return f"{who} does not have {self.permission} on {where} (403)"

    @property
    def remedy(self) -> str:
        """It names the least of Google's roles."""
        role = {"create": "Creator", "delete": "User"}.get(self.permission.rpartition(".")[2], "Viewer")
        right = f"roles/storage.object{role}" if self.bucket else "the right to read and write"
        return f"Give this account {right} there, or use another account"


_VERBS: Final = {"PUT": "create", "DELETE": "delete"}
_ASKED: Final = re.compile(r"Error performing ([A-Z]+) (https?://\S+) in ")
_LACKING: Final = re.compile(r"([^\s<>]+) does not have (storage\.objects\.[a-z]+) access")


def refusal_of(error: BaseException | None) -> Refusal | None:
    """Whether an error is, or was caused by, a refusal: the one rule for it. None for an outage, and for any other error."""
    while error is not None and not (isinstance(error, Exception) and status_of(error) in (401, 403)):
        error = error.__cause__
    if not isinstance(error, Exception):
        return None
    asked, lacking = _ASKED.search(str(error)), _LACKING.search(first_words(error))
    method, url = (asked[1], urlsplit(asked[2])) if asked else ("GET", urlsplit(""))
    verb = "list" if "list-type=" in url.query else _VERBS.get(method, "get")
    bucket, _, name = unquote(url.path).lstrip("/").partition("/")
    permission, account = (lacking[2], lacking[1]) if lacking else (f"storage.objects.{verb}", "")
    return Refusal(status_of(error) or 403, permission, account, bucket, name or parse_qs(url.query).get("prefix", [""])[0])


def what_to_do(error: BaseException | None) -> str | None:
    """What a person can do about an error of obstore that is not retryable; None if it may."""
    if refusal := refusal_of(error):
        return f"{refusal}. {refusal.remedy}"
    if not isinstance(error, Exception) or not isinstance(error, (obstore.exceptions.BaseError, FileNotFoundError)):
        return None
    said, status = first_words(error), status_of(error)
    if said.startswith((_NO_TOKEN, _TOKEN_REQUEST)):
        refused = "Server returned non-2xx status code: 4" in said
        return "Log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS" if refused else None
    # A local folder that is gone has the same class, and is not refused by a server.
    return "Check the name of the bucket" if status == 404 and "Error performing" in said else None


def get_bytes(store: ObjectStore, path: str, most: int = OBJECT_BYTES_MOST) -> bytes | None:
    """The whole object, or None if it does not exist. Raises ObjectTooLarge for one of more bytes than `most`."""
    try:
        found = obstore.get(store, path)
    except FileNotFoundError:
        return None
    if (size := found.meta["size"]) > most:
        raise ObjectTooLarge(f"{path} has {size:,} bytes, more than {most:,}")
    return bytes(found.bytes())


def version_of(meta: ObjectMeta) -> str:
    """What tells two objects of one name apart: the generation in Cloud Storage, the ETag in stores without generations."""
    return str(meta["version"] or meta["e_tag"])


def is_hidden(path: str) -> bool:
    """Whether an object of a watched folder is left alone: a part of its name begins with ``_`` or ``.``.

    The convention of Hive and Spark. path: inside the folder.
    """
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def create_or_read(store: ObjectStore, path: str, body: bytes) -> bytes:
    """Creates the object unless it exists; returns what is stored afterwards. Raises ObjectTooLarge.

    The create-only precondition lets one writer win. A lost reply does no harm: the retry answers "exists", and our own
    object is read back like any other.
    """
    try:
        obstore.put(store, path, body, mode="create")
    except obstore.exceptions.AlreadyExistsError:
        if (stored := get_bytes(store, path)) is None:
            raise FileNotFoundError(f"{path} was deleted while it was read") from None
        return stored
    return body


def create_numbered(store: ObjectStore, path: Callable[[int], str], number: int, body: bytes) -> int:
    """Creates the object of this number, or of the next one that is free; returns its number. path: of each number."""
    while True:
        try:
            obstore.put(store, path(number), body, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            number += 1
        else:
            return number


def list_numbered(store: ObjectStore, folder: str, number_of: Callable[[str], int | None]) -> list[tuple[int, str, int]]:
    """The objects below a folder that `create_numbered` made, the newest first: number, path, size in bytes.

    number_of: of a path, None for one that is named otherwise. The store's errors pass through.
    """
    found = [
        (number, meta["path"], meta["size"])
        for page in obstore.list(store, folder)
        for meta in page
        if (number := number_of(meta["path"])) is not None
    ]
    return sorted(found, reverse=True)


def _cloud_storage(
    bucket: str, prefix: str | None, headers: Mapping[str, str], credentials: GCSCredentialProvider | None
) -> GCSStore:
    config: dict[str, str] = {}
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        if "://" not in emulator:
            emulator = f"http://{emulator}"
        # Without `credentials`, the only way to send none: `skip_signature` still looks for a metadata server.
        key = {"gcs_base_url": emulator, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        config["service_account_key"] = json.dumps(key)
        # An account of Google's is sent to no other machine: the address is a variable's, and not encrypted.
        token = os.environ.get("STORAGE_EMULATOR_TOKEN")
        credentials = partial(_bearer, token) if token else credentials if is_this_machine(emulator) else None
    try:
        return GCSStore(
            bucket,
            prefix=prefix,
            config=config,  # type: ignore[arg-type]
            credential_provider=credentials,
            client_options={
                "allow_http": bool(emulator),
                "timeout": REQUEST_TIMEOUT,
                "connect_timeout": timedelta(seconds=10),
                "default_headers": dict(headers),
            },
            retry_config={"max_retries": 8, "retry_timeout": RETRY_TIMEOUT},
        )
    except obstore.exceptions.BaseError as error:
        raise ValueError(first_words(error)) from error


def _bearer(token: str) -> GCSCredential:
    return {"token": token, "expires_at": None}


class ObjectFile(io.RawIOBase):
    """One object as a seekable file, one range request per read: what pyarrow needs to read a Parquet footer or row group.

    etag: of the version to read; every range asks for this one, so a file is never read half from one version and half from
    another. None: whichever is there. Reads raise ObjectChanged if that version is no longer there, StoreUnavailable; so an
    OSError of pyarrow's is about the content.
    (obstore's own reader lacks attributes that pyarrow expects of a file.)
    """

    def __init__(self, store: ObjectStore, path: str, size: int, etag: str | None = None) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._size = size
        self._condition: GetOptions = {"if_match": etag} if etag is not None else {}
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
        options: GetOptions = {"range": (self._position, self._position + length), **self._condition}
        try:
            view[:length] = memoryview(obstore.get(self._store, self._path, options=options).bytes())
        except (FileNotFoundError, obstore.exceptions.PreconditionError) as error:
            raise ObjectChanged(f"{self._path} was overwritten or deleted while it was read") from error
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"read {self._path}: {error}") from error
        self._position += length
        return length


class Objects(Protocol):
    """What the ledger needs of object storage. The simulator implements it too; `ObjectStorage` is the real one."""

    async def create(self, path: str, body: bytes) -> bool:
        """Creates the object, whole or not at all. False if it already exists; raises StoreUnavailable if that is unknown."""
        ...

    async def read(self, path: str) -> bytes | None:
        """The object's bytes, None if it does not exist. Raises StoreUnavailable, and ObjectTooLarge if it has a limit."""
        ...

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Full paths below the folder `prefix` that sort after `after`, page by page, in lexicographic order.

        Raises StoreUnavailable.
        """
        ...


class ObjectChanged(Exception):
    """The version of an object that was asked for is not the one that is there."""


class StoreUnavailable(Exception):
    """The store could not be asked or did not answer; whether a create took effect is unknown. Trying again is safe."""

    def __init__(self, problem: str) -> None:
        super().__init__(first_words(problem))


class StoreRefused(StoreUnavailable):
    """The store has refused for so long that it goes on refusing (`nightshift.driver.backoff.Refusals`)."""


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Inside it each error of the store is StoreUnavailable. what: is done, as its message begins: ``read PATH``."""
    try:
        yield
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"{what}: {error}") from error


class ObjectTooLarge(ValueError):
    """The object is larger than what it is read as can be. Nothing of it was read."""


class ObjectStorage:
    """`Objects` over an obstore store, for the ledger: every error of the store becomes StoreUnavailable.

    most: bytes of an object; reading a larger one raises ObjectTooLarge.
    """

    def __init__(self, store: ObjectStore, most: int = OBJECT_BYTES_MOST) -> None:
        self._store = store
        self._most = most

    async def create(self, path: str, body: bytes) -> bool:
        try:
            await obstore.put_async(self._store, path, body, mode="create")
        except obstore.exceptions.AlreadyExistsError:
            return False
        except (obstore.exceptions.BaseError, OSError) as error:
            # A worker may create but not overwrite (k8s/README.md), and Cloud Storage may refuse to replace an object before it
            # looks at the precondition.
            if isinstance(error, obstore.exceptions.PermissionDeniedError) and await self._is_there(path):
                return False
            raise StoreUnavailable(f"create {path}: {error}") from error
        return True

    async def _is_there(self, path: str) -> bool:
        try:
            return await self.read(path) is not None
        except ObjectTooLarge:
            return True

    async def read(self, path: str) -> bytes | None:
        found = await self.read_version(path)
        return found and found[0]

    async def read_version(self, path: str) -> tuple[bytes, str] | None:
        """The object's bytes and their `version_of`, None if it does not exist. Raises StoreUnavailable, ObjectTooLarge."""
        try:
            result = await obstore.get_async(self._store, path)
            if (size := result.meta["size"]) > self._most:
                raise ObjectTooLarge(f"{path} has {size} bytes, more than {self._most}")
            return bytes(await result.bytes_async()), version_of(result.meta)
        except FileNotFoundError:
            return None
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"read {path}: {error}") from error

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        with reaching(f"list {prefix}"):
            if isinstance(self._store, LocalStore):
                # A folder is listed in no particular order.
                for path in sorted([path async for path in self._pages(prefix, after)]):
                    yield path
            else:
                async for path in self._pages(prefix, after):
                    yield path

    async def _pages(self, prefix: str, after: str) -> AsyncIterator[str]:
        async for page in obstore.list(self._store, prefix, offset=after or None, chunk_size=1000):
            for meta in page:
                yield meta["path"]
