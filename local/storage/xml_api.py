"""The XML API as object_store, DuckDB's httpfs and signed URLs use it: objects, lists (version 2), multipart uploads."""

from __future__ import annotations

import asyncio
import base64
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from starlette.requests import Request
from starlette.responses import Response

from local.storage import copies, download
from local.storage.bodies import Body, Incoming
from local.storage.errors import ApiError, invalid
from local.storage.identities import require, require_read, require_write
from local.storage.json_api import whole_number
from local.storage.listing import PAGE_MAX, ListQuery, after_token, list_page
from local.storage.preconditions import Preconditions, check_http
from local.storage.resources import rfc3339
from local.storage.sessions import Session
from local.storage.store import Store
from local.storage.stored import Fields, StoredObject
from local.storage.uploads import check_digests, session_url, stated_digests

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
DECLARATION = "<?xml version='1.0' encoding='UTF-8'?>"
METADATA_PREFIX = "x-goog-meta-"
PARTS_MAX = 10_000


def xml(element: str, content: str, headers: dict[str, str] | None = None) -> Response:
    return Response(f'{DECLARATION}<{element} xmlns="{NAMESPACE}">{content}</{element}>', 200, headers, "application/xml")


# Buckets


async def get_bucket(request: Request, store: Store, bucket: str) -> Response:
    """A list of the bucket's objects; for HEAD, only the status matters."""
    require(request, store, "storage.buckets.get" if request.method == "HEAD" else "storage.objects.list", bucket)
    query = request.query_params
    limit = whole_number(query, "max-keys")
    wanted = ListQuery(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        after=after_token(query["continuation-token"]) if "continuation-token" in query else query.get("start-after", ""),
        limit=PAGE_MAX if limit is None else limit,
    )
    page = list_page(store.catalog, bucket, wanted)
    text = _url_encoded if query.get("encoding-type") == "url" else escape
    content = f"<Name>{bucket}</Name><Prefix>{text(wanted.prefix)}</Prefix><MaxKeys>{wanted.limit}</MaxKeys>"
    content += f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount>"
    content += f"<IsTruncated>{'true' if page.next_token else 'false'}</IsTruncated>"
    content += "".join(
        f"<Contents><Key>{text(found.name)}</Key><Generation>{found.generation}</Generation>"
        f"<MetaGeneration>{found.metageneration}</MetaGeneration><LastModified>{rfc3339(found.updated_us)}</LastModified>"
        f'<ETag>"{found.content_etag}"</ETag><Size>{found.body.size}</Size><StorageClass>STANDARD</StorageClass></Contents>'
        for found in page.objects
    )
    content += "".join(f"<CommonPrefixes><Prefix>{text(prefix)}</Prefix></CommonPrefixes>" for prefix in page.prefixes)
    if page.next_token:
        content += f"<NextContinuationToken>{page.next_token}</NextContinuationToken>"
    return xml("ListBucketResult", content)


def _url_encoded(name: str) -> str:
    return quote(name, safe="/")


# Objects


async def get_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    require_read(request, store, bucket, name)
    found = _checked(request, store, bucket, name, reading=True)
    check_http(request.headers, found)
    return download.content(request, store, found, found.content_etag)


async def delete_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    """Also ends a multipart upload (``?uploadId=``)."""
    if upload := request.query_params.get("uploadId"):
        require(request, store, "storage.multipartUploads.abort", bucket, name)
        store.sessions.drop(store.sessions.get(upload))
    else:
        require(request, store, "storage.objects.delete", bucket, name)
        store.catalog.delete(_checked(request, store, bucket, name))
    return Response(status_code=204)


async def put_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    """Writes an object, or receives one part of a multipart upload."""
    if upload := request.query_params.get("uploadId"):
        return await _put_part(request, store, store.sessions.get(upload))
    if source := request.headers.get("x-goog-copy-source") or request.headers.get("x-amz-copy-source"):
        copies.refuse(request, store, source, (bucket, name))
    with store.bodies.incoming() as incoming:
        body = await _receive(request, incoming)
        require_write(request, store, bucket, name)
        stored = store.catalog.put(bucket, name, body, _fields(request), Preconditions.from_headers(request.headers))
    return Response(status_code=200, headers=_written(stored))


