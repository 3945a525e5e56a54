"""The machines of Google Cloud that a worker can run on, from its documentation.

Machines: "GPU machine types" and "Accelerator-optimized machine family" of Compute Engine; "Plan TPUs in GKE". Speeds are peaks
of the vendors' data sheets, cited beside each (NVIDIA's as other pages quote them). They are dense: half of the rates that a
sheet has for sparse matrices. What a model reaches of them is `nightshift.planner.roofline`'s matter.
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
class Peak:
    """What one accelerator can do at most. Rates in 10^12 floating point operations a second, memory bandwidth in GB/s.

    fp8: 0 if it has no such arithmetic. linked: NVLink or ICI joins the accelerators of a machine; else PCIe does.
    """

    bf16: float
    fp32: float
    bandwidth: float
    fp8: float = 0.0
    linked: bool = True


CPU_PEAK: Final = Peak(bf16=0.08, fp32=0.08, bandwidth=5.0)
"""Of one vCPU, an assumption: half of a core with AVX-512 at 2.5 GHz, which multiplies and adds 32 numbers a cycle, and its
share of the memory bandwidth of a server (300 GB/s for 60 vCPUs)."""


@dataclass(frozen=True)
class Nodes:
    """How pods ask for nodes of a deployment's own kind. resource: of the accelerator. selector: labels. tolerations: each as
    pairs. price: of a machine for an hour; None if unknown."""

    resource: str
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[tuple[str, str], ...], ...] = ()
    price: float | None = None


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    label: the value of ``cloud.google.com/gke-accelerator``. memory: of one GPU, GB. machines: from small to large.
    rare: machines available only as Spot and flex-start. on_demand: whether it is sold on demand at all. spans_hosts: the
    network between its machines is fast enough to spread one model over them. hyperdisk: its machines boot from Hyperdisk
    Balanced, and from no Persistent Disk. nodes: of a kind that the deployment has defined; then label is the profile's name.
    """

    label: str
    memory: int
    machines: tuple[Machine, ...]
    peak: Peak
    rare: tuple[str, ...] = ()
    on_demand: bool = True
    spans_hosts: bool = False
    hyperdisk: bool = False
    nodes: Nodes | None = None


@dataclass(frozen=True)
class Slice:
    """A topology of TPU chips: hosts x the machine's accelerators."""

    machine: Machine
    hosts: int


@dataclass(frozen=True)
class Tpu:
    """One generation of TPU.

    label: the value of ``cloud.google.com/gke-tpu-accelerator``. memory: of one chip, GB. slices: by topology. hyperdisk: as
    a GPU's.
    """

    label: str
    memory: int
    slices: dict[str, Slice]
    default: str
    peak: Peak
    hyperdisk: bool = False


def _sizes(family: str, cpus: int, memory: int) -> tuple[Machine, ...]:
    """cpus, memory: for each GPU."""
    return tuple(Machine(f"{family}-{count}g", count, count * cpus, count * memory) for count in (1, 2, 4, 8))


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
        # NVIDIA L4 data sheet: with sparsity 242 bf16 and 485 fp8 (https://www.nvidia.com/en-us/data-center/l4/).
        peak=Peak(bf16=121, fp32=30.3, fp8=242, bandwidth=300, linked=False),
    ),
    "rtx-pro-6000": Gpu(
        "nvidia-rtx-pro-6000",
        96,
        (
            Machine("g4-standard-48", 1, 48, 180),
            Machine("g4-standard-96", 2, 96, 360),
            Machine("g4-standard-192", 4, 192, 720),
            Machine("g4-standard-384", 8, 384, 1440),
        ),
        # NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet of December 2025: 96 GB at 1,597 GB/s, 120 fp32. It leaves out
        # dense bf16 and fp8; on this chip (GB202) they are 4 and 8 times fp32, as the Workstation Edition's 503.8 of 126 shows.
        peak=Peak(bf16=480, fp32=120, fp8=960, bandwidth=1597, linked=False),
        hyperdisk=True,
    ),
    "a100": Gpu(
        "nvidia-tesla-a100",
        40,
        _sizes("a2-highgpu", cpus=12, memory=85),
        # NVIDIA A100 data sheet, SXM: 40 GB has 1,555 GB/s, 80 GB has 2,039 (nvidia-a100-datasheet-us-nvidia-1758950).
        peak=Peak(bf16=312, fp32=19.5, bandwidth=1555),
    ),
    "a100-80gb": Gpu(
        "nvidia-a100-80gb",
        80,
        _sizes("a2-ultragpu", cpus=12, memory=170),
        # The same sheet.
        peak=Peak(bf16=312, fp32=19.5, bandwidth=2039),
    ),
    "h100": Gpu(
        "nvidia-h100-80gb",
        80,
        _sizes("a3-highgpu", cpus=26, memory=234),
        # NVIDIA H100 data sheet, SXM: with sparsity 1,979 bf16 and 3,958 fp8 (https://www.nvidia.com/en-us/data-center/h100/).
        peak=Peak(bf16=989, fp32=67, fp8=1979, bandwidth=3350),
        rare=("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g"),
        spans_hosts=True,
    ),
    "h100-mega": Gpu(
        "nvidia-h100-mega-80gb",
        80,
        (Machine("a3-megagpu-8g", 8, 208, 1872),),
        # The same GPU, with a faster network between machines.
        peak=Peak(bf16=989, fp32=67, fp8=1979, bandwidth=3350),
        spans_hosts=True,
    ),
    # H200 and B200: "Consumption options" of AI Hypercomputer has reservations, flex-start and Spot for them, and nothing else.
    "h200": Gpu(
        "nvidia-h200-141gb",
        141,
        (Machine("a3-ultragpu-8g", 8, 224, 2952),),
        # NVIDIA H200 data sheet, SXM (https://www.nvidia.com/en-us/data-center/h200/).
        peak=Peak(bf16=989, fp32=67, fp8=1979, bandwidth=4800),
        on_demand=False,
        spans_hosts=True,
        hyperdisk=True,
    ),
    "b200": Gpu(
        "nvidia-b200",
        180,
        (Machine("a4-highgpu-8g", 8, 224, 3968),),
        # NVIDIA Blackwell data sheet, HGX B200: 180 GB at 7.7 TB/s (earlier editions: 192 GB, 8 TB/s, 80 fp32); with sparsity
        # 4,500 bf16 and 9,000 fp8. Drivers say the same of the memory: 7,680 bits wide (github.com/pytorch/ao, pull 4002).
        peak=Peak(bf16=2250, fp32=75, fp8=4500, bandwidth=7700),
        on_demand=False,
        spans_hosts=True,
        hyperdisk=True,
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


# A TPU multiplies bf16 numbers; of float32, XLA makes six such products ("highest" precision of jax.lax.Precision).
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
        # https://docs.cloud.google.com/tpu/docs/v5e: 819 GB/s; some editions of the page say 800 GiB/s.
        peak=Peak(bf16=197, fp32=197 / 6, bandwidth=819),
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
        # https://docs.cloud.google.com/tpu/docs/v6e
        peak=Peak(bf16=918, fp32=918 / 6, bandwidth=1638),
        hyperdisk=True,
    ),
}
