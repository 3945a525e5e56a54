"""IAM policies of buckets: which roles whom allow what, and on which names.

Roles hold the permissions that Google's page "IAM roles for Cloud Storage" lists for objects, uploads and buckets. Of the
condition language (CEL) there is what concerns names: ``resource.name.startsWith("...")``, ``resource.name``, ``resource.type``
and ``resource.service`` compared by ``==`` and ``!=``, ``!``, ``&&``, ``||`` and parentheses. Anything else is refused when
the policy is set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from local.storage.database import Database
from local.storage.errors import ApiError, invalid

_OBJECTS: Final = frozenset(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update", "move"))
_UPLOADS: Final = frozenset(f"storage.multipartUploads.{verb}" for verb in ("abort", "create", "list", "listParts"))
_BUCKETS: Final = frozenset(
    f"storage.buckets.{verb}" for verb in ("create", "delete", "get", "getIamPolicy", "list", "setIamPolicy", "update")
)
ALL_PERMISSIONS: Final = _OBJECTS | _UPLOADS | _BUCKETS
_LISTING: Final = frozenset({"storage.buckets.get", "storage.objects.list", "storage.multipartUploads.list"})
ROLES: Final[dict[str, frozenset[str]]] = {
    "roles/storage.admin": ALL_PERMISSIONS,
    "roles/storage.objectAdmin": _OBJECTS | _UPLOADS,
    "roles/storage.objectUser": _OBJECTS | _UPLOADS,
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
    "roles/storage.objectCreator": frozenset({"storage.objects.create"}) | _UPLOADS - {"storage.multipartUploads.list"},
    "roles/storage.legacyBucketReader": _LISTING,
    "roles/storage.legacyBucketWriter": _LISTING | _UPLOADS | {"storage.objects.create", "storage.objects.delete"},
    "roles/storage.legacyObjectReader": frozenset({"storage.objects.get"}),
}
_PUBLIC: Final = ("allUsers", "allAuthenticatedUsers")
_TABLE: Final = "CREATE TABLE IF NOT EXISTS policies (bucket TEXT PRIMARY KEY, bindings TEXT NOT NULL) WITHOUT ROWID"
_WITH_CONDITIONS: Final = 3
"""The version of a policy that has conditions."""

Attributes = dict[str, str]
Condition = Callable[[Attributes], bool]


class Policies:
    """Like the catalog, for the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # A folder of an older emulator has no such table.
        database.execute(_TABLE)

    def get(self, bucket: str) -> list[dict[str, Any]]:
        row = self._database.execute("SELECT bindings FROM policies WHERE bucket = ?", bucket).fetchone()
        bindings: list[dict[str, Any]] = json.loads(row[0]) if row else []
        return bindings

    def set(self, bucket: str, bindings: list[dict[str, Any]]) -> None:
        self._database.execute("INSERT OR REPLACE INTO policies VALUES (?, ?)", bucket, json.dumps(bindings))

    def forget(self, bucket: str) -> None:
        self._database.execute("DELETE FROM policies WHERE bucket = ?", bucket)

    def allows(self, member: str, permission: str, bucket: str, name: str | None) -> bool:
        """name: of the object that the permission is asked of; None for the bucket itself."""
        about = f"projects/_/buckets/{bucket}" + ("" if name is None else f"/objects/{name}")
        kind = "Bucket" if name is None else "Object"
        attributes = {"name": about, "type": f"storage.googleapis.com/{kind}", "service": "storage.googleapis.com"}
        return any(
            permission in ROLES[binding["role"]] and _holds(binding, attributes)
            for binding in self.get(bucket)
            if {member, *_PUBLIC} & set(binding["members"])
        )


def checked(policy: dict[str, Any], uniform: bool) -> list[dict[str, Any]]:
    """The bindings of a policy that a client sets. uniform: the bucket's uniform access. Raises ApiError 400."""
    bindings = policy.get("bindings") or []
    for binding in bindings:
        if binding.get("role") not in ROLES:
            raise invalid(f"Role {binding.get('role')} is not supported for this resource.")
        members = binding.get("members")
        if not isinstance(members, list) or not all(isinstance(member, str) and member for member in members):
            raise invalid("members must be a list of principals.")
        if condition := binding.get("condition"):
            _check_condition(condition, binding, policy, uniform)
    return list(bindings)


