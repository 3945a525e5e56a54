"""What the agent remembers of a JobSet, and its form in status.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from local.runtime.policy import Attempt, Ending, Outcome
from nightshift.jobset.runtime import ContainerStatus, PodStatus


@dataclass
class PodRecord:
    """One pod, from the decision to make it.

    attempt: counts from 1 for each index. bound: it got its place on the node, so processes of it may exist.
    reason: of the condition DisruptionTarget; '' without one. ended_at: seconds since the epoch; 0 while it lives.
    failures, ignored: counted and ignored failures of its index before it.
    """

    name: str
    index: int
    attempt: int
    failures: int = 0
    ignored: int = 0
    phase: Literal["Pending", "Running", "Succeeded", "Failed"] = "Pending"
    bound: bool = False
    reason: str = ""
    containers: tuple[ContainerStatus, ...] = ()
    outcome: Outcome = ""
    message: str = ""
    ended_at: float = 0.0

    def view(self) -> Attempt:
        return Attempt(self.index, self.outcome, self.ended_at, self.message)

    def status(self) -> PodStatus:
        return PodStatus(self.name, self.index, self.attempt, self.phase, self.reason, self.containers)


@dataclass
class JobSetRecord:
    """started_at, finished_at: seconds since the epoch, 0 for not yet. ending: set once the Job's end is decided, while its
    last pods still terminate."""

    started_at: float = 0.0
    finished_at: float = 0.0
    ending: Ending | None = None
    pods: list[PodRecord] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> JobSetRecord:
        pods = [PodRecord(**{**pod, "containers": _containers(pod["containers"])}) for pod in value["pods"]]
        ending = Ending(**value["ending"]) if value["ending"] else None
        return cls(value["started_at"], value["finished_at"], ending, pods)


def _containers(values: Any) -> tuple[ContainerStatus, ...]:
    return tuple(ContainerStatus(**value) for value in values)
