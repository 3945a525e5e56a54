"""Reads the fields of a manifest one by one, with their paths, and refuses those that nothing has read. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ManifestError(ValueError):
    """The manifest is wrong, or asks for what the local runtime cannot do; the message starts with the field's path."""


class Fields:
    """One mapping of a manifest. Remembers what was read, so that `close` can refuse the rest by name."""

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise ManifestError(f"{path or 'manifest'}: not a mapping")
        self.path = path
        self._values = value
        self._read: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str) -> Any:
        self._read.add(key)
        return self._values.get(key)

    def get(self, key: str, kind: type[T], default: Any) -> Any:
        """The value; ``default`` if it is missing or null. Raises ManifestError if it has another type."""
        value = self._value(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ManifestError(f"{self.at(key)}: {value!r} is not of type {kind.__name__}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        value = self.get(key, kind, None)
        if value is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return cast(T, value)

    def number(self, key: str, default: int | None, *, least: int) -> int | None:
        value = cast("int | None", self.get(key, int, default))
        if value is not None and value < least:
            raise ManifestError(f"{self.at(key)}: {value} is less than {least}")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.need(key, str)
        if value not in allowed:
            raise ManifestError(f"{self.at(key)}: {value!r} is not supported here; supported: {', '.join(allowed)}")
        return value

    def expect(self, key: str, wanted: Any, **default: Any) -> None:
        """Refuses any other value; with ``default``, a missing value counts as that."""
        value = self._value(key)
        if value is None and "default" in default:
            return
        if value != wanted:
            raise ManifestError(f"{self.at(key)}: {value!r} is not supported here; write {wanted!r}")

    def port(self, key: str, names: dict[str, int]) -> int | str:
        value = self._value(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return next((name for name, number in names.items() if number == value), value)
        if value not in names:
            raise ManifestError(f"{self.at(key)}: {value!r} is neither a number nor the name of a port of this container")
        return cast(str, value)

    def items(self, key: str, kind: type[T]) -> list[T]:
        values = self.get(key, list, [])
        for value in values:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ManifestError(f"{self.at(key)}: {value!r} is not of type {kind.__name__}")
        return cast("list[T]", values)

    def strings(self, key: str) -> tuple[tuple[str, str], ...]:
        fields = self.optional(key)
        return () if fields is None else tuple((name, fields.need(name, str)) for name in fields._values)

    def child(self, key: str) -> Fields:
        if self._value(key) is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return Fields(self._values[key], self.at(key))

    def optional(self, key: str) -> Fields | None:
        return None if self._value(key) is None else self.child(key)

    def children(self, key: str, default: list[Any] | None = None) -> list[Fields]:
        values = self.get(key, list, default)
        if values is None:
            raise ManifestError(f"{self.at(key)}: missing")
        return [Fields(value, f"{self.at(key)}[{number}]") for number, value in enumerate(values)]

    def ignore(self, *keys: str) -> None:
        self._read.update(keys)

    def close(self) -> None:
        unread = sorted(set(self._values) - self._read)
        if unread:
            raise ManifestError(f"{self.at(unread[0])}: the local runtime does not support this field; remove it")
