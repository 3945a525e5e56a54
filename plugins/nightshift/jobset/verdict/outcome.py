"""What a JobSet's objects at one moment mean: one ending, why, what to do next, and the evidence. Pure.

The first match wins:

1. The JobSet is gone: LOST. It is complete: SUCCEEDED, which means that its pods ended well, not that their work is there.
2. It has failed. A Job exceeded its time: DEADLINE. Else the pods that decided (`nightshift.jobset.verdict.deciding_pods`): one
   program that failed by itself: APPLICATION; else a pod that was taken away: PREEMPTED; else UNKNOWN, which stays unknown.
3. It is being deleted: LOST.
4. Kueue will never admit it again: DEADLINE if its execution time is used up, STARTUP if it was refused.
5. The caller will not wait longer for pods to start (`starved`): APPLICATION if waiting does not help (an image that is not
   available, a sidecar that always exits), else STARTUP.
6. RUNNING. This includes preemption by Kueue, which suspends the JobSet, keeps its Jobs, and resumes it by itself.

After the caller's deadline (`expired`), nothing is tried again: LOST, PREEMPTED, STARTUP, RUNNING and UNKNOWN become DEADLINE
and keep their explanations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from nightshift import exits
from nightshift.fields.text import n
from nightshift.jobset.observation import Observation, condition
from nightshift.jobset.verdict import text
from nightshift.jobset.verdict.cannot_start import WHAT_TO_DO, CannotStart
from nightshift.jobset.verdict.deciding_pods import deciding
from nightshift.jobset.verdict.pending import LATER, waiting_of
from nightshift.jobset.verdict.pod_ends import EndCause, FailedContainer, PodEnd, end_of, stopped_by_jobs
from nightshift.jobset.verdict.text import EVIDENCE_MAX, fact, shorten

CANNOT_START: Final = "EngineCannotStart"
KUEUE_TIME_OVER: Final = "MaximumExecutionTimeExceeded"

_MORE_TIME: Final = "Set a later deadline, or use more or faster workers; what is committed is kept."
_LIMITS: Final = ("Evicted", "DeadlineExceeded")
"""A kubelet's words for a pod that went beyond a limit of its own."""
_AT_ONCE: Final = "Run it again now: it continues from what is committed."


class Ending(StrEnum):
    """How a JobSet ended, or that it has not."""

    SUCCEEDED = "succeeded"
    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    """Only because pods were taken away: the next one continues where this one stopped."""
    STARTUP = "startup"
    """Its pods were not placed, or its containers did not start, within the caller's limit."""
    APPLICATION = "application"
    """A program failed, and nothing took its pod away."""
    LOST = "lost"
    """It was deleted from outside."""
    UNKNOWN = "unknown"
    RUNNING = "running"


@dataclass(frozen=True)
class Outcome:
    """An ending and what follows from it.

    reason: one word for machines, Kubernetes' own if it has one (TerminationByKubelet, OOMKilled, FailedIndexes).
    explanation: one sentence, without its full stop. advice: what to do next, one sentence.
    evidence: lines "kind/name: fact", at most EVIDENCE_MAX.
    failed: the containers that failed by themselves, if the ending is APPLICATION or DEADLINE.
    resumable: by the exit code of each, another attempt can continue, so APPLICATION is worth a retry.
    unknown: words of kubelets for ends of its pods that nightshift does not know, and by which it may have judged wrongly.
    """

    ending: Ending
    reason: str
    explanation: str
    advice: str
    evidence: tuple[str, ...] = ()
    failed: tuple[FailedContainer, ...] = ()
    resumable: bool = False
    unknown: tuple[str, ...] = ()

    @property
    def resumes_at_once(self) -> bool:
        """Nothing was wrong with the work: another JobSet may follow at once, without using up a retry."""
        return self.ending in (Ending.PREEMPTED, Ending.LOST)


