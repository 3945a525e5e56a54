"""Whether a ClusterQueue could ever admit a JobSet, by the rules of Kueue's flavor assignment. Pure.

Kueue admits a JobSet whole. Each resource that its pods request has to be covered by a resource group, and in each group one
flavor has to take all of them: its labels do not contradict the pods' node selector, its taints are tolerated, and its quota
(with what may be borrowed) is enough (Kueue's pages "Cluster Queue" and "Resource Flavor"; fields: v1beta2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

PODS: Final = "pods"
"""A resource that Kueue counts if the queue covers it."""


@dataclass(frozen=True)
class Demand:
    """What all pods of a JobSet ask for together. requests: in base units, by resource."""

    requests: Mapping[str, Decimal]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Refusal:
    """Why it is never admitted. lacking: (resource, asked for, the most that a flavor has); empty if no flavor is suitable."""

    why: str
    lacking: tuple[tuple[str, Decimal, Decimal], ...] = ()


class Unknown(Exception):
    """The cohort may lend what the queue lacks; how much it has is not in the queue."""


def demand_of(manifest: Mapping[str, Any]) -> Demand:
    """Of a rendered JobSet with one replicatedJob. A container without a request for a resource requests its limit."""
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pods, pod = job["replicas"] * spec["parallelism"], spec["template"]["spec"]
    total = {PODS: Decimal(pods)}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        resources = container.get("resources", {})
        for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal()) + pods * parse_quantity(value)
    return Demand(total, pod.get("nodeSelector", {}), tuple(pod.get("tolerations", ())))


def refusal(demand: Demand, queue: Mapping[str, Any], flavors: Mapping[str, Mapping[str, Any]]) -> Refusal | None:
    """None if an empty queue would admit it. queue: a ClusterQueue. flavors: its ResourceFlavors, by name.

    Raises Unknown.
    """
    groups = queue["spec"].get("resourceGroups", ())
    covered = {name for group in groups for name in group["coveredResources"]}
    if bare := sorted(name for name, value in demand.requests.items() if value and name not in covered | {PODS}):
        return Refusal(f"its pods request {', '.join(bare)}, which the queue does not cover")
    for group in groups:
        wanted = {name: demand.requests[name] for name in group["coveredResources"] if demand.requests.get(name)}
        if wanted and (found := _refused_by(group, wanted, demand, queue, flavors)):
            return found
    return None


def _refused_by(
    group: Mapping[str, Any],
    wanted: Mapping[str, Decimal],
    demand: Demand,
    queue: Mapping[str, Any],
    flavors: Mapping[str, Mapping[str, Any]],
) -> Refusal | None:
    specs = {each["name"]: flavors[each["name"]].get("spec") or {} for each in group["flavors"]}
    keys = {key for spec in specs.values() for key in spec.get("nodeLabels") or {}}
    chosen = {key: value for key, value in demand.node_selector.items() if key in keys}
    suitable = [each for each in group["flavors"] if _takes(specs[each["name"]], chosen, demand.tolerations)]
    if not suitable:
        names = ", ".join(specs)
        return Refusal(f"none of its flavors ({names}) has the labels and taints that the pods select and tolerate")
    in_cohort = bool(queue["spec"].get("cohortName"))
    short = [_lacking(flavor, wanted, in_cohort) for flavor in suitable]
    if not all(short):
        return None
    least = min(short, key=len)
    return Refusal(f"no flavor of {', '.join(each['name'] for each in suitable)} has enough quota", tuple(least))


def _lacking(flavor: Mapping[str, Any], wanted: Mapping[str, Decimal], in_cohort: bool) -> list[tuple[str, Decimal, Decimal]]:
    quotas = {each["name"]: each for each in flavor["resources"]}
    found = []
    for name, value in wanted.items():
        quota = quotas[name]
        most = parse_quantity(quota["nominalQuota"])
        if value > most and in_cohort:
            if quota.get("borrowingLimit") is None or value <= most + parse_quantity(quota["borrowingLimit"]):
                raise Unknown(
                    f"{flavor['name']} has {most:f} of {name}, {value:f} are needed, and its cohort may lend the rest"
                )
            most += parse_quantity(quota["borrowingLimit"])
        if value > most:
            found.append((name, value, most))
    return found


def _takes(spec: Mapping[str, Any], chosen: Mapping[str, str], tolerations: Iterable[Mapping[str, str]]) -> bool:
    labels = spec.get("nodeLabels") or {}
    tolerated = [*tolerations, *(spec.get("tolerations") or ())]
    taints = [each for each in spec.get("nodeTaints") or () if each["effect"] in ("NoSchedule", "NoExecute")]
    return all(labels.get(key) == value for key, value in chosen.items()) and all(
        any(_tolerates(each, taint) for each in tolerated) for taint in taints
    )


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """As Kubernetes compares them: an empty key or effect of a toleration matches all."""
    if toleration.get("effect") not in (None, "", taint["effect"]) or toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or (
        bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
    )
