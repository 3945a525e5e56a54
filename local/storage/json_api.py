"""The JSON API without its uploads: buckets, objects, lists."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from local.storage import download, policies
from local.storage.errors import ApiError, invalid
from local.storage.identities import permissions_of, require, require_on_project, require_read
from local.storage.listing import PAGE_MAX, ListQuery, after_token, list_page
from local.storage.preconditions import Preconditions, check_http
from local.storage.resources import bucket_fields, bucket_resource, merged, object_fields, object_resource
from local.storage.store import Store
from local.storage.stored import Fields, StoredBucket, StoredObject

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
PERMISSION = re.compile(r"storage\.(?:buckets|objects|managedFolders)\.[a-zA-Z]+")
"""Their documented form: ``storage.RESOURCE.CAPABILITY``. Wildcards are not permissions."""


async def json_body(request: Request) -> Fields:
    """The request's body as a JSON object; an empty body counts as an empty object. Raises ApiError 400."""
    body = await request.body()
    try:
        parsed = json.loads(body) if body else {}
    except ValueError as error:
        raise invalid(f"The body is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise invalid("The body is not a JSON object.")
    return parsed


def whole_number(parameters: Mapping[str, str], name: str) -> int | None:
    """A parameter's value; None if it is missing. Raises ApiError 400."""
    value = parameters.get(name)
    if value is None:
        return None
    if not value.isdecimal():
        raise invalid(f"{name}: {value!r} is not a whole number")
    return int(value)


# Buckets


async def list_buckets(request: Request, store: Store) -> Response:
    require_on_project(request, "storage.buckets.list")
    prefix = request.query_params.get("prefix", "")
    items = [bucket_resource(request, bucket) for bucket in store.catalog.buckets() if bucket.name.startswith(prefix)]
    return JSONResponse({"kind": "storage#buckets", "items": items})


async def create_bucket(request: Request, store: Store) -> Response:
    resource = await json_body(request)
    require_on_project(request, "storage.buckets.create")
    name = str(resource.get("name", ""))
    if not BUCKET_NAME.fullmatch(name):
        raise invalid(f"Invalid bucket name: {name!r}")
    return JSONResponse(bucket_resource(request, store.catalog.create_bucket(name, bucket_fields(resource))))


async def get_bucket(request: Request, store: Store, bucket: str) -> Response:
    return JSONResponse(bucket_resource(request, _checked_bucket(request, store, bucket, "storage.buckets.get")))


async def patch_bucket(request: Request, store: Store, bucket: str) -> Response:
    patch = await json_body(request)
    current = _checked_bucket(request, store, bucket, "storage.buckets.update")
    changed = store.catalog.change_bucket(bucket, bucket_fields(merged(current.fields, patch)))
    return JSONResponse(bucket_resource(request, changed))


async def replace_bucket(request: Request, store: Store, bucket: str) -> Response:
    resource = await json_body(request)
    current = _checked_bucket(request, store, bucket, "storage.buckets.update")
    location = {key: current.fields[key] for key in ("location",) if key in current.fields}
    return JSONResponse(bucket_resource(request, store.catalog.change_bucket(bucket, bucket_fields(resource) | location)))


async def delete_bucket(request: Request, store: Store, bucket: str) -> Response:
    _checked_bucket(request, store, bucket, "storage.buckets.delete")
    store.catalog.delete_bucket(bucket)
    store.policies.forget(bucket)
    return Response(status_code=204)


async def test_permissions(request: Request, store: Store, bucket: str) -> Response:
    """``buckets.testIamPermissions``: which of the permissions asked about the caller has.

    On the bucket itself: a role under a condition on names of objects adds nothing. Without identities everybody has all.
    """
    store.catalog.bucket(bucket)
    asked = request.query_params.getlist("permissions")
    if not asked:
        raise ApiError(400, "required", "InvalidArgument", "Required parameter: permissions")
    for permission in asked:
        if not PERMISSION.fullmatch(permission):
            raise invalid(f"Invalid permission: {permission!r}")
    return JSONResponse({"kind": "storage#testIamPermissionsResponse", "permissions": permissions_of(request, bucket, asked)})


async def get_policy(request: Request, store: Store, bucket: str) -> Response:
    require(request, store, "storage.buckets.getIamPolicy", bucket)
    version = whole_number(request.query_params, "optionsRequestedPolicyVersion") or 1
    return JSONResponse(policies.shown(store.policies.get(bucket), version))


async def set_policy(request: Request, store: Store, bucket: str) -> Response:
    given = await json_body(request)
    require(request, store, "storage.buckets.setIamPolicy", bucket)
    settings = store.catalog.bucket(bucket).fields.get("iamConfiguration", {})
    uniform = bool(settings.get("uniformBucketLevelAccess", {}).get("enabled"))
    store.policies.set(bucket, policies.checked(given, uniform))
    return JSONResponse(policies.shown(store.policies.get(bucket), version=3))


def _checked_bucket(request: Request, store: Store, name: str, permission: str) -> StoredBucket:
    require(request, store, permission, name)
    current = store.catalog.bucket(name)
    Preconditions.from_query(request.query_params).check_bucket(current.metageneration)
    return current


# Objects


async def list_objects(request: Request, store: Store, bucket: str) -> Response:
    require(request, store, "storage.objects.list", bucket)
    query = request.query_params
    limit = whole_number(query, "maxResults")
    wanted = ListQuery(
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start=query.get("startOffset", ""),
        end=query.get("endOffset", ""),
        after=after_token(query.get("pageToken", "")),
        glob=query.get("matchGlob", ""),
        trailing_delimiter=query.get("includeTrailingDelimiter", "").lower() == "true",
        limit=PAGE_MAX if limit is None else limit,
    )
    page = list_page(store.catalog, bucket, wanted)
    answer: dict[str, Any] = {"kind": "storage#objects", "items": [object_resource(request, found) for found in page.objects]}
    answer["prefixes"] = page.prefixes
    if page.next_token is not None:
        answer["nextPageToken"] = page.next_token
    return JSONResponse(answer)


async def get_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    require_read(request, store, bucket, name)
    found = _checked(request, store, bucket, name, reading=True)
    check_http(request.headers, found)
    if request.query_params.get("alt") == "media":
        return download.content(request, store, found, found.etag)
    return JSONResponse(object_resource(request, found), headers={"ETag": f'"{found.etag}"'})


async def patch_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    patch = await json_body(request)
    _require_update(request, store, bucket, name)
    current = _checked(request, store, bucket, name)
    changed = store.catalog.change(current, object_fields(merged(current.fields, patch)))
    return JSONResponse(object_resource(request, changed))


async def replace_metadata(request: Request, store: Store, bucket: str, name: str) -> Response:
    resource = await json_body(request)
    _require_update(request, store, bucket, name)
    changed = store.catalog.change(_checked(request, store, bucket, name), object_fields(resource))
    return JSONResponse(object_resource(request, changed))


async def delete_object(request: Request, store: Store, bucket: str, name: str) -> Response:
    require(request, store, "storage.objects.delete", bucket, name)
    store.catalog.delete(_checked(request, store, bucket, name))
    return Response(status_code=204)


def _require_update(request: Request, store: Store, bucket: str, name: str) -> None:
    for permission in ("storage.objects.get", "storage.objects.update"):
        require(request, store, permission, bucket, name)


def _checked(request: Request, store: Store, bucket: str, name: str, *, reading: bool = False) -> StoredObject:
    """The object that a request names, if it exists and meets the request's preconditions."""
    query = request.query_params
    found = store.catalog.get(bucket, name, whole_number(query, "generation"))
    Preconditions.from_query(query).check(found, reading=reading)
    return found
