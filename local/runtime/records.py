"""What the agent remembers about a JobSet, and its form in status.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from local.runtime.policy import JobEnd, JobPod, Ruling

Containers = dict[str, list[dict[str, Any]]]
"""``initContainerStatuses`` and ``containerStatuses`` of a pod, as a kubelet writes them; {} before its first container."""


@dataclass
class PodRecord:
    """One pod, from the decision to make it. Times are seconds since the epoch, 0 for not yet.

    attempt: counts from 1 for each index. bound: it has a place on the node, so processes of it may exist.
    reason: of the condition DisruptionTarget, if any; otherwise ''. deleted_at: when its Job began to end it.
    failures, ignored: counted and ignored failures of its index before it.
    """

    name: str
    index: int
    attempt: int
    created_at: float
    failures: int = 0
    ignored: int = 0
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Pending"
    bound: bool = False
    reason: str = ""
    disrupted_at: float = 0.0
    deleted_at: float = 0.0
    containers: Containers = field(default_factory=dict)
    ruling: Ruling = ""
    message: str = ""
    ended_at: float = 0.0

    def view(self) -> JobPod:
        return JobPod(self.index, self.ruling, self.ended_at, self.message)

    def disrupt(self, reason: str, now: float) -> None:
        """The first reason counts."""
        if not self.reason:
            self.reason, self.disrupted_at = reason, now


@dataclass
class JobSetRecord:
    """Times are seconds since the epoch, 0 for not yet. end: set once the Job's end is decided, at ``decided_at``, while its
    last pods still terminate."""

    started_at: float = 0.0
    decided_at: float = 0.0
    finished_at: float = 0.0
    end: JobEnd | None = None
    pods: list[PodRecord] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> JobSetRecord:
        """Inverse of `to_dict`, after a trip through JSON."""
        end = JobEnd(**value["end"]) if value["end"] else None
        return cls(**{**value, "end": end, "pods": [PodRecord(**pod) for pod in value["pods"]]})
