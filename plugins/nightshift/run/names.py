"""What a run is called and where its objects lie: a pure function of job, partition and frozen spec.

A retry, a clear or a second trigger therefore all find the same folder. The layout is design.md's::

    JOB/PARTITION/RUN/
      spec.json  plan.json  inputs/*.parquet
      ledger/chunk-00000012.parquet
      partials/chunk-00000013/ATTEMPT.parquet
      manifest.json
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any


def canonical_json(value: Any) -> bytes:
    """The one byte string for a JSON value: sorted keys, no spaces, UTF-8. Digests are taken over this."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def run_digest(job: str, partition: str, semantic_spec: dict[str, Any]) -> str:
    """First 16 hex digits of sha256 over job, partition and the part of the spec that decides answers (`JobSpec.semantic`)."""
    body = canonical_json({"job": job, "partition": partition, "spec": semantic_spec})
    return hashlib.sha256(body).hexdigest()[:16]


@dataclass(frozen=True)
class RunRef:
    """Names one run. ``generation`` counts from 1; `fresh` opens the next one, in a folder of its own."""

    job: str
    partition: str
    digest: str
    generation: int = 1

    @property
    def run_id(self) -> str:
        return self.digest if self.generation == 1 else f"{self.digest}-g{self.generation}"

    @property
    def prefix(self) -> str:
        """Object name prefix inside the bucket, without a slash at its end."""
        return f"{self.job}/{self.partition}/{self.run_id}"

    @classmethod
    def from_prefix(cls, prefix: str) -> RunRef:
        """Inverse of `prefix`. Raises ValueError for anything else."""
        match = re.fullmatch(r"([^/]+)/([^/]+)/([0-9a-f]{16})(?:-g(\d+))?", prefix.strip("/"))
        if match is None:
            raise ValueError(f"{prefix!r} is not JOB/PARTITION/RUN")
        job, partition, digest, generation = match.groups()
        return cls(job, partition, digest, int(generation or 1))

    def url(self, bucket: str) -> str:
        return f"gs://{bucket}/{self.prefix}"