def classify(
    observation: Observation,
    *,
    expired: bool = False,
    starved: bool = False,
    resume_codes: Collection[int] = frozenset({exits.RESUME}),
    permanent_codes: Collection[int] = frozenset({exits.CONFIG}),
) -> Outcome:
    """expired: the caller's deadline passed before it saw an end. starved: pods did not start within its limit.

    resume_codes: the program's codes for work that is left after SIGTERM. permanent_codes: its codes for what trying again
    cannot help.
    """
    judge = _Judge(observation, resume_codes, permanent_codes)
    outcome = replace(judge.judge(starved=starved), unknown=judge.unknown)
    if expired and outcome.ending not in (Ending.SUCCEEDED, Ending.DEADLINE, Ending.APPLICATION):
        explanation = f"the deadline passed; last seen: {outcome.explanation}"
        return replace(outcome, ending=Ending.DEADLINE, reason="DeadlineExceeded", explanation=explanation, advice=_MORE_TIME)
    return outcome


def cannot_start_outcome(stuck: CannotStart, evidence: tuple[str, ...]) -> Outcome:
    """Of a JobSet whose engine cannot start: another attempt would not either."""
    failed: tuple[FailedContainer, ...] = ()
    if (words := stuck.words) is not None:
        failed = (FailedContainer(stuck.pod, 0, 0, words.container, words.exit_code, words.reason, "", lines=words.lines),)
    return Outcome(Ending.APPLICATION, CANNOT_START, stuck.explanation, WHAT_TO_DO[stuck.cause], evidence, failed)


def over_in_its_queue(workload: Mapping[str, Any] | None) -> Outcome | None:
    """The end of a JobSet whose Workload Kueue itself has deactivated: waiting does not bring it back. None for any other."""
    evicted = condition(workload, "Evicted") if workload else None
    if not workload or not evicted or workload.get("spec", {}).get("active", True):
        return None
    evidence = (f"workload/{workload['metadata']['name']}: {fact(evicted)}",)
    cause = evicted["reason"].removeprefix("Deactivated").removeprefix("DueTo")
    if cause == KUEUE_TIME_OVER:
        explanation = "the JobSet used up its max-exec-time-seconds in Kueue"
        return Outcome(Ending.DEADLINE, cause, explanation, _MORE_TIME, evidence)
    if cause:
        explanation = f"Kueue gave up on the JobSet: {shorten(evicted.get('message', '')) or cause}"
        return Outcome(Ending.STARTUP, cause, explanation, LATER, evidence)
    # A user deactivated it and can activate it again: it waits as long as the caller allows.
    return None


