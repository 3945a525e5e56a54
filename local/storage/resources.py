"""Buckets and objects in the JSON API, and which of their fields a client may write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.requests import Request

from local.storage.errors import invalid
from local.storage.stored import Fields, StoredBucket, StoredObject

OBJECT_FIELDS = frozenset(
    {
        "cacheControl",
        "contentDisposition",
        "contentEncoding",
        "contentLanguage",
        "contentType",
        "contexts",
        "customTime",
        "eventBasedHold",
        "metadata",
        "retention",
        "storageClass",
        "temporaryHold",
    }
)
# Only the server writes these; everything else in a bucket is a setting that is kept as it came.
BUCKET_SERVER_FIELDS = frozenset(
    {"kind", "id", "selfLink", "name", "etag", "metageneration", "projectNumber", "timeCreated", "updated"}
)


def base_url(request: Request) -> str:
    """The address at which this client reached the server: links in answers use it too."""
    return f"http://{request.headers.get('host', 'localhost')}"


def object_resource(request: Request, stored: StoredObject) -> dict[str, Any]:
    path = f"storage/v1/b/{stored.bucket}/o/{quote(stored.name, safe='')}"
    base, created = base_url(request), rfc3339(stored.created_us)
    resource = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base}/{path}",
        "mediaLink": f"{base}/download/{path}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "storageClass": "STANDARD",
        "size": str(stored.body.size),
        "crc32c": stored.body.crc32c,
        "md5Hash": stored.body.md5,
        "etag": stored.etag,
        "timeCreated": created,
        "timeFinalized": created,
        "timeStorageClassUpdated": created,
        "updated": rfc3339(stored.updated_us),
        **stored.fields,
    }
    return {key: value for key, value in resource.items() if value is not None}


def bucket_resource(request: Request, stored: StoredBucket) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": stored.name,
        "selfLink": f"{base_url(request)}/storage/v1/b/{stored.name}",
        "name": stored.name,
        "projectNumber": "0",
        "metageneration": str(stored.metageneration),
        "etag": str(stored.metageneration),
        "timeCreated": rfc3339(stored.created_us),
        "updated": rfc3339(stored.updated_us),
        "location": "US",
        "locationType": "multi-region",
        "storageClass": "STANDARD",
        **stored.fields,
    }


def object_fields(resource: Fields) -> Fields:
    """The fields of a sent resource that a client may set. Raises ApiError 400."""
    metadata = resource.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise invalid("metadata must be an object of strings")
    fields = {key: value for key, value in resource.items() if key in OBJECT_FIELDS and value is not None}
    if metadata is not None:
        fields["metadata"] = {key: str(value) for key, value in metadata.items() if value is not None}
    return fields


def bucket_fields(resource: Fields) -> Fields:
    fields = {key: value for key, value in resource.items() if key not in BUCKET_SERVER_FIELDS and value is not None}
    if location := fields.get("location"):
        fields["location"] = str(location).upper()
    return fields


def merged(fields: Fields, patch: Fields) -> Fields:
    """``patch`` applied as JSON merge patch (RFC 7396): null removes, objects merge, everything else replaces."""
    result = dict(fields)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = value
    return result


def rfc3339(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
