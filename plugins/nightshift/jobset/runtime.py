"""The interface a runtime offers: submit a JobSet manifest, observe it, stop it, read its logs.

`nightshift.jobset.kubernetes.runtime` implements it for every cluster, and for the local runtime, which serves the same API and
runs the pods as processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from nightshift.jobset.observation import Observation


class JobSetExists(Exception):
    """A JobSet of this name already exists. Its manifest may or may not be the same: compare before adopting it."""


class JobSetNotFound(Exception):
    """No JobSet has this name: it was never submitted, or it was stopped."""


class RuntimeUnavailable(Exception):
    """The runtime did not answer. The JobSet's state is unknown: try again."""


class RequestRefused(Exception):
    """The runtime refuses the request: a right is missing, or the manifest is not valid. The message says which."""


class Runtime(Protocol):
    """Every call is synchronous, bounded in time and safe to repeat; each may raise RuntimeUnavailable, RequestRefused."""

    def submit(self, manifest: Mapping[str, Any]) -> str:
        """Creates the JobSet; its uid. Raises JobSetExists when the name is taken, be it by an earlier try of this call."""
        ...

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        """All that can be seen of it now; ``jobset`` is None when no JobSet has this name. closely: for a judgement."""
        ...

    def claim(self, name: str, uid: str, owner: str) -> None:
        """Notes who waits for the JobSet from now on. Raises JobSetNotFound when it is gone or is another one."""
        ...

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        """Notes that an attempt has judged its end. Raises JobSetNotFound."""
        ...

    def stop(self, name: str, uid: str = "") -> None:
        """Deletes the JobSet: SIGTERM to its pods, their grace period, then SIGKILL. Returns at once; a missing one is fine.

        uid: of the one that is meant, so that a later one of the same name is left alone.
        """
        ...

    def jobsets(self, run_id: str) -> list[dict[str, Any]]:
        """Those with the label of this run."""
        ...

    def pause(self, name: str, note: str) -> None:
        """Its pods get SIGTERM and drain; finished indexes stay. note: who and when, kept on it. Raises JobSetNotFound."""
        ...

    def resume(self, name: str) -> None:
        """Starts the pods that are missing. Raises JobSetNotFound."""
        ...

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        """Lines that a container has written so far; last: only this many of the last ones. Raises JobSetNotFound."""
        ...
