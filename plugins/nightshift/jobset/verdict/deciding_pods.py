"""Which pods' ends decide how a failed JobSet is judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.jobset.observation import Observation, condition
from nightshift.jobset.verdict import indexes
from nightshift.jobset.verdict.pod_ends import EndCause, JobKey, PodEnd, restart_of


def deciding(seen: Observation, ends: Sequence[PodEnd]) -> list[PodEnd]:
    """The ends that decided, in order of time. ends: of the observation's pods.

    - For a Job with failed indexes: the ends of these indexes. The others did not fail it.
    - For another failed Job: all ends up to its failure, because the pods that it stops itself end later. If a Job counts
      a pod as soon as it is deleted (podReplacementPolicy TerminatingOrFailed), that pod ends later too: then all.
    - For a Job that fails on its first failure (backoffLimit 0, as when several hosts make one worker): only the first end,
      because a host that is taken away makes the programs of the others fail.
    - Earlier restarts used up the JobSet's restarts. Their Jobs are gone, so their pods follow the rule of the remaining
      Jobs, except deleted pods: a restart deletes pods.
    """
    over = [end for end in ends if end.cause in (EndCause.DISRUPTED, EndCause.DELETED, EndCause.FAILED)]
    # Within one second, a disruption explains a failure, and a failure explains a deletion, which may be the Job's reaction.
    order = (EndCause.DISRUPTED, EndCause.FAILED, EndCause.DELETED)
    over.sort(key=lambda end: (end.restart, end.since, order.index(end.cause)))
    jobs = {JobKey.of(job): job for job in seen.jobs if condition(job, "Failed")}
    if not jobs:
        return over
    last = max(restart_of(job) for job in jobs.values())
    earlier = [end for end in over if end.restart < last and end.cause is not EndCause.DELETED]
    found = earlier + [end for end in over if end.restart == last and end.job in jobs and _counts(jobs[end.job], end)]
    if not any(_fails_at_once(job) for job in jobs.values()):
        return found
    return [end for position, end in enumerate(found) if not position or found[position - 1].restart != end.restart]


def _fails_at_once(job: Mapping[str, Any]) -> bool:
    spec = job.get("spec", {})
    return spec.get("backoffLimitPerIndex") is None and spec.get("backoffLimit") == 0


def _counts(job: Mapping[str, Any], end: PodEnd) -> bool:
    if failed := job.get("status", {}).get("failedIndexes"):
        return end.index in indexes.parse(failed)
    if job.get("spec", {}).get("podReplacementPolicy") == "TerminatingOrFailed":
        return True
    over = condition(job, "FailureTarget") or condition(job, "Failed") or {}
    failed_at: str = over.get("lastTransitionTime", end.since)
    return end.since <= failed_at
