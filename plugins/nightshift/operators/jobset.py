"""The third task: one JobSet computes the chunks that are missing."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from nightshift.operators.run import RunOperator, permanent_failures
from nightshift.triggers.jobset import JobSetTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.jobset.outcome import Outcome
    from nightshift.jobset.runtime import JobSetStatus, PodStatus, Runtime
    from nightshift.lineage.facets import Lineage
    from nightshift.plan import Plan
    from nightshift.run import RunRef

STATE_KEY: Final = "jobset"
LOG_LINES: Final = {"Failed": 40, "Succeeded": 3}
"""How many of a container's last lines go into the task's log, by the pod's phase."""
LOG_PODS: Final = 8


class JobSetFailed(AirflowException):
    """The JobSet ended and chunks are missing. Another attempt computes only those."""


class JobSetHopeless(AirflowFailException):
    """The JobSet ended in a way that another attempt would repeat, or the job's deadline passed."""


def jobset_name(dag_id: str, task_id: str, run: RunRef, generation: int) -> str:
    """The JobSet of one attempt: the same for every task instance that wants the same work, at most 41 characters.

    JobSet, Job and pod names share Kubernetes' 63 characters; what is left is for the Job's name, indexes and a suffix.
    """
    digest = hashlib.sha256(f"{dag_id}\n{task_id}\n{run.prefix}\n{generation}".encode()).hexdigest()[:10]
    return f"{run.job[:30].rstrip('-')}-{digest}"


