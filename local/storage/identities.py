"""Who sends a request, and what IAM allows it: tokens, predefined roles, policies of buckets with their conditions.

Off unless the server gets a file of identities; then everybody may do everything. The file is a JSON object: each key is a
bearer token, each value has ``member``, as policies name it, and ``roles`` (those on the project, which all buckets inherit).
The key ``""`` is for requests without a bearer token. In Cloud Storage such a request is anonymous; here BigQuery's emulator
and anonymous connections send none. Roles on a bucket come from its policy (`local.storage.policies`).

``storage.objects.list`` and ``storage.buckets.*`` are asked of the bucket, all others of the object, so a condition on names
of objects never allows a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from starlette.requests import Request

from local.storage.errors import ApiError
from local.storage.policies import ALL_PERMISSIONS, ROLES, Policies
from local.storage.store import Store

_OF_BUCKETS: Final = ("storage.objects.list", "storage.multipartUploads.list")
"""Permissions that are asked of the bucket, beside all of ``storage.buckets``."""


class IdentitiesError(ValueError):
    """The file of identities is not valid."""


class Caller(Protocol):
    def may(self, permission: str, bucket: str | None, name: str | None = None) -> bool:
        """bucket: None for what is asked of the project. name: of the object, which need not exist."""
        ...

    def refusal(self, permission: str, name: str | None) -> ApiError: ...


class Anybody:
    """Every caller, while there are no identities."""

    def may(self, permission: str, bucket: str | None, name: str | None = None) -> bool:
        return True

    def refusal(self, permission: str, name: str | None) -> ApiError:
        raise AssertionError("nothing is refused")


@dataclass(frozen=True, slots=True)
class Identity:
    """``member`` as in policies, for example ``serviceAccount:airflow@p.iam.gserviceaccount.com``."""

    member: str
    roles: frozenset[str]
    policies: Policies

    def may(self, permission: str, bucket: str | None, name: str | None = None) -> bool:
        if any(permission in ROLES[role] for role in self.roles):
            return True
        if bucket is None:
            return False
        about = None if _of_bucket(permission) else name
        return self.policies.allows(self.member, permission, bucket, about)

    def refusal(self, permission: str, name: str | None) -> ApiError:
        what = "bucket" if name is None or _of_bucket(permission) else "object"
        who = self.member.partition(":")[2] or self.member
        message = (
            f"{who} does not have {permission} access to the Google Cloud Storage {what}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
        return ApiError(403, "forbidden", "AccessDenied", message)


def _of_bucket(permission: str) -> bool:
    return permission.startswith("storage.buckets.") or permission in _OF_BUCKETS


class Identities:
    """known: token -> (member, roles); None if there are no identities."""

    def __init__(self, known: Mapping[str, tuple[str, frozenset[str]]] | None, policies: Policies) -> None:
        self._known = known
        self._policies = policies

    def caller(self, request: Request) -> Caller:
        """Raises ApiError 401 for an unknown token. Signatures are no tokens: any is accepted."""
        if self._known is None:
            return Anybody()
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if token not in self._known:
            raise ApiError(401, "authError" if token else "required", "AuthenticationRequired", "Invalid Credentials")
        member, roles = self._known[token]
        return Identity(member, roles, self._policies)


def read(file: Path | None) -> dict[str, tuple[str, frozenset[str]]] | None:
    """The identities of a file; None without one. Raises IdentitiesError."""
    if file is None:
        return None
    try:
        given = json.loads(file.read_text())
        known = {token: (str(entry["member"]), frozenset(entry.get("roles", ()))) for token, entry in given.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise IdentitiesError(f"{file} is no file of identities: {error!r}") from error
    if unknown := {role for _, roles in known.values() for role in roles} - ROLES.keys():
        raise IdentitiesError(f"{file} names roles that the emulator does not know: {', '.join(sorted(unknown))}")
    return known


def caller_of(request: Request) -> Caller:
    """Whom the application found before it chose the operation."""
    caller: Caller = request.state.caller
    return caller


def require(request: Request, store: Store, permission: str, bucket: str, name: str | None = None) -> None:
    """Raises ApiError 404 if there is no such bucket, 403 without the permission."""
    store.catalog.bucket(bucket)
    caller = caller_of(request)
    if not caller.may(permission, bucket, name):
        raise caller.refusal(permission, name)


def require_on_project(request: Request, permission: str) -> None:
    """Raises ApiError 403."""
    caller = caller_of(request)
    if not caller.may(permission, None):
        raise caller.refusal(permission, None)


def require_read(request: Request, store: Store, bucket: str, name: str) -> None:
    """Raises ApiError 403 also for an object that is missing, unless the caller may list the bucket and so learn that."""
    require(request, store, "storage.objects.get", bucket, name)
    caller = caller_of(request)
    if store.catalog.find(bucket, name) is None and not caller.may("storage.objects.list", bucket):
        raise caller.refusal("storage.objects.get", name)


def require_write(request: Request, store: Store, bucket: str, name: str) -> None:
    """To create an object; if there is one of this name, also the right to delete it, whatever the preconditions are."""
    require(request, store, "storage.objects.create", bucket, name)
    require_replace(request, store, bucket, name)


def require_replace(request: Request, store: Store, bucket: str, name: str) -> None:
    if store.catalog.find(bucket, name) is not None:
        require(request, store, "storage.objects.delete", bucket, name)


def permissions_of(request: Request, bucket: str, asked: list[str]) -> list[str]:
    """Those of the permissions asked about that the caller has on the bucket itself."""
    known = [each for each in dict.fromkeys(asked) if each in ALL_PERMISSIONS or isinstance(caller_of(request), Anybody)]
    return [each for each in known if caller_of(request).may(each, bucket)]
