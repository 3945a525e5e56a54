"""Whether a ClusterQueue could ever admit a JobSet, and how many workers at most, by the rules of its flavor assignment. Pure.

Kueue admits a JobSet whole. Each resource that its pods request has to be covered by a resource group, and in each group one
flavor has to take all of them: none of its labels contradicts the pods' node selector, its taints are tolerated, and its quota
(with what may be borrowed) is enough (Kueue's pages "Cluster Queue" and "Resource Flavor"; fields: v1beta2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kubernetes.utils.quantity import parse_quantity

PODS: Final = "pods"
"""A resource that Kueue counts if the queue covers it."""
_NO_LIMIT: Final = Decimal("Infinity")


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
    for name, value in _requested(pod).items():
        total[name] = total.get(name, Decimal()) + pods * value
    return Demand(total, pod.get("nodeSelector", {}), tuple(pod.get("tolerations", ())))


def _requested(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """By a pod, as Kubernetes counts: what its sidecars and containers want together or, if that is more, what one wants that
    ends before they start, with the sidecars that are there by then."""
    running: dict[str, Decimal] = {}
    most: dict[str, Decimal] = {}

    def start(container: Mapping[str, Any], *, stays: bool) -> None:
        resources = container.get("resources", {})
        for name, value in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            wanted = running.get(name, Decimal()) + parse_quantity(value)
            most[name] = max(most.get(name, wanted), wanted)
            if stays:
                running[name] = wanted

    for each in pod.get("initContainers", ()):
        start(each, stays=each.get("restartPolicy") == "Always")
    for each in pod["containers"]:
        start(each, stays=True)
    return most


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


def workers_most(worker: Demand, queue: Mapping[str, Any], flavors: Mapping[str, Mapping[str, Any]]) -> int:
    """The most workers that an empty queue admits in one JobSet; 0 if it never admits one. worker: what one of them asks for.

    What may be borrowed counts: Kueue admits it as long as the cohort does not use it itself. Raises Unknown if the cohort
    lends without a limit: how much it has is not in the queue.
    """
    groups = queue["spec"].get("resourceGroups", ())
    covered = {name for group in groups for name in group["coveredResources"]}
    if any(value and name not in covered | {PODS} for name, value in worker.requests.items()):
        return 0
    found = []
    for group in groups:
        wanted = {name: worker.requests[name] for name in group["coveredResources"] if worker.requests.get(name)}
        if wanted:
            in_cohort = bool(queue["spec"].get("cohortName"))
            suitable = _suitable(group, wanted, worker, flavors)
            found.append(max((_times(flavor, wanted, in_cohort) for flavor in suitable), default=Decimal()))
    least = min(found, default=_NO_LIMIT)
    if least == _NO_LIMIT:
        raise Unknown("its cohort lends without a limit")
    return int(least)


def _times(flavor: Mapping[str, Any], wanted: Mapping[str, Decimal], in_cohort: bool) -> Decimal:
    """How many times a flavor has all that one worker wants."""
    quotas = {each["name"]: each for each in flavor["resources"]}
    return min(_most(quotas[name], in_cohort) // value for name, value in wanted.items())


def _most(quota: Mapping[str, Any], in_cohort: bool) -> Decimal:
    """Of one resource of a flavor: its own, and what may be borrowed."""
    most: Decimal = parse_quantity(quota["nominalQuota"])
    if not in_cohort:
        return most
    return _NO_LIMIT if quota.get("borrowingLimit") is None else most + parse_quantity(quota["borrowingLimit"])


def _refused_by(
    group: Mapping[str, Any],
    wanted: Mapping[str, Decimal],
    demand: Demand,
    queue: Mapping[str, Any],
    flavors: Mapping[str, Mapping[str, Any]],
) -> Refusal | None:
    suitable = _suitable(group, wanted, demand, flavors)
    if not suitable:
        names = ", ".join(each["name"] for each in group["flavors"])
        return Refusal(f"none of its flavors ({names}) has the labels and taints that the pods select and tolerate")
    in_cohort = bool(queue["spec"].get("cohortName"))
    short = [_lacking(flavor, wanted, in_cohort) for flavor in suitable]
    if not all(short):
        return None
    least = min(short, key=len)
    return Refusal(f"no flavor of {', '.join(each['name'] for each in suitable)} has enough quota", tuple(least))


def _suitable(
    group: Mapping[str, Any], wanted: Mapping[str, Decimal], demand: Demand, flavors: Mapping[str, Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The flavors of a group whose nodes the pods select and tolerate. Not one for any node that has none of what is wanted: it
    is for pods without an accelerator."""
    specs = {each["name"]: flavors[each["name"]].get("spec") or {} for each in group["flavors"]}
    found = [each for each in group["flavors"] if _takes(specs[each["name"]], demand)]
    none = {
        each["name"]: [one["name"] for one in each["resources"] if not parse_quantity(one["nominalQuota"])] for each in found
    }
    return [each for each in found if specs[each["name"]].get("nodeLabels") or not wanted.keys() & set(none[each["name"]])]


def _lacking(flavor: Mapping[str, Any], wanted: Mapping[str, Decimal], in_cohort: bool) -> list[tuple[str, Decimal, Decimal]]:
    quotas = {each["name"]: each for each in flavor["resources"]}
    found = []
    for name, value in wanted.items():
        quota = quotas[name]
        own, most = parse_quantity(quota["nominalQuota"]), _most(quota, in_cohort)
        if own < value <= most:
            raise Unknown(f"{flavor['name']} has {own:f} of {name}, {value:f} are needed, and its cohort may lend the rest")
        if value > most:
            found.append((name, value, most))
    return found


def _takes(spec: Mapping[str, Any], demand: Demand) -> bool:
    """Keys that the flavor has no label for do not count, whatever other flavors have (Kueue 0.19, `checkFlavorForPodSets`)."""
    labels = spec.get("nodeLabels") or {}
    tolerated = [*demand.tolerations, *(spec.get("tolerations") or ())]
    taints = [each for each in spec.get("nodeTaints") or () if each["effect"] in ("NoSchedule", "NoExecute")]
    return all(demand.node_selector.get(key, value) == value for key, value in labels.items()) and all(
        any(_tolerates(each, taint) for each in tolerated) for taint in taints
    )


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    """As Kubernetes compares them: an empty key or effect of a toleration matches all."""
    if toleration.get("effect") not in (None, "", taint["effect"]) or toleration.get("key") not in (None, "", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or (
        bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
    )
