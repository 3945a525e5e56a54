"""The interface a runtime offers: submit a JobSet manifest, ask for its status, stop it, read its logs.

Two runtimes implement it: a Kubernetes cluster, and the local one (`nightshift.jobset.local`) that runs the same manifest's
pods as processes. Callers may be tested against either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Protocol

from nightshift.jobset.observation import Observation

JUDGED_ANNOTATION: Final = "nightshift.dev/judged"
"""On a finished JobSet that is kept: by which attempt its end was judged. A task that runs again starts a new one."""
Phase = Literal["Suspended", "Running", "Completed", "Failed"]


class JobSetExists(Exception):
    """A JobSet of this name is there already. Its manifest may or may not be the same: compare before adopting it."""


class JobSetNotFound(Exception):
    """There is no JobSet of this name (never submitted, or stopped)."""


class RuntimeUnavailable(Exception):
    """The runtime could not be asked. Says nothing about the JobSet: try again."""


class RequestRefused(Exception):
    """The runtime has understood the request and will not do it: a right is missing, or the manifest is none. Says why."""


@dataclass(frozen=True)
class ContainerStatus:
    """One container of one pod. exit_code is None while it runs; signal is the number that ended it, if one did."""

    name: str
    started: bool = False
    ready: bool = False
    restarts: int = 0
    exit_code: int | None = None
    signal: int | None = None


@dataclass(frozen=True)
class PodStatus:
    """One attempt at one index. ``reason`` is the DisruptionTarget reason where a disruption ended it, else ''."""

    name: str
    index: int
    attempt: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed"]
    reason: str = ""
    containers: tuple[ContainerStatus, ...] = ()


@dataclass(frozen=True)
class JobSetStatus:
    """A JobSet at one moment.

    reason, message: of the condition that made it Completed or Failed, in Kubernetes' words
        (``AllJobsCompleted``, ``FailedJobs``); message names the Job's own reason (``FailedIndexes``, ``DeadlineExceeded``).
    completed_indexes, failed_indexes: of the Indexed Job, sorted.
    annotations: those of the submitted manifest, so that an adopter can compare.
    """

    name: str
    phase: Phase
    reason: str = ""
    message: str = ""
    completed_indexes: tuple[int, ...] = ()
    failed_indexes: tuple[int, ...] = ()
    pods: tuple[PodStatus, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return self.phase in ("Completed", "Failed")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> JobSetStatus:
        """Inverse of `to_dict`, after a trip through JSON."""
        pods = tuple(
            PodStatus(**{**pod, "containers": tuple(ContainerStatus(**each) for each in pod["containers"])})
            for pod in value["pods"]
        )
        indexes = {key: tuple(value[key]) for key in ("completed_indexes", "failed_indexes")}
        return cls(**{**value, **indexes, "pods": pods})


class Runtime(Protocol):
    """Every call is synchronous, bounded in time and safe to repeat; each may raise RuntimeUnavailable, RequestRefused."""

    def submit(self, manifest: Mapping[str, Any]) -> str:
        """Creates the JobSet; its uid. Raises JobSetExists when the name is taken, be it by an earlier try of this call."""
        ...

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        """What there is to see of it now; its jobset is None where there is none of this name. closely: for a judgement."""
        ...

    def status(self, name: str) -> JobSetStatus:
        """The same in short. Raises JobSetNotFound."""
        ...

    def claim(self, name: str, uid: str, owner: str) -> None:
        """Notes who waits for the JobSet from now on. Raises JobSetNotFound when it is gone or is another one."""
        ...

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        """Notes that somebody has drawn the conclusions from its end. Raises JobSetNotFound."""
        ...

    def stop(self, name: str, uid: str = "") -> None:
        """Deletes the JobSet: SIGTERM to its pods, their grace period, then SIGKILL. Returns at once; a missing one is fine.

        uid: of the one that is meant, where a later one of the same name is to be left alone.
        """
        ...

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        """Lines a container has written so far; last: so many of them. Raises JobSetNotFound."""
        ...
