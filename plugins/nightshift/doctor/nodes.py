"""Whether the cluster can have nodes for the job's profiles: a node pool that fits, or a ComputeClass that makes one.

A ComputeClass says in its condition ``Health`` whether GKE can use it ("Troubleshoot custom ComputeClasses"). Its CRD belongs
to the cluster autoscaler's component, which may take an hour on a new cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from nightshift.doctor import cluster_objects, gke, node_pool, queue
from nightshift.doctor.compute_needs import Machines
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.doctor.node_pool import Placement, Pool
from nightshift.fields.text import n
from nightshift.jobset.manifest.patch import PatchError
from nightshift.jobset.manifest.pod_template import placement
from nightshift.profiles import Provisioning, WorkerShape

POOLS: Final = "node pools"
CLASSES: Final = "compute classes"
API: Final = "/apis/cloud.google.com"
CRD: Final = "computeclasses.cloud.google.com"
CREATES_POOLS: Final = (1, 33, 3)
"""From here on a ComputeClass makes node pools by itself; before, only if the whole cluster does ("About node pool
auto-creation")."""
DISK: Final = "pd-balanced"
"""What nodes boot from if nobody says otherwise (gcloud's reference, ``--disk-type``)."""
_WAYS: Final = {
    Provisioning.ON_DEMAND: "",
    Provisioning.SPOT: ", Spot",
    Provisioning.FLEX_START: ", flex-start",
    Provisioning.RESERVATION: ", reserved",
}
_BOUGHT: Final = {
    Provisioning.SPOT: " --spot",
    Provisioning.FLEX_START: " --flex-start --no-enable-autorepair --location-policy=ANY --reservation-affinity=none",
    Provisioning.RESERVATION: " --reservation-affinity=specific --reservation=NAME",
}


def pools_of(found: gke.Document) -> list[Pool]:
    """found: the cluster."""
    return [Pool(each, tuple(found.get("locations", ()))) for each in found.get("nodePools", ())]


def pools(here: Surroundings) -> Iterator[Finding]:
    """A finding for each profile whose nodes are chosen by label."""
    found, at = gke.cluster(here), gke.place(here)
    workers = {name: worker for name, worker in here.workers.items() if worker.compute_class is None}
    if not workers:
        yield Skipped(POOLS, f"a ComputeClass makes the nodes of {', '.join(here.workers)}")
        return
    if gke.is_autopilot(found):
        yield Ok(POOLS, f"{at.name} is Autopilot, which makes nodes as pods ask for them")
        return
    there = pools_of(found)
    for profile in workers:
        try:
            yield _fitting(here, profile, placement_of(here, profile), there)
        except (PatchError, ValueError) as error:  # The check `manifest` says so of a job.
            yield Skipped(f"nodes {profile}", f"its pods cannot be rendered: {error}")


def placement_of(here: Surroundings, profile: str) -> Placement:
    """With the override file, for a job. Raises PatchError and ValueError if the pods cannot be rendered."""
    worker = here.workers[profile]
    pod = queue.pod_of(here, profile) if here.job else placement(worker, here.settings)
    return Placement(worker, pod.get("nodeSelector", {}), tuple(pod.get("tolerations", ())))


def _fitting(here: Surroundings, profile: str, of: Placement, there: list[Pool]) -> Finding:
    name, at, worker = f"nodes {profile}", gke.place(here), of.worker
    reasons = {pool.name: node_pool.misfit(pool, of) for pool in there}
    fit = [pool for pool in there if not reasons[pool.name]]
    if not fit:
        why = "; ".join(f"{pool}: {reason}" for pool, reason in reasons.items()) or "it has none"
        wrong = f"no node pool of {at.name} has nodes for it ({why})"
        create = _create(at, profile, worker)
        if profile != next(iter(here.workers)):
            return Skipped(name, f"{wrong}, so this fallback gets no nodes: {create}, or leave it out of compute.fallback")
        return Failed(name, wrong, "infer: its pods wait for a node until the deadline", create)
    for pool in fit:
        if pool.config.get("workloadMetadataConfig", {}).get("mode") != "GKE_METADATA":
            wrong = f"pods in pool {pool.name} get the node's account, not their own"
            update = f"gcloud container node-pools update {pool.name} --cluster={at.name} {at.flags}"
            fix = f"{update} --workload-metadata=GKE_METADATA"
            return Failed(name, wrong, "infer: workers may not read the bucket as themselves", fix)
    return _roomy(here, name, worker, fit)


def _roomy(here: Surroundings, name: str, worker: WorkerShape, fit: list[Pool]) -> Finding:
    shown = ", ".join(
        f"{pool.name} ({pool.config['machineType']}{_WAYS[pool.bought]}, at most {n(pool.most, 'node')})" for pool in fit
    )
    if worker.machine is None:
        return Ok(name, shown)
    room, wanted = sum(node_pool.room(pool, worker) for pool in fit), workers_wanted(here)
    if room < wanted:
        pool, at = fit[0], gke.place(here)
        more = math.ceil(wanted * worker.hosts * worker.accelerators / (pool.gpus or worker.accelerators))
        update = f"gcloud container clusters update {at.name} {at.flags} --node-pool={pool.name} --enable-autoscaling"
        wrong = f"{shown} has room for {room} of {n(wanted, 'worker')}"
        return Failed(name, wrong, "infer: the others wait for a node", f"{update} --total-max-nodes={more}")
    return Ok(name, f"{shown}: room for {n(room, 'worker')}")


def workers_wanted(here: Surroundings) -> int:
    """How many the job states, or the stream at most; 1 if the planner decides."""
    if here.stream:
        return here.stream.scaling.servers.max if here.stream.scaling else 1
    return (here.job.compute.workers if here.job else None) or 1


def classes(here: Surroundings) -> Iterator[Finding]:
    """A finding for each profile that leaves the choice to a ComputeClass."""
    workers = {name: worker for name, worker in here.workers.items() if worker.compute_class is not None}
    if not workers:
        yield Skipped(CLASSES, f"{', '.join(here.workers)} needs none")
        return
    if cluster_objects.get(here, API) is None:
        wrong = "the cluster does not know ComputeClasses yet; on a new cluster that takes up to an hour"
        wait = f"kubectl wait --for=create crd/{CRD} --timeout=60m && kubectl apply --server-side -k k8s/overlays/OVERLAY"
        yield Failed(CLASSES, wrong, "infer: no node is made for profiles that end in -any", wait)
        return
    for profile, worker in workers.items():
        yield _class(here, profile, worker)


def _class(here: Surroundings, profile: str, worker: WorkerShape) -> Finding:
    name, wanted = f"nodes {profile}", str(worker.compute_class)
    breaks = "infer: its pods wait for a node until the deadline"
    family = profile.removesuffix(Provisioning.ANY)
    apply = f"kubectl apply --server-side -f k8s/components/compute-classes-{family.partition('-')[0]}/{family}.yaml"
    found = cluster_objects.get(here, f"{API}/v1/computeclasses/{wanted}")
    if found is None:
        return Failed(name, f"the cluster has no ComputeClass {wanted}", breaks, apply)
    health = cluster_objects.condition(found, "Health")
    if health is not None and health["status"] == "False":
        wrong = f"ComputeClass {wanted} is not healthy: {cluster_objects.words(health)}"
        return Failed(name, wrong, breaks, f"kubectl describe computeclass {wanted}")
    if not found["spec"].get("nodePoolAutoCreation", {}).get("enabled"):
        wrong = f"ComputeClass {wanted} makes no node pools (nodePoolAutoCreation is off)"
        return Failed(name, wrong, breaks, apply)
    if not any(_is_of(rule, worker) for rule in found["spec"].get("priorities", ())):
        return Failed(name, f"no rule of ComputeClass {wanted} is of the worker's machine", breaks, apply)
    return _can_create(here, name, wanted)


def _is_of(rule: cluster_objects.Object, worker: WorkerShape) -> bool:
    tpu = rule.get("tpu", {})
    machine = worker.machine.name if worker.machine else ""
    return rule.get("machineType") == machine or (bool(tpu) and tpu.get("topology") == worker.topology)


def _can_create(here: Surroundings, name: str, wanted: str) -> Finding:
    found, at = gke.cluster(here), gke.place(here)
    whole = found.get("autoscaling", {}).get("enableNodeAutoprovisioning")
    if gke.version_of(found) < CREATES_POOLS and not whole and not gke.is_autopilot(found):
        least = ".".join(map(str, CREATES_POOLS))
        wrong = f"{at.name} runs {found['currentMasterVersion']}, and a ComputeClass makes node pools from {least} on"
        upgrade = f"gcloud container clusters upgrade {at.name} {at.flags} --master --cluster-version={least}"
        return Failed(name, wrong, "infer: its pods wait for a node until the deadline", upgrade)
    return Ok(name, f"ComputeClass {wanted} makes them")


def machines(here: Surroundings, there: list[Pool]) -> Iterator[Machines]:
    """Of each profile that has nodes, as far as the cluster says what they are. Raises what its parts raise.

    there: the cluster's pools.
    """
    for profile, worker in here.workers.items():
        if worker.compute_class:
            found = cluster_objects.get(here, f"{API}/v1/computeclasses/{worker.compute_class}") or {}
            rules = [each for each in found.get("spec", {}).get("priorities", ()) if _is_of(each, worker)]
            disk = rules[0].get("storage", {}) if rules else {}
            yield Machines(worker, None, int(disk.get("bootDiskSize", 0)), disk.get("bootDiskType", DISK))
            continue
        try:
            of = placement_of(here, profile)
        except (PatchError, ValueError):
            continue
        fit = [each for each in there if not node_pool.misfit(each, of)]
        if pool := min(fit, key=lambda each: each.bought is not worker.profile.provisioning, default=None):
            yield Machines(worker, pool, int(pool.config.get("diskSizeGb", 0)), pool.config.get("diskType", ""))


def _create(at: gke.Place, profile: str, worker: WorkerShape) -> str:
    if worker.own_nodes:
        labels = ",".join(f"{key}={value}" for key, value in worker.own_nodes.selector) or "no labels"
        return f"make a node pool as NIGHTSHIFT_PROFILES has it: {labels}, with {worker.own_nodes.resource}"
    if worker.machine is None:
        made = "--machine-type=e2-standard-8"
    elif worker.is_tpu:
        made = f"--machine-type={worker.machine.name}{f' --tpu-topology={worker.topology}' if worker.hosts > 1 else ''}"
    else:
        label = worker.node_selector["cloud.google.com/gke-accelerator"]
        gpu = f"type={label},count={worker.machine.accelerators},gpu-driver-version=latest"
        made = f"--machine-type={worker.machine.name} --accelerator={gpu}"
    bought = _BOUGHT.get(worker.profile.provisioning, "")
    return (
        f"gcloud container node-pools create {profile} --cluster={at.name} {at.flags} --service-account=NODE_ACCOUNT "
        f"{made}{bought} --enable-autoscaling --num-nodes=0 --total-max-nodes={max(worker.hosts, 16)} (k8s/README.md, step 11)"
    )
