"""Whether two files say the same job: what a DAG's page says of the file it was made from, for who has another one in hand."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from nightshift.spec.model import JobSpec

_SAID: Final = re.compile(r"\| File \| \*\*(.+?)\*\*, fingerprint ([0-9a-f]{12}) \|")


def of(spec: JobSpec) -> str:
    """12 hex digits. Comments, the order of keys and defaults that are written out do not count."""
    said = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def words(name: str, spec: JobSpec) -> str:
    """For the row ``File`` of a DAG's page. name: of the file, bold and with its markup escaped."""
    return f"{name}, fingerprint {of(spec)}"


def said_by(page: str | None) -> tuple[str, str] | None:
    """The file's name and the fingerprint that a DAG's page has; None for one of a release before 0.3, which had neither."""
    found = _SAID.search(page or "")
    return (re.sub(r"\\(.)", r"\1", found[1]), found[2]) if found else None
