"""The cluster autoscaler: whether pods that wait get nodes, or why they wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud
from local.google_cloud.projects import limit
from local.google_cloud.state import Fields, kubernetes_type

CUTOFF: Final = -10
"""``--expendable-pods-priority-cutoff``: pods below it cause no scale up (kubernetes/autoscaler, cluster-autoscaler/FAQ.md)."""
GPUS: Final = {"nvidia-l4": "NVIDIA_L4_GPUS", "nvidia-h100-80gb": "NVIDIA_H100_GPUS"}
CPUS: Final = {"g2-standard-8": 8, "a3-highgpu-8g": 208, "e2-standard-4": 4}


@dataclass(frozen=True)
class Offer:
    """Machines that the autoscaler may add. how: ``spot``, ``flex`` or ``on demand``."""

    source: str
    machine: str
    how: str
    zones: tuple[str, ...]
    accelerator: str
    accelerators: int
    disk_gb: int
    account: str
    most: int


def refusal(cloud: Cloud, cluster: str, pod: dict[str, Any], pods: int) -> str:
    """Why these pods get no nodes; '' if they get them. pod: its spec. cluster: FULL_NAME."""
    name = pod.get("priorityClassName")
    if name:
        found = cloud.state.get(
            kubernetes_type("scheduling.k8s.io/v1", "PriorityClass"), f"{cluster}/k8s/priorityclasses/{name}"
        )
        if found is None:
            return f'pods "x" is forbidden: no PriorityClass with name {name} was found'
        if found["value"] < CUTOFF:
            return (
                f"{pods} pods stay Pending without an event: their priority {found['value']} (PriorityClass {name}) is below "
                f"the cluster autoscaler's cutoff {CUTOFF}, and such pods never cause scale up"
            )
    reasons = []
    for offer in offers(cloud, cluster, pod):
        reason = _unfit(cloud, cluster, offer, pods)
        if not reason:
            return ""
        reasons.append(f"{offer.source}: {reason}")
    return f"{pods} pods stay Pending (NotTriggerScaleUp): " + (
        "; ".join(reasons) or f"no node pool or compute class fits {pod.get('nodeSelector')}"
    )


def offers(cloud: Cloud, cluster: str, pod: dict[str, Any]) -> Iterator[Offer]:
    selector = pod.get("nodeSelector", {})
    if name := selector.get("cloud.google.com/compute-class"):
        kind = kubernetes_type("cloud.google.com/v1", "ComputeClass")
        found = cloud.state.get(kind, f"{cluster}/k8s/computeclasses/{name}")
        if found is not None:
            yield from _rules(cloud, cluster, name, found)
        return
    for pool, fields in cloud.state.of(types.NODE_POOL).items():
        config = fields["config"]
        kinds = {each["acceleratorType"]: each["acceleratorCount"] for each in config.get("accelerators", [])}
        wanted = selector.get("cloud.google.com/gke-accelerator")
        if not pool.startswith(f"{cluster}/") or (wanted or None) != next(iter(kinds), None):
            continue
        if (selector.get("cloud.google.com/gke-spot") == "true") != bool(config.get("spot")):
            continue
        how = "spot" if config.get("spot") else "flex" if config.get("flexStart") else "on demand"
        scaling = fields.get("autoscaling", {})
        most = scaling.get("totalMaxNodeCount") or scaling.get("maxNodeCount", 0) * len(fields["locations"])
        yield Offer(
            f"pool {pool.split('/')[-1]}", config["machineType"], how, tuple(fields["locations"]), next(iter(kinds), ""),
            next(iter(kinds.values()), 0), config.get("diskSizeGb", 100), config.get("serviceAccount", ""), most,
        )  # fmt: skip


def _rules(cloud: Cloud, cluster: str, name: str, found: Fields) -> Iterator[Offer]:
    zones = cloud.zones[str(cloud.state.of(types.CLUSTER)[cluster]["location"])]
    for number, rule in enumerate(found["spec"]["priorities"], 1):
        machine = rule.get("machineType", "")
        has = tuple(zone for zone, machines in zones.items() if machine in machines)
        how = "spot" if rule.get("spot") else "flex" if rule.get("flexStart", {}).get("enabled") else "on demand"
        if has and "reservations" not in rule:
            gpu = rule.get("gpu", {})
            disk = rule.get("storage", {}).get("bootDiskSize", 100)
            account = found["spec"].get("nodePoolConfig", {}).get("serviceAccount", "")
            yield Offer(
                f"{name}, rule {number}", machine, how, has, gpu.get("type", ""), gpu.get("count", 0), disk, account, 1000
            )


def _unfit(cloud: Cloud, cluster: str, offer: Offer, pods: int) -> str:
    if not [zone for zone in offer.zones if (zone, offer.machine, offer.how) not in cloud.sold_out]:
        return f"ZONE_RESOURCE_POOL_EXHAUSTED in {', '.join(offer.zones)} ({offer.machine}, {offer.how})"
    if pods > offer.most:
        return f"max node group size reached: {offer.most} nodes at most"
    fields = cloud.state.of(types.CLUSTER)[cluster]
    project, region = cluster.split("/")[4], str(fields["location"])
    standing = sum(
        pool["initialNodeCount"] * len(pool["locations"])
        for name, pool in cloud.state.of(types.NODE_POOL).items()
        if name.startswith(f"{cluster}/")
    )
    preemptible = "PREEMPTIBLE_" if offer.how != "on demand" else ""
    needs = {
        "CPUS": CPUS.get(offer.machine, 4) * pods + 4 * standing,
        "SSD_TOTAL_GB": offer.disk_gb * pods + 100 * standing,
    }
    if not fields.get("privateClusterConfig", {}).get("enablePrivateNodes"):
        needs["IN_USE_ADDRESSES"] = pods + standing
    if offer.accelerator in GPUS:
        needs |= {
            preemptible + GPUS[offer.accelerator]: offer.accelerators * pods,
            "GPUS_ALL_REGIONS": offer.accelerators * pods,
        }
    for metric, need in needs.items():
        if need > (most := limit(cloud, project, region, metric)):
            return f"Quota '{metric}' exceeded. Limit: {most} in region {region}; needed: {need}"
    return ""
