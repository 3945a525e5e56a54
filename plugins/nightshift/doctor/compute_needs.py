"""Which quotas of Compute Engine the nodes of a profile count against, and how much of each. Pure.

Metrics of a region: ``Quota.Metric`` of the Compute Engine API v1. Newer accelerators have none there: only the Cloud Quotas
API knows their quotas, by family. Spot and flex-start count against the preemptible quotas ("Preemptible quotas for resources",
"About flex-start").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nightshift.doctor.node_pool import Pool
from nightshift.profiles import Provisioning, WorkerShape
from nightshift.profiles.hardware import Gpu

_GPUS: Final = {
    "nvidia-l4": "NVIDIA_L4",
    "nvidia-tesla-a100": "NVIDIA_A100",
    "nvidia-a100-80gb": "NVIDIA_A100_80GB",
    "nvidia-h100-80gb": "NVIDIA_H100",
    "nvidia-h100-mega-80gb": "NVIDIA_H100_MEGA",
    "nvidia-h200-141gb": "NVIDIA_H200",
    "nvidia-b200": "NVIDIA_B200",
    "nvidia-rtx-pro-6000": "NVIDIA_RTX_PRO_6000",
}
"""How quotas call a GPU, by GKE's label."""
_OWN_METRIC: Final = ("NVIDIA_L4", "NVIDIA_A100", "NVIDIA_A100_80GB")
"""GPUs whose machines on demand count against a metric of their own; the others against one for all families."""
_DISKS: Final = {"pd-standard": "DISKS_TOTAL_GB", "pd-balanced": "SSD_TOTAL_GB", "pd-ssd": "SSD_TOTAL_GB"}
_HYPERDISK: Final = "HDB_TOTAL_GB"
_CPUS: Final = {"a2": "A2_CPUS", "g2": "CPUS", "e2": "CPUS", "n1": "CPUS"}
"""By family of machines. What CPUs of others count against, Google's pages do not say."""
_PREEMPTIBLE: Final = (Provisioning.SPOT, Provisioning.FLEX_START)


@dataclass(frozen=True)
class Metric:
    """A quota. family: (dimension, value) of one that has a limit for each family. everywhere: it is not of one region."""

    name: str
    family: tuple[str, str] | None = None
    everywhere: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {self.family[1]}" if self.family else self.name

    @property
    def quota_id(self) -> str:
        """As the Cloud Quotas API calls it."""
        return f"{self.name.replace('_', '-')}-per-project{'' if self.everywhere else '-region'}"


@dataclass(frozen=True)
class Need:
    """amount: in the metric's unit (accelerators, CPUs, addresses, GB). any_of: metrics one of which has to have it."""

    any_of: tuple[Metric, ...]
    amount: int


@dataclass(frozen=True)
class Machines:
    """The nodes of a profile. pool: None if a ComputeClass makes them. disk_gb: of a node; 0 if not known."""

    worker: WorkerShape
    pool: Pool | None = None
    disk_gb: int = 0
    disk_type: str = ""


def needs(of: Machines, workers: int, *, public: bool) -> Iterator[Need]:
    """What so many workers need. public: whether each node has an address that the Internet sees."""
    worker = of.worker
    machine = worker.machine
    if machine is None:
        return
    count = math.ceil(workers * worker.hosts * worker.accelerators / machine.accelerators)
    bought = of.pool.bought if of.pool else worker.profile.provisioning
    ways = (Provisioning.SPOT, Provisioning.ON_DEMAND) if bought is Provisioning.ANY else (bought,)
    known = not worker.own_nodes  # Which quota a deployment's own kind of node counts against is its own business.
    if known and bought in (*_PREEMPTIBLE, Provisioning.ANY, Provisioning.ON_DEMAND):  # A reservation counted when it was made.
        yield Need(tuple(_accelerator(worker, way in _PREEMPTIBLE) for way in ways), count * machine.accelerators)
        if isinstance(worker.profile.hardware, Gpu):
            yield Need((Metric("GPUS_ALL_REGIONS", everywhere=True),), count * machine.accelerators)
        if cpus := _CPUS.get(machine.name.partition("-")[0]):
            preemptible = (Metric("PREEMPTIBLE_CPUS"),) if bought is not Provisioning.ON_DEMAND else ()
            yield Need((*preemptible, Metric(cpus)), count * machine.cpus)
    if public:
        yield Need((Metric("IN_USE_ADDRESSES"),), count)
    if of.disk_gb and of.disk_type:
        yield Need((Metric(_DISKS.get(of.disk_type, _HYPERDISK)),), count * of.disk_gb)


def _accelerator(worker: WorkerShape, preemptible: bool) -> Metric:
    hardware = worker.profile.hardware
    if isinstance(hardware, Gpu):
        name = _GPUS[hardware.label]
        if preemptible:
            return Metric(f"PREEMPTIBLE_{name}_GPUS")
        return Metric(f"{name}_GPUS") if name in _OWN_METRIC else Metric("GPUS_PER_GPU_FAMILY", ("gpu_family", name))
    if hardware and hardware.label == "tpu-v5-lite-podslice":
        return Metric(f"{'PREEMPTIBLE_' if preemptible else ''}TPU_LITE_PODSLICE_V5")
    return Metric("PREEMPTIBLE_TPU_V6E") if preemptible else Metric("TPUS_PER_TPU_FAMILY", ("tpu_family", "CT6E"))
