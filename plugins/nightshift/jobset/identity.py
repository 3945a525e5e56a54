"""What identifies a JobSet: its name, and a digest of what its pods do. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from nightshift.run.names import canonical_json

_OBSERVING: Final = re.compile("NIGHTSHIFT_NIGHT|TRACEPARENT|OTEL_[A-Z_]+")


def spec_hash(manifest: Mapping[str, Any]) -> str:
    """sha256, as 64 hex digits, over the canonical JSON of a JobSet manifest's ``spec`` as it was submitted.

    Without ``suspend``, which decides when its pods work, not what they do; and without what only observes them, which may be
    another in the next attempt: for metrics and traces.

    An API server adds defaults to what it stores, so an adopter compares the annotation, never a hash of what it reads back.
    """
    spec = {name: value for name, value in manifest["spec"].items() if name != "suspend"}
    return hashlib.sha256(canonical_json(_deciding(spec))).hexdigest()


def _deciding(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _deciding(each) for name, each in value.items()}
    return [_deciding(each) for each in value if not _observes(each)] if isinstance(value, list) else value


def _observes(item: Any) -> bool:
    """Whether an item of a list is such a variable of a container, or such an argument."""
    if isinstance(item, dict):
        return bool(_OBSERVING.fullmatch(str(item.get("name")))) and item.keys() <= {"name", "value", "valueFrom"}
    return isinstance(item, str) and item.startswith("--otlp-traces-endpoint=")


def digest_name(prefix: str, *parts: object) -> str:
    """A JobSet's name of at most 41 characters: JobSet, Job and pod names share Kubernetes' 63, and what is left is for the
    Job's name, indexes and a suffix."""
    digest = hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:10]
    return f"{prefix[:30].strip('-')}-{digest}"