class _Judge:
    """An observation, with its pods' ends read once."""

    def __init__(self, seen: Observation, resume: Collection[int], permanent: Collection[int]) -> None:
        self._seen = seen
        self._resume = resume
        self._permanent = permanent
        codes = {"resume_codes": resume, "permanent_codes": permanent}
        stopped = stopped_by_jobs(seen.events)
        self._ends = [end_of(pod, **codes, stopped=stopped) for pod in seen.pods]

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(sorted({end.reason for end in self._ends if end.unknown}))

    def judge(self, *, starved: bool) -> Outcome:
        jobset = self._seen.jobset
        if jobset is None:
            return Outcome(Ending.LOST, "NotFound", "the JobSet no longer exists: a user or a program deleted it", _AT_ONCE)
        name = jobset["metadata"]["name"]
        if done := condition(jobset, "Completed"):
            evidence = (f"jobset/{name}: {fact(done)}",)
            return Outcome(Ending.SUCCEEDED, done["reason"], f"JobSet {name} is complete", "Nothing to do.", evidence)
        if failed := condition(jobset, "Failed"):
            return self._failed(name, failed)
        if deleted := jobset["metadata"].get("deletionTimestamp"):
            evidence = (f"jobset/{name}: deletionTimestamp {deleted}",)
            return Outcome(Ending.LOST, "Deleted", f"JobSet {name} is being deleted from outside", _AT_ONCE, evidence)
        return over_in_its_queue(self._seen.workload) or self._not_finished(name, starved=starved)

    def _failed(self, name: str, failed: Mapping[str, Any]) -> Outcome:
        jobs = [(job, why) for job in self._seen.jobs if (why := condition(job, "Failed"))]
        raw = (f"jobset/{name}: {fact(failed)}", *(_job_line(job, why) for job, why in jobs))
        reason = jobs[0][1]["reason"] if jobs else failed["reason"]
        decided = deciding(self._seen, self._ends)
        own = [end for end in decided if end.cause is EndCause.FAILED]
        taken = [end for end in decided if end.cause is not EndCause.FAILED]
        if late := [job["metadata"]["name"] for job, why in jobs if why["reason"] == "DeadlineExceeded"]:
            explanation = f"Job {late[0]} was active longer than its activeDeadlineSeconds"
            return Outcome(Ending.DEADLINE, "DeadlineExceeded", explanation, _MORE_TIME, _evidence(raw, own), _containers(own))
        if own:
            return self._application(reason, own, taken, raw)
        if taken:
            causes = Counter(end.reason for end in taken)
            listed = ", ".join(f"{cause} ({n(count, 'pod')})" for cause, count in causes.items())
            explanation = f"JobSet {name} failed ({reason}) only because pods were taken away or refused: {listed}"
            return Outcome(Ending.PREEMPTED, causes.most_common(1)[0][0], explanation, _AT_ONCE, _evidence(raw, taken))
        return Outcome(
            Ending.UNKNOWN,
            reason,
            f"JobSet {name} failed ({shorten(failed.get('message', '')) or reason}), and no pod says why",
            "Look at the evidence and at the namespace's events; another attempt may or may not end the same way.",
            _evidence(raw, self._ends),
        )

    def _application(self, reason: str, own: Sequence[PodEnd], taken: Sequence[PodEnd], raw: Sequence[str]) -> Outcome:
        containers = _containers(own)
        hopeless = [each for each in containers if each.exit_code in self._permanent]
        memory = [each for each in containers if each.reason == "OOMKilled"]
        if hopeless:
            advice = f"Not retryable: correct the job. {text.look_at(hopeless[0])}"
        elif memory:
            advice = f"Give container {memory[0].container} more memory, or less work at once."
        elif limited := [end for end in own if end.message]:
            name, goes_beyond = limited[0].name, limited[0].reason in _LIMITS
            raised = f"Raise that limit for pod {name}, or make it use less."
            advice = raised if goes_beyond else f"Correct what pod {name} asks of its node."
        elif containers:
            advice = text.look_at(containers[0])
        else:
            advice = f"Nothing says why pod {own[0].name} failed; look at the namespace's events."
        # Later ones may have been stopped by the Job because of this failure.
        earlier = [end for end in taken if end.since < max(end.since for end in own)]
        besides = f"; before that, {n(len(earlier), 'pod')} had been taken away" if earlier else ""
        return Outcome(
            Ending.APPLICATION,
            "OOMKilled" if memory and len(memory) == len(containers) else reason,
            f"{text.who(own, self._seen.jobs)} failed: {text.why(own, self._resume, self._permanent)}{besides}",
            advice,
            _evidence(raw, [*own, *earlier]),
            containers,
            resumable=bool(containers) and all(each.exit_code in self._resume for each in containers),
        )

    def _not_finished(self, name: str, *, starved: bool) -> Outcome:
        waiting = waiting_of(self._seen, self._ends)
        if waiting is None:
            counts = Counter(end.cause for end in self._ends)
            states = ", ".join(f"{counts[cause]} {cause}" for cause in EndCause if counts[cause]) or "none yet"
            over = [end for end in self._ends if end.cause not in (EndCause.WAITING, EndCause.RUNNING, EndCause.SUCCEEDED)]
            return Outcome(Ending.RUNNING, "Running", f"JobSet {name} runs; its pods: {states}", "Wait.", _evidence((), over))
        explanation, evidence = f"{waiting.subject}: {waiting.words}", waiting.evidence[:EVIDENCE_MAX]
        if not starved:
            return Outcome(Ending.RUNNING, waiting.reason, explanation, "Wait.", evidence)
        ending = Ending.APPLICATION if waiting.broken else Ending.STARTUP
        return Outcome(ending, waiting.reason, explanation, waiting.advice, evidence, waiting.failed)


def _containers(ends: Sequence[PodEnd]) -> tuple[FailedContainer, ...]:
    return tuple(container for end in ends for container in end.failed)


def _job_line(job: Mapping[str, Any], why: Mapping[str, Any]) -> str:
    failed = job.get("status", {}).get("failedIndexes")
    return f"job/{job['metadata']['name']}: {fact(why)}" + (f", failedIndexes {failed}" if failed else "")


def _evidence(raw: Sequence[str], ends: Sequence[PodEnd]) -> tuple[str, ...]:
    return (*raw, *(text.line(end) for end in ends))[:EVIDENCE_MAX]
