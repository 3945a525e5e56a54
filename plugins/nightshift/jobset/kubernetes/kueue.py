"""The path of a job's JobSets through Kueue: LocalQueue, ClusterQueue, flavors; and a run's share of their quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.jobset.identity import digest_name
from nightshift.jobset.kubernetes import quota, rest
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.manifest.render import render
from nightshift.jobset.runtime import JobSetNotFound
from nightshift.run.names import RunRef, run_digest
from nightshift.run.plan import InputFile, Plan
from nightshift.settings import Settings, SettingsError
from nightshift.spec import JobSpec
from nightshift.spec.model import Compute
from nightshift.spec.profile_names import known

READERS: Final = "k8s/components/queues/airflow.yaml"
"""Lets Airflow's account read the queues. Without it, a run is planned without its quota."""


class NotUsable(Exception):
    """An object on the path is missing or unusable. fix: the command that fixes it."""

    def __init__(self, wrong: str, fix: str) -> None:
        super().__init__(wrong)
        self.fix = fix


@dataclass(frozen=True)
class Way:
    """cluster_queue: the document behind the LocalQueue. flavors: its ResourceFlavors, by name."""

    cluster_queue: Mapping[str, Any]
    flavors: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """Of the ClusterQueue."""
        return str(self.cluster_queue["metadata"]["name"])


def read_way(api: JobSetApi, namespace: str, name: str) -> Way:
    """The path of the LocalQueue `name`. Raises NotUsable for the first missing object; RequestRefused."""
    queues = f"kubectl apply --namespace={namespace} -f k8s/components/queues/queue.yaml"
    local = _read(api, rest.local_queue(namespace, name), f"there is no LocalQueue {name} in namespace {namespace}", queues)
    behind = local["spec"].get("clusterQueue", "")
    quotas = "kubectl apply --server-side -k k8s/overlays/OVERLAY"
    cluster = _read(
        api, rest.cluster_queue(behind), f"LocalQueue {name} names ClusterQueue {behind}, which is not there", quotas
    )
    names = [each["name"] for group in cluster["spec"].get("resourceGroups", ()) for each in group["flavors"]]
    wrong = "ClusterQueue {} names ResourceFlavor {}, which is not there"
    flavors = {each: _read(api, rest.flavor(each), wrong.format(behind, each), quotas) for each in names}
    for kind, document in (("LocalQueue", local), ("ClusterQueue", cluster)):
        _must_be_active(kind, document, namespace)
    return Way(cluster, flavors)


def sample(spec: JobSpec, settings: Settings, partition: str, profile: str, workers: int = 1) -> dict[str, Any]:
    """A JobSet of the job, as `infer` would submit it. Raises PatchError and ValueError."""
    run = RunRef(spec.job, partition, run_digest(spec.job, partition, spec.semantic()))
    plan = Plan(run.run_id, workers, 1, workers, (InputFile("inputs/sample.parquet", workers, (workers,), 0, ""),))
    name = digest_name(spec.job, "sample", run.prefix, profile, 1)
    return render(spec, run, plan, settings, name=name, profile=profile, workers=workers)


def quotas(spec: JobSpec, settings: Settings, partition: str, way: Way) -> dict[str, int | None]:
    """Accelerators (workers, on a profile without any) that the queue, when it is empty, gives a run at once, by profile.

    None: its cohort lends without a limit. For every profile, not only the job's own, so that a suggested one is one that the
    queue admits. The job's profiles are checked with the job's worker, others with their smallest. Raises PatchError.
    """
    found: dict[str, int | None] = {}
    for profile in known():
        asked = spec
        if profile not in spec.compute.profiles:
            asked = spec.model_copy(update={"compute": Compute(profile=profile)})
        try:
            shape = asked.compute.worker(profile)
        except ValueError:
            continue  # A fallback that the job's worker does not fit.
        try:
            worker = quota.demand_of(sample(asked, settings, partition, profile))
        except SettingsError:
            found[profile] = 0  # A reservation that the deployment does not have.
            continue
        try:
            found[profile] = quota.workers_most(worker, way.cluster_queue, way.flavors) * (shape.accelerators_in_all or 1)
        except quota.Unknown:
            found[profile] = None
    return found


def _must_be_active(kind: str, document: Mapping[str, Any], namespace: str) -> None:
    name, policy = document["metadata"]["name"], document["spec"].get("stopPolicy", "None")
    place = f" --namespace={namespace}" if kind == "LocalQueue" else ""
    if policy != "None":
        patch = '\'{"spec": {"stopPolicy": "None"}}\''
        fix = f"kubectl patch {kind.lower()} {name}{place} --type=merge --patch={patch}"
        raise NotUsable(f"{kind} {name} is stopped (stopPolicy {policy})", fix)
    for each in document.get("status", {}).get("conditions") or ():
        if each["type"] == "Active" and each["status"] == "False":
            words = f"{kind} {name} is not active: {each.get('message', '')}"
            raise NotUsable(words, f"kubectl describe {kind.lower()} {name}{place}")


def _read(api: JobSetApi, path: str, wrong: str, fix: str) -> dict[str, Any]:
    try:
        return api.read(path)
    except JobSetNotFound:
        raise NotUsable(wrong, fix) from None
