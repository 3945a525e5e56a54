"""What Airflow's account does in its namespace of a cluster: each verb that operators, triggers and links call. Pure.

`k8s/base/airflow.yaml` grants exactly these (`tests/unit/jobset/test_rbac.py`), and `tests/cluster/test_airflow_rights.py`
compares them with every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nightshift.jobset.labels import JOBSET_API_VERSION, KUEUE_API_VERSION


@dataclass(frozen=True)
class Right:
    """One verb on one resource, as RBAC names them. group: '' for the core API. subresource: '' for none."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        where = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {where}{f'/{self.subresource}' if self.subresource else ''}"


def _group(api_version: str) -> str:
    return api_version.partition("/")[0]


_VERBS: Final[Mapping[tuple[str, str, str], tuple[str, ...]]] = {
    (_group(JOBSET_API_VERSION), "jobsets", ""): ("create", "get", "list", "watch", "patch", "delete"),
    ("batch", "jobs", ""): ("list",),
    ("", "pods", ""): ("list", "watch"),
    ("", "pods", "log"): ("get",),
    ("", "events", ""): ("list",),
    (_group(KUEUE_API_VERSION), "workloads", ""): ("list", "patch"),
}
RIGHTS: Final = tuple(Right(verb, *resource) for resource, verbs in _VERBS.items() for verb in verbs)
