"""One worker as a cluster sees it: how many hosts, with which resources, on which nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nightshift.profiles.catalog import Profile, Provisioning, is_sold
from nightshift.profiles.hardware import Gpu, Machine, Nodes, Tpu

SHARE: Final = 0.75
"""Share of a machine's CPUs and memory that the server requests: the rest is for the node, its daemons and the driver."""
CPU_MEMORY_GIB: Final = 8
"""The most memory that a worker without an accelerator may use."""
CPU_KV_CACHE_GIB: Final = 2
"""Of it, what an engine may use for its KV cache; the rest is for weights, activations and /dev/shm."""
CLASS_PREFIX: Final = "nightshift-"
"""Prefix of the ComputeClasses in k8s/components/compute-classes."""

_CLASS: Final = "cloud.google.com/compute-class"
"""The label and the taint of a ComputeClass's nodes."""
_SPOT_TAINT: Final = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
_BOUGHT: Final[dict[Provisioning, dict[str, str]]] = {
    Provisioning.ON_DEMAND: {},
    Provisioning.RESERVATION: {},
    Provisioning.SPOT: {"cloud.google.com/gke-spot": "true"},
    Provisioning.FLEX_START: {"cloud.google.com/gke-flex-start": "true"},
    Provisioning.ANY: {},
}


