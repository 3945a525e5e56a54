"""The interface a runtime offers: submit a JobSet manifest, ask for its status, stop it, read its logs.

Two runtimes implement it: a Kubernetes cluster, and the local one (`nightshift.jobset.local`) that runs the same manifest's
pods as processes. Callers may be tested against either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

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


class Runtime(Protocol):
    """Every call is synchronous, bounded in time and safe to repeat."""

    def submit(self, manifest: dict[str, Any]) -> None:
        """Creates the JobSet. Raises JobSetExists when the name is taken, RuntimeUnavailable when it cannot be asked."""
        ...

    def status(self, name: str) -> JobSetStatus:
        """Raises JobSetNotFound, RuntimeUnavailable."""
        ...

    def stop(self, name: str) -> None:
        """Deletes the JobSet: SIGTERM to its pods, their grace period, then SIGKILL. Returns at once; a missing one is fine."""
        ...

    def logs(self, name: str, pod: str, container: str) -> Iterator[str]:
        """Lines a container has written so far, all its restarts included. Raises JobSetNotFound."""
        ...