async def post_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    """Starts (``?uploads``) or completes (``?uploadId=``) a multipart upload, or starts a resumable one (by a header)."""
    if upload := request.query_params.get("uploadId"):
        return await _complete(request, store, store.sessions.get(upload))
    session = None
    if "uploads" in request.query_params:
        _require_upload(request, store, bucket, name)
    else:
        require_write(request, store, bucket, name)
    if "uploads" in request.query_params or request.headers.get("x-goog-resumable") == "start":
        session = store.sessions.start(bucket, name, _fields(request), Preconditions.from_headers(request.headers))
    if session is None:
        raise invalid("This POST is neither a multipart nor a resumable upload.")
    if "uploads" not in request.query_params:
        return Response(status_code=201, headers={"Location": session_url(request, bucket, session)})
    content = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{session.id}</UploadId>"
    return xml("InitiateMultipartUploadResult", content)


def _checked(request: Request, store: Store, bucket: str, name: str, *, reading: bool = False) -> StoredObject:
    found = store.catalog.get(bucket, name, whole_number(request.query_params, "generation"))
    Preconditions.from_headers(request.headers).check(found, reading=reading)
    return found


def _fields(request: Request) -> Fields:
    """An object's fields from the headers of a write."""
    headers = request.headers
    fields: Fields = {field: headers[header] for field, header in download.FIELD_HEADERS.items() if header in headers}
    prefix = METADATA_PREFIX
    metadata = {key.removeprefix(prefix): _utf8(value) for key, value in headers.items() if key.startswith(prefix)}
    return fields | ({"metadata": metadata} if metadata else {})


def _utf8(header: str) -> str:
    return header.encode("latin-1").decode("utf-8", errors="replace")


def _written(stored: StoredObject) -> dict[str, str]:
    shown = ("ETag", "x-goog-generation", "x-goog-metageneration", "x-goog-hash", "x-goog-stored-content-length")
    headers = download.content_headers(stored, stored.content_etag)
    return {name: headers[name] for name in shown}


async def _receive(request: Request, incoming: Incoming) -> Body:
    async for data in request.stream():
        incoming.write(data)
    body = incoming.finish()
    check_digests(body, stated_digests(request.headers))
    return body


# Multipart uploads


def _require_upload(request: Request, store: Store, bucket: str, name: str) -> None:
    for permission in ("storage.multipartUploads.create", "storage.objects.create"):
        require(request, store, permission, bucket, name)


async def _put_part(request: Request, store: Store, session: Session) -> Response:
    _require_upload(request, store, session.bucket, session.name)
    number = whole_number(request.query_params, "partNumber")
    if number is None or not 1 <= number <= PARTS_MAX:
        raise invalid(f"partNumber must be from 1 to {PARTS_MAX}.")
    with store.bodies.incoming() as incoming:
        body = await _receive(request, incoming)
        store.sessions.put_part(session, number, body)
    return Response(status_code=200, headers={"ETag": _part_etag(body), "x-goog-hash": f"crc32c={body.crc32c}"})


async def _complete(request: Request, store: Store, session: Session) -> Response:
    wanted = _listed_parts(await request.body())
    parts = store.sessions.parts(session)
    for number, etag in wanted:
        if number not in parts or etag.strip('"') != _part_etag(parts[number]).strip('"'):
            raise ApiError(400, "invalid", "InvalidPart", f"Part {number} is missing, or is not the part that {etag} names.")
    files = [store.bodies.open(parts[number]) for number, _ in wanted]
    whole = await asyncio.to_thread(store.bodies.concatenate, files)
    with store.bodies.guarded(whole):
        _require_upload(request, store, session.bucket, session.name)
        require_write(request, store, session.bucket, session.name)
        given = Preconditions.from_headers(request.headers)
        stored = store.sessions.complete(session, whole, session.conditions if given == Preconditions() else given)
    content = f'<Bucket>{stored.bucket}</Bucket><Key>{escape(stored.name)}</Key><ETag>"{stored.content_etag}"</ETag>'
    return xml("CompleteMultipartUploadResult", content, _written(stored))


def _listed_parts(body: bytes) -> list[tuple[int, str]]:
    """Numbers and entity tags of a ``CompleteMultipartUpload``, in ascending order of numbers. Raises ApiError 400."""
    try:
        root = ElementTree.fromstring(body)
        # Some clients name the S3 namespace, others none.
        parts = [(int(part.findtext("{*}PartNumber", "")), part.findtext("{*}ETag", "")) for part in root.iterfind("{*}Part")]
    except (ElementTree.ParseError, ValueError) as error:
        raise ApiError(400, "invalid", "MalformedXML", f"The list of parts cannot be read: {error}") from None
    if parts != sorted(parts) or not parts:
        raise ApiError(400, "invalid", "InvalidPartOrder", "The list of parts is empty or not in ascending order.")
    return parts


def _part_etag(body: Body) -> str:
    return f'"{base64.b64decode(body.md5 or "").hex()}"'
