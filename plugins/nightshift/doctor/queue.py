"""The job's way through Kueue: its LocalQueue, the ClusterQueue behind it, the flavors, and the quota for its profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from nightshift.doctor import quota
from nightshift.doctor.findings import Finding, NotAsked, Ok, Problem
from nightshift.doctor.surroundings import Surroundings
from nightshift.jobset.identity import digest_name
from nightshift.jobset.kubernetes import paths
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.manifest.patch import PatchError
from nightshift.jobset.manifest.render import render
from nightshift.jobset.runtime import JobSetNotFound, RequestRefused
from nightshift.run.names import RunRef, run_digest
from nightshift.run.plan import InputFile, Plan
from nightshift.spec import JobSpec, periods

MANIFEST: Final = "manifest"
QUEUE: Final = "queue"
QUOTA: Final = "quota"
READERS: Final = "k8s/components/queues/airflow.yaml"
"""What lets Airflow's account read the queues; no night needs it."""


class _Missing(Exception):
    """An object of the queue is not there, or not as it has to be."""

    def __init__(self, wrong: str, mend: str) -> None:
        super().__init__(wrong)
        self.mend = mend


def manifest(here: Surroundings) -> Iterator[Finding]:
    """Whether the job's JobSets can be made at all: profiles, and the override file for pods."""
    job = _job(here)
    try:
        for profile in job.compute.profiles:
            _rendered(here, profile)
    except (PatchError, ValueError) as error:
        mend = f"nightshift render dags/jobs/{job.job}.yaml --partition {_partition(here)}"
        yield Problem(MANIFEST, str(error), f"infer of {job.job}", mend)
        return
    yield Ok(MANIFEST, f"the JobSet of {job.job} can be rendered for {', '.join(job.compute.profiles)}")


def queue(here: Surroundings) -> Iterator[Finding]:
    job = _job(here)
    if not job.queue:
        yield NotAsked(QUEUE, f"the job {job.job} names no queue, so Kueue does not hold it up")
        return
    breaks = f"infer of {job.job}: its JobSet stays suspended"
    try:
        local, cluster, flavors = _chain(_api(here), here.settings.namespace, job.queue)
    except RequestRefused as error:
        yield NotAsked(QUEUE, f"Airflow's account may not read it ({error}); {READERS} allows it")
    except _Missing as error:
        yield Problem(QUEUE, str(error), breaks, error.mend)
    else:
        name = cluster["metadata"]["name"]
        yield Ok(QUEUE, f"LocalQueue {local['metadata']['name']}, ClusterQueue {name}, flavors {', '.join(flavors)}")


def quotas(here: Surroundings) -> Iterator[Finding]:
    """A finding for each profile that the job may get: whether all its workers fit, or one, if the planner decides how many."""
    job = _job(here)
    assert job.queue
    _, cluster, flavors = _chain(_api(here), here.settings.namespace, job.queue)
    workers = "1 worker" if job.compute.workers is None else f"{job.compute.workers} workers"
    for profile in job.compute.profiles:
        name = f"{QUOTA} {profile}"
        try:
            refused = quota.refusal(quota.demand_of(_rendered(here, profile)), cluster, flavors)
        except quota.Unknown as error:
            yield NotAsked(name, str(error))
            continue
        if refused is None:
            yield Ok(name, f"ClusterQueue {cluster['metadata']['name']} has room for {workers} when it is empty")
            continue
        short = [
            f"; {workers} need {_plain(need)} of {what}, and it has {_plain(most)}" for what, need, most in refused.lacking
        ]
        wrong = f"ClusterQueue {cluster['metadata']['name']!r} would never admit {workers}: {refused.why}{''.join(short)}"
        mend = f"kubectl edit clusterqueue {cluster['metadata']['name']}"
        yield Problem(name, wrong, f"infer of {job.job} on {profile}: its JobSet stays suspended", mend)


def _plain(quantity: Decimal) -> str:
    return f"{quantity.normalize():f}"


def _chain(api: JobSetApi, namespace: str, name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]:
    """LocalQueue, ClusterQueue, ResourceFlavors by name. Raises _Missing for the first that is not there; RequestRefused."""
    queues = f"kubectl apply --namespace={namespace} -f k8s/components/queues/queue.yaml"
    local = _read(api, paths.local_queue(namespace, name), f"there is no LocalQueue {name} in namespace {namespace}", queues)
    behind = local["spec"].get("clusterQueue", "")
    quotas = "kubectl apply --server-side -k k8s/overlays/OVERLAY"
    cluster = _read(
        api, paths.cluster_queue(behind), f"LocalQueue {name} names ClusterQueue {behind}, which is not there", quotas
    )
    names = [each["name"] for group in cluster["spec"].get("resourceGroups", ()) for each in group["flavors"]]
    wrong = "ClusterQueue {} names ResourceFlavor {}, which is not there"
    flavors = {each: _read(api, paths.flavor(each), wrong.format(behind, each), quotas) for each in names}
    for kind, document in (("LocalQueue", local), ("ClusterQueue", cluster)):
        _must_be_active(kind, document, namespace)
    return local, cluster, flavors


def _must_be_active(kind: str, document: Mapping[str, Any], namespace: str) -> None:
    name, policy = document["metadata"]["name"], document["spec"].get("stopPolicy", "None")
    place = f" --namespace={namespace}" if kind == "LocalQueue" else ""
    if policy != "None":
        patch = '\'{"spec": {"stopPolicy": "None"}}\''
        mend = f"kubectl patch {kind.lower()} {name}{place} --type=merge --patch={patch}"
        raise _Missing(f"{kind} {name} is stopped (stopPolicy {policy})", mend)
    for each in document.get("status", {}).get("conditions") or ():
        if each["type"] == "Active" and each["status"] == "False":
            words = f"{kind} {name} is not active: {each.get('message', '')}"
            raise _Missing(words, f"kubectl describe {kind.lower()} {name}{place}")


def _read(api: JobSetApi, path: str, wrong: str, mend: str) -> dict[str, Any]:
    try:
        return api.read(path)
    except JobSetNotFound:
        raise _Missing(wrong, mend) from None


def _rendered(here: Surroundings, profile: str) -> dict[str, Any]:
    """As `infer` would submit it, with one worker unless the job says how many. Raises PatchError and ValueError."""
    job, partition = _job(here), _partition(here)
    workers = job.compute.workers or 1
    run = RunRef(job.job, partition, run_digest(job.job, partition, job.semantic()))
    plan = Plan(run.run_id, workers, 1, workers, (InputFile("inputs/doctor.parquet", workers, (workers,), 0, ""),))
    name = digest_name(job.job, "doctor", run.prefix, profile, 1)
    return render(job, run, plan, here.settings, name=name, profile=profile, workers=workers)


def _partition(here: Surroundings) -> str:
    """The last one that is over."""
    return periods.at(datetime.fromtimestamp(here.now(), UTC), _job(here).every)


def _job(here: Surroundings) -> JobSpec:
    assert here.job is not None, "its check needs the check `job`"
    return here.job


def _api(here: Surroundings) -> JobSetApi:
    api = here.connections.cluster()
    assert api is not None, "its check needs the check `cluster`"
    return api