class KubernetesJobSetOperator(RunOperator):
    """
    Runs the run's missing chunks as one JobSet on the deployment's runtime, deferred while its pods work.

    Safe to kill and repeat at any point: the JobSet's name is a function of the run and of how many attempts have ended,
    so a repeat finds the JobSet that is there and waits for it; and what counts as done is the ledger alone. A killed or
    drained worker leaves the JobSet alone; a person who fails or clears the waiting task deletes it.

    :param poll_interval: seconds between two questions about the JobSet.
    """

    def __init__(self, *, poll_interval: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.poll_interval = poll_interval

    @cached_property
    def runtime(self) -> Runtime:
        from nightshift.hooks.jobset import runtime_for

        return runtime_for(self.settings)

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.seal import load_manifest

        with permanent_failures(), runtime_failures():
            plan = self.plan
            self.keep_lineage(rows=plan.rows)
            if load_manifest(self.store, self.run) is not None:
                self.log.info("%s is sealed: nothing is left to compute", self.run.prefix)
                return {"jobset": None}
            missing = self._missing(plan)
            name, status = self._find(context)
            if not missing:
                self.log.info("All %d chunks are committed: nothing is left to compute", plan.chunk_count)
                if status is not None:
                    self._close(context, status, self._outcome(status, plan))
                return {"jobset": None}
            if status is not None and status.finished:
                # An earlier attempt was killed before it could judge its JobSet: that one is judged now, then comes the next.
                self._close(context, status, self._outcome(status, plan))
                name, status = self._find(context)
            if status is None:
                self._submit(context, name, plan)
            else:
                self._adopt(status)
        trigger = JobSetTrigger(name=name, deadline=self._deadline(context), poll_interval=self.poll_interval)
        raise TaskDeferred(trigger=trigger, method_name="execute_complete")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the JobSet has ended: keeps its last words, deletes it, and judges by the ledger."""
        from nightshift.jobset.outcome import Ending
        from nightshift.jobset.runtime import JobSetNotFound

        name = event["name"]
        with permanent_failures(), runtime_failures():
            try:
                status = self.runtime.status(name)
            except JobSetNotFound:
                status = None
            plan = self.plan
            self.keep_lineage(rows=plan.rows)
            outcome = self._outcome(status, plan, expired=event["ending"] == "deadline")
            self._close(context, status, outcome)
        if outcome.ending is not Ending.DONE:
            raise (JobSetFailed if outcome.worth_retrying else JobSetHopeless)(f"JobSet {name}: {outcome.explanation}")
        return {"jobset": name}

    def lineage(self, **counts: Any) -> Lineage:
        from nightshift.lineage.facets import infer_lineage

        return infer_lineage(self.spec, self.run, self.settings, **counts)

    def _find(self, context: Context) -> tuple[str, JobSetStatus | None]:
        """The name of this attempt's JobSet, and its status if there is one."""
        from nightshift.jobset.runtime import JobSetNotFound

        name = jobset_name(self.dag_id, self.task_id, self.run, self._state(context)["generation"])
        try:
            return name, self.runtime.status(name)
        except JobSetNotFound:
            return name, None

    def _submit(self, context: Context, name: str, plan: Plan) -> None:
        from nightshift.jobset.manifest import render
        from nightshift.jobset.runtime import JobSetExists

        # The deadline is kept before the JobSet is there: whoever adopts it after a crash keeps to the same one.
        self._keep(context, deadline=self._deadline(context))
        try:
            self.runtime.submit(render(self.spec, self.run, plan, self.settings, name=name))
        except ValueError as error:
            raise JobSetHopeless(f"JobSet {name} cannot be submitted: {error}") from error
        except JobSetExists:
            # Somebody with the same work was faster, or the reply to our own first try was lost.
            self._adopt(self.runtime.status(name))
        else:
            self.log.info("Submitted JobSet %s with %d workers", name, plan.workers)

    def _adopt(self, status: JobSetStatus) -> None:
        """Waits for a JobSet that is there already. Raises JobSetHopeless when it works on another run."""
        from nightshift.jobset.manifest import RUN_URL_ANNOTATION

        ours, theirs = self.run.url(self.settings.bucket), status.annotations.get(RUN_URL_ANNOTATION)
        if theirs != ours:
            raise JobSetHopeless(f"JobSet {status.name} works on {theirs}, not on {ours}. Find out whose it is, or delete it.")
        self.log.info("JobSet %s is there already and is %s: waiting for it", status.name, status.phase)

    def _outcome(self, status: JobSetStatus | None, plan: Plan, *, expired: bool = False) -> Outcome:
        from nightshift.jobset.outcome import classify

        return classify(status, missing=self._missing(plan), chunks=plan.chunk_count, expired=expired)

    def _close(self, context: Context, status: JobSetStatus | None, outcome: Outcome) -> None:
        """Ends an attempt: logs first, then deletion, then the next attempt's number."""
        from nightshift.jobset.outcome import Ending

        self.log.info("%s: %s", status.name if status else "The JobSet", outcome.explanation)
        if status is not None:
            self._keep_logs(status)
            self.runtime.stop(status.name)
        if outcome.ending not in (Ending.DONE, Ending.LOST):
            self._keep(context, generation=self._state(context)["generation"] + 1)

    def _keep_logs(self, status: JobSetStatus) -> None:
        """Copies the pods' last lines into the task's log; those that failed first. Never fails the task."""
        pods = sorted(status.pods, key=lambda pod: (pod.phase != "Failed", pod.index, pod.attempt))
        self.log.info("JobSet %s is %s %s %s", status.name, status.phase, status.reason, status.message)
        for pod in pods[:LOG_PODS]:
            self.log.info("Pod %s (index %d, attempt %d) is %s %s", pod.name, pod.index, pod.attempt, pod.phase, pod.reason)
            for container, lines in self._last_lines(status.name, pod):
                self.log.info("Last lines of %s in %s:\n%s", container, pod.name, "\n".join(lines))
        if len(pods) > LOG_PODS:
            self.log.info("%d more pods are not shown", len(pods) - LOG_PODS)

    def _last_lines(self, name: str, pod: PodStatus) -> Iterator[tuple[str, list[str]]]:
        for container in pod.containers:
            try:
                lines = deque(self.runtime.logs(name, pod.name, container.name), maxlen=LOG_LINES.get(pod.phase, 10))
            except Exception as error:  # Logs help a person; their loss must not turn done work into a failure.
                self.log.warning("The log of %s in %s cannot be read: %r", container.name, pod.name, error)
            else:
                yield container.name, list(lines)

    def _missing(self, plan: Plan) -> int:
        from nightshift.ledger import Ledger
        from nightshift.store import ObjectStorage

        if plan.rows == 0:
            return 0
        committed = asyncio.run(Ledger(ObjectStorage(self.store), self.run, plan).committed())
        return plan.chunk_count - len(committed)

    def _deadline(self, context: Context) -> float:
        """Unix time. One deadline for all attempts; one that has passed belonged to attempts that were cleared since."""
        kept = self._state(context)["deadline"]
        return float(kept) if kept > time.time() else time.time() + self.spec.deadline_seconds

    def _state(self, context: Context) -> dict[str, Any]:
        kept = context["task_state_store"].get(f"{STATE_KEY}:{self.run.prefix}", {})
        return {"generation": 1, "deadline": 0.0, **(kept if isinstance(kept, dict) else {})}

    def _keep(self, context: Context, **changes: Any) -> None:
        context["task_state_store"].set(f"{STATE_KEY}:{self.run.prefix}", {**self._state(context), **changes})


@contextmanager
def runtime_failures() -> Iterator[None]:
    """Says what an unreachable runtime means for the task: a retry, which finds the JobSet where it is."""
    from nightshift.jobset.runtime import RuntimeUnavailable

    try:
        yield
    except RuntimeUnavailable as error:
        raise JobSetFailed(f"The runtime cannot be asked ({error}). The JobSet, if there is one, works on.") from error
