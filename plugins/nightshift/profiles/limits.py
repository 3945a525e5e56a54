"""What bounds the workers of a run from outside: the deployment's limit, and the quota of the job's queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Limits:
    """workers_max: the deployment's, 0 for none; it does not bind a job that states its workers. quota: accelerators that the
    queue gives at once (workers, for profiles without one) to the job's own profile; None if unknown, or without a limit.
    quotas: the same of every profile, by name, if Kueue was asked; empty if not.
    """

    workers_max: int = 0
    quota: int | None = None
    quotas: Mapping[str, int | None] = field(default_factory=dict)

    def of(self, profile: str) -> Limits:
        """Those of another profile. What the user stated of a quota is then all that is known."""
        return replace(self, quota=self.quotas.get(profile)) if self.quotas else self
