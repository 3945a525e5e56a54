"""The machines of Google Cloud that a worker can run on, from its documentation.

GPUs: "GPU machine types" and "Accelerator-optimized machine family" of Compute Engine. TPUs: "Plan TPUs in GKE". Numbers that
are our guesses are marked as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Machine:
    """One machine type. accelerators: GPUs or TPU chips of a machine. memory: GB."""

    name: str
    accelerators: int
    cpus: int
    memory: int


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    label: the value of ``cloud.google.com/gke-accelerator``. memory: of one GPU, GB. machines: from small to large.
    rare: machines available only as Spot and flex-start. spans_hosts: the network between its machines is fast enough to
    spread one model over them. rows_per_second: a guess for a small model on one GPU, short rows.
    """

    label: str
    memory: int
    machines: tuple[Machine, ...]
    rows_per_second: float
    rare: tuple[str, ...] = ()
    spans_hosts: bool = False


@dataclass(frozen=True)
class Slice:
    """A topology of TPU chips: hosts x the machine's accelerators."""

    machine: Machine
    hosts: int


@dataclass(frozen=True)
class Tpu:
    """One generation of TPU.

    label: the value of ``cloud.google.com/gke-tpu-accelerator``. memory: of one chip, GB. slices: by topology.
    """

    label: str
    memory: int
    slices: dict[str, Slice]
    default: str
    rows_per_second: float


GPUS: Final[dict[str, Gpu]] = {
    "l4": Gpu(
        "nvidia-l4",
        24,
        (
            Machine("g2-standard-8", 1, 8, 32),
            Machine("g2-standard-24", 2, 24, 96),
            Machine("g2-standard-48", 4, 48, 192),
            Machine("g2-standard-96", 8, 96, 384),
        ),
        rows_per_second=400.0,
    ),
    "a100": Gpu(
        "nvidia-tesla-a100",
        40,
        (
            Machine("a2-highgpu-1g", 1, 12, 85),
            Machine("a2-highgpu-2g", 2, 24, 170),
            Machine("a2-highgpu-4g", 4, 48, 340),
            Machine("a2-highgpu-8g", 8, 96, 680),
        ),
        rows_per_second=1200.0,
    ),
    "a100-80gb": Gpu(
        "nvidia-a100-80gb",
        80,
        (
            Machine("a2-ultragpu-1g", 1, 12, 170),
            Machine("a2-ultragpu-2g", 2, 24, 340),
            Machine("a2-ultragpu-4g", 4, 48, 680),
            Machine("a2-ultragpu-8g", 8, 96, 1360),
        ),
        rows_per_second=1400.0,
    ),
    "h100": Gpu(
        "nvidia-h100-80gb",
        80,
        (
            Machine("a3-highgpu-1g", 1, 26, 234),
            Machine("a3-highgpu-2g", 2, 52, 468),
            Machine("a3-highgpu-4g", 4, 104, 936),
            Machine("a3-highgpu-8g", 8, 208, 1872),
        ),
        rows_per_second=2500.0,
        rare=("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"),
        spans_hosts=True,
    ),
    "h200": Gpu(
        "nvidia-h200-141gb",
        141,
        (Machine("a3-ultragpu-8g", 8, 224, 2952),),
        rows_per_second=3000.0,
        spans_hosts=True,
    ),
    "b200": Gpu(
        "nvidia-b200",
        180,
        (Machine("a4-highgpu-8g", 8, 224, 3968),),
        rows_per_second=5000.0,
        spans_hosts=True,
    ),
}


def _slices(one: Machine, four: Machine, eight: Machine) -> dict[str, Slice]:
    """v5e and v6e have the same topologies: up to 8 chips on one host, then hosts of 4."""
    return {
        "1x1": Slice(one, 1),
        "2x2": Slice(four, 1),
        "2x4": Slice(eight, 1),
        "4x4": Slice(four, 4),
        "4x8": Slice(four, 8),
        "8x8": Slice(four, 16),
        "8x16": Slice(four, 32),
        "16x16": Slice(four, 64),
    }


TPUS: Final[dict[str, Tpu]] = {
    "v5e": Tpu(
        "tpu-v5-lite-podslice",
        16,
        _slices(
            Machine("ct5lp-hightpu-1t", 1, 24, 48),
            Machine("ct5lp-hightpu-4t", 4, 112, 192),
            Machine("ct5lp-hightpu-8t", 8, 224, 384),
        ),
        default="2x2",
        rows_per_second=1000.0,
    ),
    "v6e": Tpu(
        "tpu-v6e-slice",
        32,
        _slices(
            Machine("ct6e-standard-1t", 1, 44, 176),
            Machine("ct6e-standard-4t", 4, 180, 720),
            Machine("ct6e-standard-8t", 8, 180, 1440),
        ),
        default="2x2",
        rows_per_second=2000.0,
    ),
}