def shown(bindings: list[dict[str, Any]], version: int) -> dict[str, Any]:
    """A policy as it is read. version: the highest one that the client knows; below 3, conditions are only hinted at."""
    if version >= _WITH_CONDITIONS or not any(binding.get("condition") for binding in bindings):
        known = any(binding.get("condition") for binding in bindings)
        return {"kind": "storage#policy", "version": _WITH_CONDITIONS if known else 1, "bindings": bindings}
    return {"kind": "storage#policy", "version": 1, "bindings": [_without_condition(binding) for binding in bindings]}


def _without_condition(binding: dict[str, Any]) -> dict[str, Any]:
    if not (condition := binding.get("condition")):
        return binding
    digest = hashlib.sha256(json.dumps(condition, sort_keys=True).encode()).hexdigest()[:20]
    return {"role": f"{binding['role']}_withcond_{digest}", "members": binding["members"]}


def _check_condition(condition: Any, binding: dict[str, Any], policy: dict[str, Any], uniform: bool) -> None:
    if not uniform:
        raise invalid("A policy with conditions needs uniform bucket-level access on the bucket.")
    if policy.get("version") != _WITH_CONDITIONS:
        raise invalid("A policy with conditions must have version 3.")
    if ".legacy" in binding["role"] or set(_PUBLIC) & set(binding["members"]):
        raise invalid("Legacy roles, allUsers and allAuthenticatedUsers take no conditions.")
    if not isinstance(condition, dict) or not condition.get("title"):
        raise invalid("A condition needs a title.")
    parsed(str(condition.get("expression", "")))


def _holds(binding: dict[str, Any], attributes: Attributes) -> bool:
    condition = binding.get("condition")
    return condition is None or parsed(condition["expression"])(attributes)


_TOKEN: Final = re.compile(
    r"""\s*(?:resource\.(?P<attribute>name|type|service)\b(?P<starts>\.startsWith\b)?|(?P<sign>==|!=|&&|\|\||[!()])"""
    r"""|"(?P<double>[^"\\]*)"|'(?P<single>[^'\\]*)')"""
)


def parsed(expression: str) -> Condition:
    """Raises ApiError 400 for what is not in the part of the language that is here."""
    return _Parser(expression).whole()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = list(self._read())
        self._position = 0

    def whole(self) -> Condition:
        found = self._any()
        if self._position < len(self._tokens):
            raise self._wrong()
        return found

    def _any(self) -> Condition:
        return self._joined("||", any, self._all)

    def _all(self) -> Condition:
        return self._joined("&&", all, self._one)

    def _joined(self, sign: str, how: Callable[[Iterator[bool]], bool], part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._take("sign", sign):
            parts.append(part())
        return lambda attributes: how(each(attributes) for each in parts)

    def _one(self) -> Condition:
        if self._take("sign", "!"):
            inner = self._one()
            return lambda attributes: not inner(attributes)
        if self._take("sign", "("):
            inner = self._any()
            self._need("sign", ")")
            return inner
        name = self._need("attribute")
        if self._take("starts"):
            self._need("sign", "(")
            text = self._need("text")
            self._need("sign", ")")
            return lambda attributes: attributes[name].startswith(text)
        equal = self._need("sign")
        if equal not in ("==", "!="):
            raise self._wrong()
        text = self._need("text")
        return lambda attributes: (attributes[name] == text) == (equal == "==")

    def _take(self, kind: str, value: str | None = None) -> bool:
        found = self._position < len(self._tokens) and self._tokens[self._position][0] == kind
        if found and value in (None, self._tokens[self._position][1]):
            self._position += 1
            return True
        return False

    def _need(self, kind: str, value: str | None = None) -> str:
        if not self._take(kind, value):
            raise self._wrong()
        return self._tokens[self._position - 1][1]

    def _read(self) -> Iterator[tuple[str, str]]:
        position, end = 0, len(self._expression.rstrip())
        while position < end:
            found = _TOKEN.match(self._expression, position)
            if found is None:
                raise self._wrong()
            position = found.end()
            if found["attribute"]:
                yield "attribute", found["attribute"]
                if found["starts"]:
                    yield "starts", ""
            elif found["sign"]:
                yield "sign", found["sign"]
            else:
                yield "text", found["double"] if found["double"] is not None else found["single"]

    def _wrong(self) -> ApiError:
        return invalid(f"Not a condition, or one that this emulator does not know: {self._expression!r}")
