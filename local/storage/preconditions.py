"""Preconditions of a request, and whether an object meets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from local.storage.errors import invalid, not_modified, precondition_failed
from local.storage.stored import StoredObject


@dataclass(frozen=True, slots=True)
class Preconditions:
    """What must hold for the current object. A generation of 0 means "no object"."""

    generation: int | None = None
    generation_not: int | None = None
    metageneration: int | None = None
    metageneration_not: int | None = None

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Preconditions:
        """The JSON API's: ``ifGenerationMatch`` and so on."""
        return cls._read(
            query, [f"if{what}{how}" for what in ("Generation", "Metageneration") for how in ("Match", "NotMatch")]
        )

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Preconditions:
        """The XML API's: ``x-goog-if-generation-match`` and so on."""
        return cls._read(
            headers, [f"x-goog-if-{what}-{how}" for what in ("generation", "metageneration") for how in ("match", "not-match")]
        )

    @classmethod
    def _read(cls, given: Mapping[str, str], names: list[str]) -> Preconditions:
        return cls(*(_number(name, given.get(name)) for name in names))

    def check_bucket(self, metageneration: int) -> None:
        """The same for a bucket, which has no generation. Raises ApiError 412."""
        if self.metageneration not in (None, metageneration) or self.metageneration_not == metageneration:
            raise precondition_failed(f"the metageneration is {metageneration}")

    def check(self, current: StoredObject | None, *, reading: bool = False) -> None:
        """Raises ApiError 412 if a condition does not hold; a read that asks for "anything but this one" gets 304."""
        generation, metageneration = (current.generation, current.metageneration) if current else (0, 0)
        if self.generation is not None and self.generation != generation:
            raise precondition_failed(f"the generation is {generation}, not {self.generation}")
        if self.metageneration is not None and self.metageneration != metageneration:
            raise precondition_failed(f"the metageneration is {metageneration}, not {self.metageneration}")
        if self.generation_not == generation or self.metageneration_not == metageneration:
            if reading:
                raise not_modified()
            raise precondition_failed(f"the generation is {generation}, the metageneration {metageneration}")


def check_http(headers: Mapping[str, str], current: StoredObject) -> None:
    """The conditions of plain HTTP (RFC 9110, section 13), which Cloud Storage honours on reads only.

    Entity tags may be the JSON API's or the XML API's. Raises ApiError 412 or 304.
    """
    updated_s = current.updated_us // 1_000_000
    if (wanted := headers.get("if-match")) is not None:
        if not _names_one(wanted, current):
            raise precondition_failed("If-Match")
    elif (since := _seconds(headers.get("if-unmodified-since"))) is not None and updated_s > since:
        raise precondition_failed("If-Unmodified-Since")
    if (known := headers.get("if-none-match")) is not None:
        if _names_one(known, current):
            raise not_modified()
    elif (since := _seconds(headers.get("if-modified-since"))) is not None and updated_s <= since:
        raise not_modified()


def _names_one(header: str, current: StoredObject) -> bool:
    tags = {tag.strip().removeprefix("W/").strip('"') for tag in header.split(",")}
    return bool(tags & {"*", current.etag, current.content_etag})


def _number(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise invalid(f"{name}: {value!r} is not a whole number") from None


def _seconds(date: str | None) -> float | None:
    """Seconds since 1970; as in HTTP, an unreadable date counts as not given."""
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
