"""A node pool, as the scheduler will see its nodes: their labels, taints and accelerators, and how many there may be. Pure.

Fields: GKE API v1, ``NodePool``. Which labels GKE gives a node: "Run GPUs in Standard node pools", "Spot VMs", "About
flex-start", "Plan TPUs in GKE", "Consume reservations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.fields.text import n
from nightshift.profiles import Provisioning, WorkerShape
from nightshift.profiles.hardware import Tpu

WELL: Final = ("RUNNING", "RECONCILING", "RUNNING_WITH_ERROR")
_TPU_MACHINES: Final = ("ct", "tpu")
"""How the names of machines with TPUs begin."""
_EFFECTS: Final = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
"""The API's names of taints that keep pods off, and Kubernetes'."""


@dataclass(frozen=True)
class Pool:
    """document: of the API. zones: of the cluster, which a pool without its own has."""

    document: Mapping[str, Any]
    zones: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.document.get("config", {})
        return config

    @property
    def locations(self) -> tuple[str, ...]:
        return tuple(self.document.get("locations", ())) or self.zones

    @property
    def most(self) -> int:
        """The most nodes that it may have."""
        scaling = self.document.get("autoscaling", {})
        if not scaling.get("enabled"):
            return int(self.document.get("initialNodeCount", 0)) * len(self.locations)
        return int(scaling.get("totalMaxNodeCount", 0)) or int(scaling.get("maxNodeCount", 0)) * len(self.locations)

    @property
    def least(self) -> int:
        """The nodes that it has even without work."""
        scaling = self.document.get("autoscaling", {})
        if not scaling.get("enabled"):
            return self.most
        return int(scaling.get("totalMinNodeCount", 0)) or int(scaling.get("minNodeCount", 0)) * len(self.locations)

    @property
    def bought(self) -> Provisioning:
        """How its machines are bought, whatever the pods' profile says: pods on demand may run on Spot nodes, too."""
        if self.config.get("spot"):
            return Provisioning.SPOT
        if self.config.get("flexStart"):
            return Provisioning.FLEX_START
        specific = self.config.get("reservationAffinity", {}).get("consumeReservationType") == "SPECIFIC_RESERVATION"
        return Provisioning.RESERVATION if specific else Provisioning.ON_DEMAND

    @property
    def labels(self) -> dict[str, str]:
        config, found = self.config, dict(self.config.get("labels", {}))
        if self.bought is Provisioning.SPOT:
            found["cloud.google.com/gke-spot"] = "true"
        if self.bought is Provisioning.FLEX_START:
            found["cloud.google.com/gke-flex-start"] = "true"
        for each in config.get("accelerators", ()):
            found["cloud.google.com/gke-accelerator"] = each["acceleratorType"]
        topology = self.document.get("placementPolicy", {}).get("tpuTopology")
        if topology:
            found["cloud.google.com/gke-tpu-topology"] = topology
        if self.bought is Provisioning.RESERVATION:
            owner, _, name = str(config["reservationAffinity"]["values"][0]).rpartition("/reservations/")
            found["cloud.google.com/reservation-name"] = name or owner
            found["cloud.google.com/reservation-affinity"] = "specific"
            if name:
                found["cloud.google.com/reservation-project"] = owner.rpartition("/")[2]
        return found

    @property
    def gpus(self) -> int:
        """Of each node."""
        return sum(int(each["acceleratorCount"]) for each in self.config.get("accelerators", ()))


@dataclass(frozen=True)
class Placement:
    """Which nodes a worker's pods ask for. selector, tolerations: of the pods."""

    worker: WorkerShape
    selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...] = ()


def misfit(pool: Pool, of: Placement) -> str:
    """Why no host of the worker can ever run in the pool; '' if one can."""
    return _wrong_nodes(pool, of) or _unusable(pool, of)


def _wrong_nodes(pool: Pool, of: Placement) -> str:
    worker = of.worker
    machine = pool.config.get("machineType", "")
    hardware = worker.profile.hardware
    wanted, labels = of.selector, pool.labels
    if isinstance(hardware, Tpu) and worker.machine:
        if machine != worker.machine.name:
            return f"its machine is {machine}, not {worker.machine.name}"
        # GKE knows both of a TPU's machine; a pool of one host has no topology of its own.
        labels["cloud.google.com/gke-tpu-accelerator"] = hardware.label
        if worker.hosts == 1:
            labels.setdefault("cloud.google.com/gke-tpu-topology", str(worker.topology))
    elif worker.machine and pool.gpus < worker.accelerators:
        return f"its nodes have {n(pool.gpus, 'GPU')}, and a worker takes {worker.accelerators}"
    for key, value in wanted.items():
        if labels.get(key) != value:
            return f"its nodes have not the label {key}={value}"
    if not wanted and (pool.gpus or machine.startswith(_TPU_MACHINES)):
        # GKE taints them ("Run GPUs in Standard node pools", "Deploy TPU workloads").
        return "its nodes are kept for accelerators"
    return ""


def _unusable(pool: Pool, of: Placement) -> str:
    for taint in pool.config.get("taints", ()):
        if taint["effect"] in _EFFECTS and not _tolerated(taint, of.tolerations):
            return f"the worker does not tolerate its taint {taint['key']}={taint['value']}"
    if pool.document.get("status") not in WELL:
        return f"it is {pool.document.get('status', 'in no known state')}"
    if any(
        each.get("gpuDriverInstallationConfig", {}).get("gpuDriverVersion") == "INSTALLATION_DISABLED" for each in _gpus(pool)
    ):
        return "its nodes get no GPU driver (gpu-driver-version=disabled)"
    if pool.most < of.worker.hosts:
        return f"it may have {n(pool.most, 'node')} at most, and a worker takes {of.worker.hosts}"
    return ""


def room(pool: Pool, worker: WorkerShape) -> int:
    """How many such workers fit into the pool at once; of a worker with an accelerator."""
    each = pool.gpus // worker.accelerators if pool.gpus and worker.hosts == 1 else 1
    return pool.most // worker.hosts * each


def _gpus(pool: Pool) -> list[Mapping[str, Any]]:
    return list(pool.config.get("accelerators", ()))


def _tolerated(taint: Mapping[str, Any], tolerations: tuple[Mapping[str, str], ...]) -> bool:
    effect = _EFFECTS[taint["effect"]]
    return any(
        each.get("key", taint["key"]) == taint["key"]
        and each.get("effect", effect) == effect
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )
