"""What an Indexed Job does next: pure functions of its rules and of the pods it has had. Reads no clock and starts nothing.

Follows the Job controller of Kubernetes 1.36: podFailurePolicy, backoffLimitPerIndex, maxFailedIndexes, backoffLimit,
activeDeadlineSeconds, the delay before a replacement, and the order in which these end a Job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Action = Literal["FailJob", "FailIndex", "Ignore", "Count"]
Ruling = Literal["", "Succeeded", "Deleted", "FailJob", "FailIndex", "Ignore", "Count"]
"""What a pod's end means to its Job: "" while it runs, "Deleted" when the Job ended it, else the action of the policy."""

MAX_BACKOFF_S: Final = 600.0
"""Longest wait between a pod's failure and its replacement."""


@dataclass(frozen=True)
class Rule:
    """One podFailurePolicy rule: on exit codes (``operator`` is set), or on the condition DisruptionTarget.

    container: whose exit code is compared; None for any container, sidecars and init containers included.
    """

    action: Action
    operator: Literal["In", "NotIn"] | None = None
    values: tuple[int, ...] = ()
    container: str | None = None


@dataclass(frozen=True)
class IndexedJob:
    """The rules of one Indexed Job. A limit of None does not apply."""

    completions: int
    parallelism: int = 1
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    active_deadline_s: int | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class JobPod:
    """What the policy knows about one pod. ended_at: seconds since the epoch; 0 while it runs."""

    index: int
    ruling: Ruling = ""
    ended_at: float = 0.0
    message: str = ""


@dataclass(frozen=True)
class JobEnd:
    """Why a Job is over, in Kubernetes' words."""

    succeeded: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Next:
    """start: indexes that get a pod now. end: set if the Job is over; then nothing starts."""

    start: tuple[int, ...] = ()
    end: JobEnd | None = None


def judge(rules: Sequence[Rule], pod: str, exit_codes: Sequence[tuple[str, int]], *, disrupted: bool) -> tuple[Action, str]:
    """Action for a pod that failed, and the sentence that says why; the first rule that matches wins, else Count.

    pod: NAMESPACE/NAME. exit_codes: containers that ended, main ones first, then init containers and sidecars.
    disrupted: whether the pod has the condition DisruptionTarget.
    """
    for number, rule in enumerate(rules):
        if rule.operator is None:
            if disrupted:
                return rule.action, f"Pod {pod} has condition DisruptionTarget matching {rule.action} rule at index {number}"
            continue
        for container, code in exit_codes:
            if code != 0 and rule.container in (None, container) and (code in rule.values) == (rule.operator == "In"):
                why = f"Container {container} for pod {pod} failed with exit code {code}"
                return rule.action, f"{why} matching {rule.action} rule at index {number}"
    return "Count", ""


def completed_indexes(pods: Sequence[JobPod]) -> tuple[int, ...]:
    """Indexes with a pod that succeeded, sorted."""
    return tuple(sorted({pod.index for pod in pods if pod.ruling == "Succeeded"}))


def failed_indexes(job: IndexedJob, pods: Sequence[JobPod]) -> tuple[int, ...]:
    """Failed indexes, sorted; always empty without backoffLimitPerIndex."""
    if job.backoff_limit_per_index is None:
        return ()
    given_up = {pod.index for pod in pods if pod.ruling == "FailIndex"}
    counted = Counter(pod.index for pod in pods if pod.ruling == "Count")
    given_up |= {index for index, failures in counted.items() if failures > job.backoff_limit_per_index}
    return tuple(sorted(given_up - set(completed_indexes(pods))))


def decide(job: IndexedJob, pods: Sequence[JobPod], *, started_at: float, now: float, backoff_s: float) -> Next:
    """What to do with a running Job.

    started_at, now: seconds since the epoch. backoff_s: wait after the first failure; doubles with each further one.
    """
    end = _end(job, pods, started_at, now)
    if end is not None:
        return Next(end=end)
    taken = {*completed_indexes(pods), *failed_indexes(job, pods)}
    active = {pod.index for pod in pods if not pod.ruling}
    free = [index for index in range(job.completions) if index not in taken and index not in active]
    if job.backoff_limit_per_index is None:
        ready = free if _ready_at(pods, backoff_s) <= now else []
    else:
        failures: dict[int, list[JobPod]] = {}
        for pod in pods:
            failures.setdefault(pod.index, []).append(pod)
        ready = [index for index in free if _ready_at(failures.get(index, ()), backoff_s) <= now]
    return Next(start=tuple(ready[: max(job.parallelism - len(active), 0)]))


def _end(job: IndexedJob, pods: Sequence[JobPod], started_at: float, now: float) -> JobEnd | None:
    succeeded = completed_indexes(pods)
    if len(succeeded) == job.completions:
        return JobEnd(True, "CompletionsReached", "Reached expected number of succeeded pods")
    for pod in pods:
        if pod.ruling == "FailJob":
            return JobEnd(False, "PodFailurePolicy", pod.message)
    failures = sum(pod.ruling in ("Count", "FailIndex") for pod in pods)
    if job.backoff_limit is not None and failures > job.backoff_limit:
        return JobEnd(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if job.active_deadline_s is not None and now >= started_at + job.active_deadline_s:
        return JobEnd(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    failed = failed_indexes(job, pods)
    if job.max_failed_indexes is not None and len(failed) > job.max_failed_indexes:
        return JobEnd(False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
    if failed and len(failed) + len(succeeded) == job.completions:
        return JobEnd(False, "FailedIndexes", "Job has failed indexes")
    return None


def _ready_at(pods: Sequence[JobPod], backoff_s: float) -> float:
    """When the next pod may start after these: of one index, or of all if they share their delay (no backoffLimitPerIndex).

    The delay grows with the failures since the last success. Ignored ones count here.
    """
    last_success = max((pod.ended_at for pod in pods if pod.ruling == "Succeeded"), default=0.0)
    failed_at = [pod.ended_at for pod in pods if pod.ruling in ("Count", "Ignore") and pod.ended_at > last_success]
    if not failed_at:
        return 0.0
    # The exponent is capped: with a large count the power would not fit a float.
    return max(failed_at) + min(backoff_s * 2.0 ** min(len(failed_at) - 1, 32), MAX_BACKOFF_S)
