"""The third task: JobSets compute the chunks that are missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nightshift.jobset.identity import digest_name
from nightshift.operators.jobset_errors import runtime_failures
from nightshift.operators.jobset_memory import Kept, Live
from nightshift.operators.jobset_task import JobSetTask
from nightshift.operators.jobset_work import Waited, attempt_of
from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from nightshift.jobset import fallback
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.runtime import Runtime
    from nightshift.jobset.verdict.outcome import Outcome
    from nightshift.jobset.verdict.pod_ends import FailedContainer
    from nightshift.lineage.facets import Lineage
    from nightshift.operators.deployment import Deployment
    from nightshift.run.names import RunRef

ROWS_SHOWN = 3


def jobset_name(dag_id: str, task_id: str, run: RunRef, generation: int) -> str:
    """The same for every task instance that wants the same work."""
    return digest_name(run.job, dag_id, task_id, run.prefix, generation)


class InferOperator(JobSetTask, RunOperator):
    """
    Runs the run's missing chunks as a JobSet on the deployment's runtime, deferred while its pods work.

    Only the ledger decides what is done, not how the JobSet ended. The guarantees of
    :class:`~nightshift.operators.jobset.KubernetesJobSetOperator` hold here too: there is one JobSet whatever is killed and
    repeated, disruptions use up no retry of the task, and a failing program fails it immediately, with the rows concerned.

    :param get_logs: copy the containers' logs into the task's log.
    """

    def __init__(self, *, get_logs: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.get_logs = get_logs

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.run.seal import load_manifest

        with permanent_failures(), runtime_failures():
            plan = self.plan
            self.keep_lineage(rows=plan.rows)
            if load_manifest(self.store, self.run) is not None:
                self.log.info("%s is sealed: nothing is left to compute", self.run.prefix)
                return {"jobset": None}
            if not self._missing():
                self.log.info("All %d chunks are committed: nothing is left to compute", plan.chunk_count)
                self.drop_jobsets(context)
                return {"jobset": None}
            result: dict[str, Any] = self.run_jobset(context)
            return result

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        with permanent_failures():
            self.keep_lineage(rows=self.plan.rows)
            result: dict[str, Any] = self.complete(context, event)
            return result

    def on_kill(self) -> None:
        self.end_on_kill()

    def lineage(self, **counts: Any) -> Lineage:
        from nightshift.lineage.facets import infer_lineage

        return infer_lineage(self.spec, self.run, self.settings, **counts)

    @cached_property
    def deployment(self) -> Deployment:
        from nightshift.operators.deployment import deployment_for

        return deployment_for(self.settings)

    @cached_property
    def runtime(self) -> Runtime:
        return self.deployment.runtime

    def work(self, context: Context) -> str:
        return self.run.url(self.settings.bucket)

    def jobset_name(self, context: Context, generation: int) -> str:
        return jobset_name(self.dag_id, self.task_id, self.run, generation)

    def manifest(self, context: Context, live: Live, name: str) -> dict[str, Any]:
        from nightshift.jobset.manifest.render import render
        from nightshift.run.pauses import newest

        helps = live.profile != self.spec.compute.profile
        manifest = render(
            self.spec,
            self.run,
            self.plan,
            self.settings,
            name=name,
            profile=live.profile,
            role="helper" if helps else "owner",
            pins=self.pins,
        )
        wish = newest(self.store, self.run)
        return {**manifest, "spec": {**manifest["spec"], "suspend": True}} if wish and wish.paused else manifest

    def first_profile(self) -> str:
        return self.spec.compute.profile

    def relive(self, context: Context, kept: Kept, event: Mapping[str, Any]) -> tuple[Live, ...] | None:
        """Falls back by the rule of `nightshift.jobset.fallback`. Never gives up before the deadline."""
        from nightshift.jobset import fallback

        measured = [self._measured(context, live, event["counts"]) for live in kept.live]
        decision = fallback.decide(self.spec.compute.profiles, measured, left_s=kept.deadline - time.time())
        self.log.info("Falling back: %s; %s", decision.step.value, decision.why)
        stay = tuple(live for live in kept.live if live.profile != decision.drop)
        return (*stay, Live(kept.next, decision.submit)) if decision.submit else stay

    def _measured(self, context: Context, live: Live, counts: Mapping[str, Any]) -> fallback.Measured:
        from nightshift.jobset import fallback

        count = dict(counts[self.jobset_name(context, live.generation)])
        lost = count["disruptions"] * fallback.START_S
        worked = count.pop("worked_s")
        return fallback.Measured(live.profile, **count, cost_s=fallback.START_S, useful_s=max(0.0, worked - lost))

    def seconds(self) -> float:
        return self.spec.deadline_seconds

    def waiter(self, context: Context, waited: list[Waited], deadline: float) -> BaseTrigger:
        self._follow_wish(waited)
        return self.deployment.trigger(
            jobsets=[{"name": each.name, "uid": each.uid} for each in waited],
            deadline=deadline,
            owner=attempt_of(context),
            get_logs=self.get_logs,
            **self._limits(waited, deadline),
        )

    def _follow_wish(self, waited: list[Waited]) -> None:
        """Pauses the JobSets of a run that a person has paused, or resumes them. The deadline stays where it is."""
        from nightshift.jobset.pausing import apply_to
        from nightshift.run.pauses import newest

        if (wish := newest(self.store, self.run)) is None:
            return
        if wish.paused:
            self.log.warning("The run is %s: its JobSets are suspended until somebody resumes it", wish)
        for each in waited:
            if each.seen.jobset is not None:
                apply_to(self.runtime, each.name, wish, each.seen.jobset)

    def _limits(self, waited: list[Waited], deadline: float) -> dict[str, Any]:
        """When to interrupt the wait to decide about the next profile; never, if there is no next profile."""
        from nightshift.jobset import fallback

        last = waited[-1].live.profile == self.spec.compute.profiles[-1] and len(waited) == 1
        if last or not self.deployment.has_profiles:
            return {}
        return {
            "startup_timeout": min(fallback.PATIENCE_S, (deadline - time.time()) / fallback.PATIENCE_SHARE),
            "min_running": fallback.enough(self.plan.workers * self._hosts(waited[0].live.profile)),
            "disruptions": max(fallback.DISRUPTIONS_MIN, self.plan.workers),
        }

    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        from nightshift.jobset.verdict.outcome import Ending, Outcome, classify

        outcome = classify(seen, expired=expired, starved=starved)
        missing, chunks = self._missing(), self.plan.chunk_count
        if not missing:
            done = f"all {chunks} chunks are committed"
            # Whatever the pods' exit codes were: a success has no failed containers.
            return Outcome(Ending.SUCCEEDED, "ChunksCommitted", done, "Nothing to do.", outcome.evidence)
        left = f"{missing} of {chunks} chunks are missing"
        if outcome.ending is Ending.SUCCEEDED:
            words = f"{outcome.explanation}, but {left}: its drivers exited with 0 although work is left"
            return replace(outcome, ending=Ending.UNKNOWN, reason="ChunksMissing", explanation=words)
        rows = {each.pod: self._rows(each) for each in outcome.failed}
        told = sorted(set(filter(None, rows.values())))[:ROWS_SHOWN]
        where = f" while it had {'; '.join(told)}" if told else ""
        return replace(outcome, explanation=f"{outcome.explanation}{where}; {left}")

    def ended(self, name: str, seen: Observation) -> None:
        """Keeps how long its pods took to start, which no worker can know: the task seal adds it to what the run measured."""
        from nightshift.jobset.verdict.starts import starts_of
        from nightshift.run.starts import Starts, save_starts

        try:
            save_starts(self.store, self.run, name, Starts(starts_of(seen)))
        except Exception as error:
            self.log.warning("How long the pods of JobSet %s took to start is not recorded: %r", name, error)

    def describe(self, failed: FailedContainer) -> str:
        rows = self._rows(failed)
        return f" ({rows})" if rows else ""

    def result(self, context: Context, name: str, seen: Observation) -> dict[str, Any]:
        return {"jobset": name}

    def _hosts(self, profile: str) -> int:
        return self.spec.compute.worker(profile).hosts

    def _rows(self, failed: FailedContainer) -> str:
        """The home range of its worker, in rows; '' for a worker that the plan lacks."""
        index = failed.index if self._hosts(self.spec.compute.profile) == 1 else failed.job_index
        if not 0 <= index < self.plan.workers or not (chunks := self.plan.shard(index)):
            return ""
        first, last = self.plan.chunk_range(chunks[0]).start, self.plan.chunk_range(chunks[-1]).stop - 1
        return f"rows {first} to {last}"

    def _missing(self) -> int:
        from nightshift.run.ledger import Ledger
        from nightshift.store import ObjectStorage

        if self.plan.rows == 0:
            return 0
        committed = asyncio.run(Ledger(ObjectStorage(self.store), self.run, self.plan).committed())
        return self.plan.chunk_count - len(committed)