@dataclass(frozen=True)
class WorkerShape:
    """A profile with everything decided: one engine, on one host or on several; or several engines that share one host.

    machine: the smallest that fits one of its hosts; None without an accelerator. accelerators: on each host, or 0.
    Invariants: hosts x accelerators = tensor_parallel x pipeline_parallel, if there are accelerators; if there are several
    engines, all of that is 1, or they have no accelerator.
    """

    profile: Profile
    machine: Machine | None = None
    hosts: int = 1
    accelerators: int = 0
    topology: str | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    engines: int = 1

    @property
    def price_name(self) -> str:
        """What a list of prices calls its machine and how that is bought: ``g2-standard-8-spot``; "cpu" without a machine.

        A machine whose way of buying the cluster chooses is priced as the last that it tries: that is the most it may cost.
        """
        provisioning, hardware = self.profile.provisioning, self.profile.hardware
        if provisioning is Provisioning.ANY:
            provisioning = Provisioning.ON_DEMAND if is_sold(hardware, Provisioning.ON_DEMAND) else Provisioning.FLEX_START
        return f"{self.paid.name}{provisioning}" if self.paid else "cpu"

    @property
    def paid(self) -> Machine | None:
        """The machine that costs are of: its own; of a way that the cluster chooses, the one that it may get on demand."""
        hardware = self.profile.hardware
        if self.profile.provisioning is not Provisioning.ANY or not isinstance(hardware, Gpu) or not hardware.on_demand:
            return self.machine
        return next(
            each for each in hardware.machines if each.accelerators >= self.accelerators and each.name not in hardware.rare
        )

    @property
    def machines(self) -> float:
        """Its share of machines, over all its hosts: a half if it uses two of a machine's four accelerators."""
        return self.hosts * self.accelerators / self.paid.accelerators if self.paid else float(self.hosts)

    def machines_of(self, workers: int) -> int:
        """Machines that this many workers at once occupy: an invoice has whole ones."""
        whole = self.paid.accelerators if self.paid else 1
        return -(-workers * self.hosts * max(1, self.accelerators) // whole)

    @property
    def shares(self) -> bool:
        """Whether other workers fit on its machine."""
        return self.paid is not None and self.accelerators < self.paid.accelerators

    @property
    def is_tpu(self) -> bool:
        return isinstance(self.profile.hardware, Tpu)

    @property
    def compute_class(self) -> str | None:
        """The ComputeClass that chooses how the machine is bought; None if the profile itself decides."""
        if self.profile.provisioning is not Provisioning.ANY or self.machine is None:
            return None
        family = self.profile.name.removesuffix(Provisioning.ANY)
        return f"{CLASS_PREFIX}{family}-{self.topology or f'x{self.machine.accelerators}'}"

    @property
    def requests(self) -> dict[str, str]:
        """Requests of the server's container, on each host."""
        if self.machine is None:
            return {"cpu": "1", "memory": "4Gi"}
        part = SHARE * self.accelerators / self.machine.accelerators
        cpu, memory = str(int(part * self.machine.cpus)), f"{int(part * self.machine.memory)}Gi"
        return {"cpu": cpu, "memory": memory, self._resource: str(self.accelerators)}

    @property
    def limits(self) -> dict[str, str]:
        """Limits of the server's container. None on CPU: it may use what the node's other pods leave idle."""
        if self.machine is None:
            return {"memory": f"{CPU_MEMORY_GIB}Gi"}
        return {name: size for name, size in self.requests.items() if name != "cpu"}

    @property
    def _resource(self) -> str:
        return self.own_nodes.resource if self.own_nodes else "google.com/tpu" if self.is_tpu else "nvidia.com/gpu"

    @property
    def own_nodes(self) -> Nodes | None:
        """Of a profile that the deployment has defined."""
        hardware = self.profile.hardware
        return hardware.nodes if isinstance(hardware, Gpu) else None

    @property
    def node_selector(self) -> dict[str, str]:
        """Beside a ComputeClass nothing else: GKE may not find a node for a pod that also selects what the class decides. The
        name of a reservation is the deployment's (`nightshift.jobset.manifest.reservation`)."""
        if self.own_nodes:
            return dict(self.own_nodes.selector)
        if self.compute_class:
            return {_CLASS: self.compute_class}
        selector = dict(_BOUGHT[self.profile.provisioning])
        hardware = self.profile.hardware
        if isinstance(hardware, Tpu) and self.topology:
            selector["cloud.google.com/gke-tpu-accelerator"] = hardware.label
            selector["cloud.google.com/gke-tpu-topology"] = self.topology
        elif isinstance(hardware, Gpu):
            selector["cloud.google.com/gke-accelerator"] = hardware.label
        return selector

    @property
    def tolerations(self) -> list[dict[str, str]]:
        """Beside a ComputeClass not the accelerator's, which GKE adds to pods that request one (ExtendedResourceToleration). So
        Kueue, which sees the template, takes the flavor of the class, whose taint this is, and no accelerator's."""
        if self.profile.hardware is None:
            return []
        if self.own_nodes:
            return [dict(each) for each in self.own_nodes.tolerations]
        if self.compute_class:
            taint = {"key": _CLASS, "operator": "Equal", "value": self.compute_class, "effect": "NoSchedule"}
            return [taint, dict(_SPOT_TAINT)]
        taints = [{"key": self._resource, "operator": "Exists", "effect": "NoSchedule"}]
        if self.profile.provisioning is Provisioning.SPOT:
            taints.append(dict(_SPOT_TAINT))
        return taints

    @property
    def accelerators_in_all(self) -> int:
        """Over all its hosts."""
        return self.accelerators * self.hosts

    @property
    def weights_gib_max(self) -> int:
        """The most weights, in GiB, that an engine of this worker can hold: the memory of all its accelerators, or its part.

        Each host fetches all of them, once for all its engines, so this is also the most that a host needs on its disk.
        """
        hardware = self.profile.hardware
        return (hardware.memory * self.accelerators * self.hosts if hardware else CPU_MEMORY_GIB) // self.engines

    @property
    def load_seconds(self) -> int:
        """The longest that loading the weights should take until one engine answers; a TPU also has to compile.

        Guesses, from the size of a model that needs this many accelerators.
        """
        seconds = 1800 if self.hosts > 1 else {0: 600, 1: 600, 2: 900, 4: 900}.get(self.accelerators, 1200)
        return seconds + (600 if self.is_tpu else 0)

    @property
    def start_seconds(self) -> int:
        """The same until all its engines answer, which start one after another."""
        return self.load_seconds * self.engines

    @property
    def shared_memory(self) -> str:
        """Size of /dev/shm, which the processes of an engine share. It counts towards the server's memory."""
        return f"{2 * self.engines}Gi" if self.accelerators <= 1 else "16Gi"
