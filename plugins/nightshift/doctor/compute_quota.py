"""Quotas of Compute Engine for the nodes that the job may start: accelerators, CPUs, addresses and disks.

A limit is compared with what the job's workers need, not what is free of it now: the account's own night may be using it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.doctor import gke, google_api, nodes
from nightshift.doctor.compute_needs import Metric, Need, needs
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok, Skipped
from nightshift.fields.text import n

NAME: Final = "compute quotas"
UNLIMITED: Final = -1
_ADDRESSES: Final = (Metric("IN_USE_ADDRESSES"),)
"""All nodes of the cluster have them, whatever their profile."""


@dataclass(frozen=True)
class Limit:
    """limit: UNLIMITED for none. used: None if it is not known."""

    limit: int
    used: int | None = None


def quotas(here: Surroundings) -> Iterator[Finding]:
    """A finding for each quota."""
    at = gke.place(here)
    wanted = _needs(here)
    if not wanted:
        yield Skipped(NAME, "the nodes of this profile are not known, or need no quota that is checked")
        return
    region = _quotas(here, f"compute/v1/projects/{at.project}/regions/{at.region}?fields=quotas")
    project = _quotas(here, f"compute/v1/projects/{at.project}?fields=quotas")
    for need in wanted.values():
        yield _judged(here, need, {**project, **region})


def _needs(here: Surroundings) -> dict[tuple[Metric, ...], Need]:
    """The most that any of the profiles needs of each quota: they are tried one after the other."""
    found: dict[tuple[Metric, ...], Need] = {}
    cluster, workers = gke.cluster(here), nodes.workers_wanted(here)
    there = nodes.pools_of(cluster)
    standing = sum(pool.least for pool in there)
    for machines in nodes.machines(here, there):
        public = _is_public(cluster, machines.pool.document if machines.pool else {})
        for need in needs(machines, workers, public=public):
            more = standing - (machines.pool.least if machines.pool else 0) if need.any_of == _ADDRESSES else 0
            if need.any_of not in found or found[need.any_of].amount < need.amount + more:
                found[need.any_of] = Need(need.any_of, need.amount + more)
    return found


def _is_public(cluster: Mapping[str, Any], pool: Mapping[str, Any]) -> bool:
    private = pool.get("networkConfig", {}).get("enablePrivateNodes")
    if private is None:
        private = cluster.get("networkConfig", {}).get("defaultEnablePrivateNodes")
    if private is None:
        private = cluster.get("privateClusterConfig", {}).get("enablePrivateNodes")
    return not private


def _quotas(here: Surroundings, path: str) -> dict[str, Limit]:
    at = gke.place(here)
    found = google_api.read(here.connections.google(), google_api.COMPUTE, path, project=at.project)
    return {each["metric"]: Limit(int(each["limit"]), int(each.get("usage", 0))) for each in found.get("quotas", ())}


def _judged(here: Surroundings, need: Need, known: Mapping[str, Limit]) -> Finding:
    at = gke.place(here)
    name = f"compute quota {need.any_of[0]}"
    limits: dict[Metric, Limit] = {}
    for metric in need.any_of:
        try:
            limits[metric] = known[metric.name] if metric.name in known else _by_family(here, metric)
        except NotKnown as error:
            if metric == need.any_of[-1] and not limits:
                return Skipped(name, str(error))
    where = "all regions" if need.any_of[0].everywhere else f"{at.region} of {at.project}"
    workers = nodes.workers_wanted(here)
    wanted = f"{n(workers, 'worker')} need{'s' if workers == 1 else ''} {need.amount}"
    for metric, limit in limits.items():
        if limit.limit == UNLIMITED or limit.limit >= need.amount:
            used = f", of which {limit.used} are in use now" if limit.used else ""
            return Ok(name, f"{wanted} of {metric} in {where}; the limit is {limit.limit}{used}")
    shown = " and ".join(f"{metric} is {limit.limit}" for metric, limit in limits.items())
    last = next(reversed(limits))
    return Failed(name, f"{wanted} in {where}, and {shown}", "infer: Google starts no such node", _request(here, last, need))


def _by_family(here: Surroundings, metric: Metric) -> Limit:
    """From the Cloud Quotas API. The most specific entry counts: of a region and a family, of either, of neither."""
    at = gke.place(here)
    path = f"v1/projects/{at.project}/locations/global/services/compute.googleapis.com/quotaInfos/{metric.quota_id}"
    try:
        found = google_api.read(here.connections.google(), google_api.CLOUD_QUOTAS, path, project=at.project)
    except google_api.NotThere:
        raise NotKnown(f"neither Compute Engine nor Cloud Quotas knows a quota {metric}") from None
    ours = {"region": at.region, **(dict([metric.family]) if metric.family else {})}
    fitting = [each for each in found.get("dimensionsInfos", ()) if each.get("dimensions", {}).items() <= ours.items()]
    if not fitting:
        return Limit(0)
    best = max(fitting, key=lambda each: len(each.get("dimensions", {})))
    return Limit(int(best["details"]["value"]))


def _request(here: Surroundings, metric: Metric, need: Need) -> str:
    """As k8s/README.md asks for quota."""
    at = gke.place(here)
    dimensions = [] if metric.everywhere else [f"region={at.region}"]
    dimensions += ["=".join(metric.family)] if metric.family else []
    which = f" --dimensions={','.join(dimensions)}" if dimensions else ""
    return (
        f"gcloud beta quotas preferences create --service=compute.googleapis.com --project={at.project} "
        f"--quota-id={metric.quota_id}{which} --preferred-value={need.amount} "
        "--email=YOUR_ADDRESS --justification='batch inference'"
    )
