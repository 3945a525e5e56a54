"""Sends an object's content, in the same way for the JSON API's ``alt=media``, the XML API and signed URLs."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from email.utils import formatdate
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from local.storage.errors import ApiError
from local.storage.store import Store
from local.storage.stored import StoredObject

# Up to this size, an answer is sent in one piece.
WHOLE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 18
FIELD_HEADERS = {
    "cacheControl": "Cache-Control",
    "contentDisposition": "Content-Disposition",
    "contentEncoding": "Content-Encoding",
    "contentLanguage": "Content-Language",
    "contentType": "Content-Type",
}


def content(request: Request, store: Store, stored: StoredObject, etag: str) -> Response:
    """The content, or the requested range of it. Raises ApiError 416."""
    headers = content_headers(stored, etag)
    if _must_unpack(request, stored):
        del headers["Content-Encoding"], headers["Accept-Ranges"]
        headers["Warning"] = "214 UploadServer gunzipped"
        return StreamingResponse(_unpacked(store.bodies.open(stored.body)), headers=headers)
    size = stored.body.size
    part = _range(request.headers.get("range"), size)
    start, end = part or (0, size)
    status, length = 206 if part else 200, end - start
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    headers["Content-Length"] = str(length)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    file = store.bodies.open(stored.body)
    file.seek(start)
    if length <= WHOLE_BYTES:
        with file:
            return Response(file.read(length), status, headers)
    return StreamingResponse(_blocks(file, length), status, headers)


def content_headers(stored: StoredObject, etag: str) -> dict[str, str]:
    hashes = [f"crc32c={stored.body.crc32c}"] + ([f"md5={stored.body.md5}"] if stored.body.md5 else [])
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{etag}"',
        "Last-Modified": formatdate(stored.updated_us // 1_000_000, usegmt=True),
        "Content-Type": "application/octet-stream",
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": str(stored.metageneration),
        "x-goog-hash": ",".join(hashes),
        "x-goog-storage-class": stored.fields.get("storageClass", "STANDARD"),
        "x-goog-stored-content-encoding": stored.fields.get("contentEncoding", "identity"),
        "x-goog-stored-content-length": str(stored.body.size),
    }
    headers |= {header: str(stored.fields[field]) for field, header in FIELD_HEADERS.items() if field in stored.fields}
    headers |= {f"x-goog-meta-{key}": value for key, value in stored.fields.get("metadata", {}).items()}
    # HTTP headers are Latin-1; Cloud Storage puts UTF-8 there, byte for byte.
    return {key: value.encode().decode("latin-1") for key, value in headers.items()}


def _must_unpack(request: Request, stored: StoredObject) -> bool:
    """Unpacks content stored as gzip for clients that do not accept gzip (decompressive transcoding)."""
    if stored.fields.get("contentEncoding") != "gzip" or "no-transform" in stored.fields.get("cacheControl", ""):
        return False
    return "gzip" not in request.headers.get("accept-encoding", "")


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    with file:
        while data := file.read(BLOCK_BYTES):
            yield unpacker.decompress(data)
        yield unpacker.flush()


def _blocks(file: BinaryIO, length: int) -> Iterator[bytes]:
    with file:
        while length > 0 and (data := file.read(min(length, BLOCK_BYTES))):
            length -= len(data)
            yield data


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """First byte and the byte after the last; None, meaning everything, if the header is not a single range of bytes."""
    asked = re.fullmatch(r"bytes=(?:(\d+)-(\d*)|-(\d+))", (header or "").strip())
    if asked is None:
        return None
    first, last, suffix = asked.groups()
    start = max(0, size - int(suffix)) if suffix else int(first)
    end = min(size, int(last) + 1) if last else size
    if start >= end:
        message = f"The requested range cannot be satisfied: {header} of {size} bytes"
        raise ApiError(416, "requestedRangeNotSatisfiable", "InvalidRange", message)
    return start, end
