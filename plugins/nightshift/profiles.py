"""Compute profiles: what a worker asks of the cluster, by the name a job uses.

``rows_per_second`` is only the planner's first guess for a small model and short rows; a job states its own in
``compute.rows_per_worker_per_second``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GPU_TAINT: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
SPOT_TAINT: Final = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}


@dataclass(frozen=True)
class Profile:
    """One kind of worker: the server container's resources and where its pod may run.

    rows_per_second: first estimate of one worker's speed. resources: requests, equal to limits for extended resources.
    """

    rows_per_second: float
    requests: dict[str, str]
    limits: dict[str, str] = field(default_factory=dict)
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ()


def _gpu(accelerator: str, cpu: str, memory: str, rows_per_second: float, *, spot: bool) -> Profile:
    selector = {"cloud.google.com/gke-accelerator": accelerator}
    if spot:
        selector["cloud.google.com/gke-spot"] = "true"
    return Profile(
        rows_per_second,
        requests={"cpu": cpu, "memory": memory, "nvidia.com/gpu": "1"},
        limits={"memory": memory, "nvidia.com/gpu": "1"},
        node_selector=selector,
        tolerations=(GPU_TAINT, SPOT_TAINT) if spot else (GPU_TAINT,),
    )


PROFILES: Final[dict[str, Profile]] = {
    "cpu": Profile(20.0, requests={"cpu": "1", "memory": "4Gi"}, limits={"memory": "8Gi"}),
    "gpu-l4": _gpu("nvidia-l4", "7", "28Gi", 400.0, spot=False),
    "gpu-l4-spot": _gpu("nvidia-l4", "7", "28Gi", 400.0, spot=True),
    "gpu-a100-spot": _gpu("nvidia-tesla-a100", "11", "80Gi", 1200.0, spot=True),
    "gpu-h100-spot": _gpu("nvidia-h100-80gb", "24", "200Gi", 2500.0, spot=True),
}


def profile_of(name: str) -> Profile:
    """Raises ValueError naming the profiles there are."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no compute profile {name!r}; there are {', '.join(PROFILES)}") from None
