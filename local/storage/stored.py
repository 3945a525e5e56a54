"""What the catalogue holds: buckets and objects as values."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from local.storage.bodies import Body

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """``fields`` are the settings that a client wrote, under the names of the JSON API. Times are microseconds since 1970."""

    name: str
    created_us: int
    updated_us: int
    metageneration: int
    fields: Fields


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A live object. ``fields`` as in StoredBucket."""

    bucket: str
    name: str
    generation: int
    metageneration: int
    created_us: int
    updated_us: int
    fields: Fields
    body: Body

    @property
    def etag(self) -> str:
        """The JSON API's entity tag: changes with content and metadata."""
        return base64.b64encode(f"{self.generation}/{self.metageneration}".encode()).decode()

    @property
    def content_etag(self) -> str:
        """The XML API's: the MD5 of the content in hex. A multipart upload has no MD5, so its generation stands in."""
        if self.body.md5 is None:
            return f"-{base64.b64encode(str(self.generation).encode()).decode()}"
        return base64.b64decode(self.body.md5).hex()
