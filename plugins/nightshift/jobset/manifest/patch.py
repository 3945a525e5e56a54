"""The deployment's override file: a patch of the rendered pod template, merged as Kubernetes' strategic merge does it.

Mappings are merged key by key, and null removes a key. Lists of named items are merged by name (`_KEYS`), and
``$patch: delete`` next to the name removes one; any other list or value replaces what was rendered.
docs/operate/compute.md has examples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
}
"""The keys of a list's items: Kubernetes' own merge keys."""
_CONTAINERS: Final = ("containers", "initContainers")
_DIRECTIVE: Final = "$patch"


class PatchError(ValueError):
    """The override file cannot be used; the message names the file, the field, and what to write."""


class Patch:
    """The override file at `path`. Raises PatchError for one that cannot be read or is not a pod patch."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            value = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PatchError(f"{path}: The file cannot be read: {error}. Check NIGHTSHIFT_POD_PATCH.") from error
        except yaml.YAMLError as error:
            raise PatchError(f"{path}: This is not valid YAML: {' '.join(str(error).split())}.") from error
        if not isinstance(value, dict) or not set(value) <= {"metadata", "spec"}:
            found = ", ".join(map(str, value)) if isinstance(value, dict) else "no mapping"
            raise PatchError(f"{path}: A pod patch has metadata and spec, but this file has {found}. Write them as in a Pod.")
        self._value: dict[str, Any] = value

    def apply(self, template: dict[str, Any]) -> dict[str, Any]:
        """The patched pod template; `template` is not changed. Raises PatchError if the patch cannot be merged."""
        return self._mapping(template, self._value, "")

    def _mapping(self, base: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
        merged = dict(base)
        for key, value in patch.items():
            here = f"{path}.{key}" if path else str(key)
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = self._value_at(key, base.get(key), value, here)
        return merged

    def _value_at(self, key: str, base: Any, value: Any, path: str) -> Any:
        kinds = (dict, list)
        if base is not None and [isinstance(base, kind) for kind in kinds] != [isinstance(value, kind) for kind in kinds]:
            raise self._error(path, f"The rendered value is {_kind(base)}, but this is {_kind(value)}", f"Write {_kind(base)}")
        if isinstance(value, dict):
            return self._mapping(base or {}, value, path)
        if isinstance(value, list) and key in _KEYS:
            return self._named(key, base or [], value, path)
        return value

    def _named(self, key: str, base: list[dict[str, Any]], items: list[Any], path: str) -> list[dict[str, Any]]:
        name = _KEYS[key]
        merged = {item[name]: item for item in base}
        for position, item in enumerate(items):
            if not isinstance(item, dict) or not isinstance(item.get(name), str | int):
                raise self._error(f"{path}[{position}]", f"The item has no {name}", f"Write {name}: ... to say which one it is")
            here = f"{path}[{name}={item[name]}]"
            directive = item.get(_DIRECTIVE)
            if directive not in (None, "delete"):
                raise self._error(here, f"$patch is {directive!r}", "Write delete, or leave it out")
            there = merged.get(item[name])
            if directive or key in _CONTAINERS:
                self._must_be_there(there, item, here, directive, list(merged))
            if directive:
                del merged[item[name]]
            else:
                base_item = _without_rivals(there or {}, item) if key == "env" else there or {}
                merged[item[name]] = self._mapping(base_item, item, here)
        return list(merged.values())

    def _must_be_there(self, there: object, item: dict[str, Any], path: str, directive: str | None, names: list[Any]) -> None:
        """A new container has an image; one without is a rendered one with a misspelt name."""
        if there is None and (directive or "image" not in item):
            listed = ", ".join(map(str, names)) or "none"
            raise self._error(path, f"No such item; the rendered ones are {listed}", "Write one of these")

    def _error(self, path: str, problem: str, remedy: str) -> PatchError:
        return PatchError(f"{self._path}: {path}: {problem}. {remedy}.")


def _without_rivals(variable: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A rendered variable without the value that the patch replaces: Kubernetes refuses value together with valueFrom."""
    rivals = {"value": "valueFrom", "valueFrom": "value"}
    gone = {rival for source, rival in rivals.items() if source in patch}
    return {name: value for name, value in variable.items() if name not in gone}


def _kind(value: Any) -> str:
    return {"dict": "a mapping", "list": "a list"}.get(type(value).__name__, "a single value")
