"""The job's way through Kueue: its LocalQueue, the ClusterQueue behind it, the flavors, and the quota for its profiles."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.fields.text import n
from nightshift.jobset.kubernetes import kueue, quota
from nightshift.jobset.manifest.patch import PatchError
from nightshift.jobset.runtime import RequestRefused

MANIFEST: Final = "manifest"
QUEUE: Final = "queue"
QUOTA: Final = "quota"


def manifest(here: Surroundings) -> Iterator[Finding]:
    """Whether the job's JobSets can be made at all: profiles, and the override file for pods."""
    job = here.named_job
    try:
        for profile in job.compute.profiles:
            _rendered(here, profile)
    except (PatchError, ValueError) as error:
        fix = f"nightshift render dags/jobs/{job.job}.yaml --partition {here.partition}"
        yield Failed(MANIFEST, str(error), f"infer of {job.job}", fix)
        return
    yield Ok(MANIFEST, f"the JobSet of {job.job} can be rendered for {', '.join(job.compute.profiles)}")


def queue(here: Surroundings) -> Iterator[Finding]:
    job = here.named_job
    if not job.queue:
        yield Skipped(QUEUE, f"the job {job.job} names no queue, so Kueue does not hold it up")
        return
    breaks = f"infer of {job.job}: its JobSet stays suspended"
    try:
        way = kueue.read_way(here.cluster, here.settings.namespace, job.queue)
    except RequestRefused as error:
        yield Skipped(QUEUE, f"Airflow's account may not read it ({error}); {kueue.READERS} allows it")
    except kueue.NotUsable as error:
        yield Failed(QUEUE, str(error), breaks, error.fix)
    else:
        yield Ok(QUEUE, f"LocalQueue {job.queue}, ClusterQueue {way.name}, flavors {', '.join(way.flavors)}")


def quotas(here: Surroundings) -> Iterator[Finding]:
    """A finding for each profile that the job may get: whether all its workers fit, or one, if the planner decides how many."""
    job = here.named_job
    assert job.queue
    way = kueue.read_way(here.cluster, here.settings.namespace, job.queue)
    workers = n(job.compute.workers or 1, "worker")
    for profile in job.compute.profiles:
        name = f"{QUOTA} {profile}"
        try:
            refused = quota.refusal(quota.demand_of(_rendered(here, profile)), way.cluster_queue, way.flavors)
        except quota.Unknown as error:
            yield Skipped(name, str(error))
            continue
        if refused is None:
            yield Ok(name, f"ClusterQueue {way.name} has room for {workers} when it is empty")
            continue
        short = [
            f"; {workers} need {_plain(need)} of {what}, and it has {_plain(most)}" for what, need, most in refused.lacking
        ]
        wrong = f"ClusterQueue {way.name!r} would never admit {workers}: {refused.why}{''.join(short)}"
        fix = f"kubectl edit clusterqueue {way.name}"
        yield Failed(name, wrong, f"infer of {job.job} on {profile}: its JobSet stays suspended", fix)


def pod_of(here: Surroundings, profile: str) -> dict[str, Any]:
    """The spec of the job's pods on a profile. Raises PatchError and ValueError, as the check `manifest` says."""
    template: dict[str, Any] = _rendered(here, profile)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return template


def _plain(quantity: Decimal) -> str:
    return f"{quantity.normalize():f}"


def _rendered(here: Surroundings, profile: str) -> dict[str, Any]:
    """As `infer` would submit it, with one worker unless the job states how many. Raises PatchError and ValueError."""
    job = here.named_job
    return kueue.sample(job, here.settings, here.partition, profile, job.compute.workers or 1)
