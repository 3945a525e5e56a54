"""Whether something is a JobSet manifest at all: what the client can check without the agent. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from nightshift.jobset.labels import JOBSET_API_VERSION
from nightshift.jobset.runtime import RequestRefused

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_MAX: Final = 63
_NUMBERS: Final = ("completions", "parallelism", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes")


def is_dns_label(text: str) -> bool:
    return len(text) <= LABEL_MAX and bool(_DNS_LABEL.fullmatch(text))


def must_be_a_jobset(manifest: Mapping[str, Any]) -> None:
    """Raises RequestRefused; the message begins with the field's path, as an API server's does for a broken schema."""
    for key, wanted in (("apiVersion", JOBSET_API_VERSION), ("kind", "JobSet")):
        if manifest.get(key) != wanted:
            raise RequestRefused(f"{key}: {manifest.get(key)!r}; write {wanted}")
    name = _mapping(manifest, "metadata", "").get("name")
    if not isinstance(name, str) or not is_dns_label(name):
        raise RequestRefused(
            f"metadata.name: {name!r} is not a DNS label (a-z, 0-9 and dashes, at most {LABEL_MAX} characters)"
        )
    replicated = _mapping(manifest, "spec", "").get("replicatedJobs")
    if not isinstance(replicated, list) or not replicated:
        raise RequestRefused("spec.replicatedJobs: write a list with at least one item")
    for number, each in enumerate(replicated):
        path = f"spec.replicatedJobs[{number}]"
        if not isinstance(each, Mapping):
            raise RequestRefused(f"{path}: not a mapping")
        _must_be_a_job(_mapping(_mapping(each, "template", path), "spec", f"{path}.template"), f"{path}.template.spec")


def _must_be_a_job(job: Mapping[str, Any], path: str) -> None:
    for key in _NUMBERS:
        value = job.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise RequestRefused(f"{path}.{key}: {value!r} is not a number")
    pod = _mapping(_mapping(job, "template", path), "spec", f"{path}.template")
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        raise RequestRefused(f"{path}.template.spec.containers: write a list with at least one item")


def _mapping(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    value = parent.get(key)
    if not isinstance(value, Mapping):
        where = f"{path}.{key}" if path else key
        raise RequestRefused(f"{where}: {'missing' if value is None else 'not a mapping'}")
    return value
