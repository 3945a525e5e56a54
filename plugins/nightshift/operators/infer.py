"""The third task: JobSets compute the chunks that are missing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from nightshift.fields.text import n
from nightshift.jobset.fleet.memory import FleetMember, FleetState
from nightshift.jobset.fleet.work import Waited
from nightshift.jobset.identity import digest_name
from nightshift.operators.jobset_errors import runtime_failures
from nightshift.operators.jobset_task import JobSetTask
from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from nightshift.hooks.runtime import ReachedRuntime
    from nightshift.jobset.fleet.night import Night
    from nightshift.jobset.fleet.policy import Wanted
    from nightshift.jobset.fleet.records import JobSetEvent
    from nightshift.jobset.observation import Observation
    from nightshift.jobset.runtime import Runtime
    from nightshift.jobset.verdict.outcome import Outcome
    from nightshift.jobset.verdict.pod_ends import FailedContainer
    from nightshift.operators.lineage.facets import Lineage
    from nightshift.planner.costs.prices import Prices
    from nightshift.planner.plan import Decision
    from nightshift.run.ledger import Chunks
    from nightshift.run.names import Work

ROWS_SHOWN = 3
NOT_ONE = (
    "No chunk was done until then: {}. More time or workers help only against a wait for a machine or a download. An engine "
    "that runs and never answers hangs: the log of infer has its last lines; clear infer to start it again."
)
"""What to do about a deadline before which nothing was computed."""
ENGINES_READ = 5
"""Of a JobSet's engines, whose logs are read when it has ended: each is a request of up to 10 MiB."""
TOO_MANY = "TooManyDeadLetters"


def _trace_parent() -> dict[str, str]:
    """Airflow's own span of this task, as a variable for those that continue its trace; {} if Airflow's traces are off."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {"TRACEPARENT": carrier["traceparent"]} if carrier else {}


def jobset_name(dag_id: str, task_id: str, work: Work, generation: int) -> str:
    """The same for every task instance that wants the same work."""
    return digest_name(work.run.job, dag_id, task_id, work.prefix, generation)


class InferOperator(JobSetTask, RunOperator):
    """
    Runs the run's missing chunks as a JobSet on the deployment's runtime, deferred while its pods work.

    Only the ledger decides what is done, not how the JobSet ended. The guarantees of
    :class:`~nightshift.operators.jobset.KubernetesJobSetOperator` hold here too: there is one JobSet whatever is killed and
    repeated, disruptions use up no retry of the task, and a failing program fails it immediately, with the rows concerned.

    :param get_logs: copy the containers' logs into the task's log.
    :param job: the job as JSON, as it was when Airflow parsed its file for this process: of it, a changed ``compute.workers``
        takes effect on a run in progress. None to use only the terms.
    """

    def __init__(self, *, get_logs: bool = True, job: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.get_logs = get_logs
        self.job = job

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.run.inputs import missing_files
        from nightshift.run.manifest import load_manifest
        from nightshift.run.plan import PlanError
        from nightshift.run.sealed_objects import SealBroken
        from nightshift.run.tolerance import ToleranceExceeded

        with permanent_failures(), runtime_failures():
            plan = self.plan
            self.keep_lineage(rows=plan.rows)
            missing = self._missing()
            if missing and load_manifest(self.store, self.run) is not None:
                raise SealBroken(
                    f"{missing} of {n(plan.chunk_count, 'chunk')} of {self.run.prefix} were deleted after the run was sealed. "
                    "A sealed run is not computed again. Trigger the DAG with fresh."
                )
            if missing and (gone := missing_files(self.store, self.run, plan)):
                raise PlanError(
                    f"{len(gone)} of {n(len(plan.files), 'input file')} of {self.run.prefix} were deleted or overwritten "
                    f"(first: {gone[0]}), so the {n(missing, 'missing chunk')} cannot be computed. Trigger the DAG with fresh."
                )
            if not missing and (too_many := self._too_many_dead_letters()):
                raise ToleranceExceeded(too_many)
            if not missing:
                self.tell(f"Nothing is left to compute: {plan.chunk_count:,} of {n(plan.chunk_count, 'chunk')} committed")
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
        from nightshift.operators.lineage.facets import infer_lineage

        return infer_lineage(self.spec, self.run, self.settings, **counts)

    @cached_property
    def reached(self) -> ReachedRuntime:
        from nightshift.hooks.runtime import runtime_for

        return runtime_for(self.settings)

    @cached_property
    def runtime(self) -> Runtime:
        return self.reached.runtime

    @cached_property
    def new_trigger(self) -> Callable[..., BaseTrigger]:
        return trigger_for(self.reached, self.settings.namespace)

    @property
    def work_id(self) -> str:
        return self.run.url(self.settings.bucket)

    def jobset_name(self, generation: int) -> str:
        return jobset_name(self.dag_id, self.task_id, self.run.work(self.plan.uid), generation)

    def manifest(self, live: FleetMember, name: str) -> dict[str, Any]:
        from nightshift.jobset.manifest.render import render
        from nightshift.run.pauses import newest
        from nightshift.spec.engine_defaults import NO_HINTS

        helps = live.helps or live.profile != self.spec.compute.profile
        manifest = render(
            self.spec,
            self.run,
            self.plan,
            self.settings,
            name=name,
            profile=live.profile,
            role="helper" if helps else "owner",
            workers=live.workers or None,
            pins=self.record.pins,
            observed=self._observed(live.profile),
            hints=self.decision.hints if self.decision else NO_HINTS,
        )
        request = newest(self.store, self.run)
        return {**manifest, "spec": {**manifest["spec"], "suspend": True}} if request and request.paused else manifest

    def _observed(self, profile: str) -> dict[str, str]:
        """What the drivers' metrics say of the run that no driver can know."""
        night: dict[str, Any] = {"deadline": self.remembered().deadline}
        if (price := self._price(profile or self.spec.compute.profile)) is not None:
            night |= {"price": price, "currency": self._prices.currency}
        return {"NIGHTSHIFT_NIGHT": json.dumps(night), **(_trace_parent() if self.settings.traces else {})}

    def _price(self, profile: str) -> float | None:
        """Of a worker's machines for an hour; None if the deployment's prices do not have it."""
        from nightshift.planner.bills import machine_of

        machine = machine_of(self.spec, profile)
        price = self._prices.machines.get(machine.name)
        return None if price is None else round(price * machine.count, 6)

    @cached_property
    def _prices(self) -> Prices:
        from nightshift.planner.costs.prices import Prices, PricesError, load_prices

        try:
            return load_prices(self.settings.prices)
        except PricesError as error:
            self.log.warning("The metrics have no costs: %s", error)
            return Prices("")

    def whole(self, kept: FleetState) -> tuple[str, int]:
        return self._wanted().whole(kept)

    def relive(self, kept: FleetState, event: JobSetEvent) -> FleetState | None:
        """Applies the policy's decision. Gives up before the deadline only on a JobSet that Kueue has given up on."""
        from nightshift.jobset.fleet import fallback, policy
        from nightshift.run.pauses import newest
        from nightshift.spec import JobSpec

        members = self._names(kept.live)
        request = newest(self.store, self.run)
        file = None if self.job is None else JobSpec.model_validate(self.job).compute.workers
        wanted = replace(self._wanted(), file=file, paused=request is not None and request.paused)
        measured = [
            fallback.measured(each.profile, event.counts[name], self.night.hosts(each.profile))
            for name, each in members.items()
            if event.ending in ("starved", "disrupted")
        ]
        given_up = event.name if event.ending == "gave_up" else ""
        seen = policy.Seen(members, event.look, measured, kept.deadline - time.time(), given_up)
        change = policy.decide(wanted, kept, seen)
        if change.why:
            self.tell(f"{change.rule.value.capitalize()}: {change.why}")
        if given_up and not wanted.paused and given_up not in change.drop:
            return None
        return change.applied(kept, members, time.time())

    def _wanted(self) -> Wanted:
        from nightshift.jobset.fleet.policy import Wanted

        compute = self.spec.compute
        return Wanted(compute.profiles, self.plan.workers, self.plan.chunk_count, terms=compute.workers)

    def _names(self, members: Iterable[FleetMember]) -> dict[str, FleetMember]:
        return {self.jobset_name(each.generation): each for each in members}

    @cached_property
    def decision(self) -> Decision | None:
        """What the task plan decided; None for a run that was opened before there were decisions."""
        from nightshift.planner.decisions import load_decision

        return load_decision(self.store, self.plan.decision) if self.plan.decision else None

    @cached_property
    def night(self) -> Night:
        from nightshift.hooks.deployment import Deployment
        from nightshift.jobset.fleet.night import Night
        from nightshift.jobset.kubernetes.limits import limits_of

        # The task plan has logged whether the quota is known.
        limits = limits_of(
            self.spec,
            self.settings,
            self.run.partition,
            Deployment(self.settings).cluster,
            self.log.debug,
            self.log.debug,
        )
        speed = self.decision.speed if self.decision else None
        start_up_s = speed.start_up_s if speed else float(self.spec.compute.worker().start_seconds)
        rate = speed.rows_per_second if speed else 0.0
        return Night(
            self.spec,
            self.run,
            self.plan,
            rate,
            start_up_s,
            limits,
            price=self._price,
            currency=self._prices.currency,
        )

    def seconds(self) -> float:
        return self.spec.deadline_seconds

    def waiter(self, waited: list[Waited], deadline: float) -> BaseTrigger:
        from nightshift.operators.pause import follow_request

        follow_request(self, self.runtime, waited)
        before = self._event.before if self._event else None
        report = self._event.look if self._event else None
        names = {each.name: each.live for each in waited}
        return self.new_trigger(
            jobsets=[self._followed(each) for each in waited],
            deadline=deadline,
            owner=self.attempt_id,
            get_logs=self.get_logs,
            look=self.night.watch_terms(names, self.remembered(), report.watch if report else None).to_json(),
            before=before and {name: left for name, left in before.items() if name in names},
            **self._limits(waited, deadline),
        )

    def _followed(self, waited: Waited) -> dict[str, Any]:
        from nightshift.jobset.fleet import fallback

        pods = waited.live.size(self.plan.workers) * self.night.hosts(waited.live.profile)
        return {"name": waited.name, "uid": waited.uid, "min_running": fallback.enough(pods)}

    def _limits(self, waited: list[Waited], deadline: float) -> dict[str, Any]:
        """When to interrupt the wait to decide about the next profile, if there is one."""
        from nightshift.jobset.fleet import fallback

        if {each.live.profile for each in waited} == {self.spec.compute.profiles[-1]}:
            return {}
        return {
            "startup_timeout": min(fallback.PATIENCE_S, (deadline - time.time()) / fallback.PATIENCE_SHARE),
            "disruptions": max(fallback.DISRUPTIONS_MIN, self.plan.workers),
        }

    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        from nightshift.jobset.verdict.outcome import Ending, Outcome, classify

        outcome = classify(seen, expired=expired, starved=starved)
        missing, chunks = self._missing(), self.plan.chunk_count
        if (not missing or _gave_up(outcome)) and (too_many := self._too_many_dead_letters()):
            # Its drivers end by themselves, and the task seal would refuse the run: this task is the one at fault.
            return Outcome(Ending.APPLICATION, TOO_MANY, too_many, "", outcome.evidence)
        if not missing:
            done = "the only chunk is committed" if chunks == 1 else f"all {chunks} chunks are committed"
            if outcome.ending is not Ending.SUCCEEDED:
                done = f"{done}, so it does not matter how its pods ended ({outcome.explanation})"
            # Whatever the pods' exit codes: a success has no failed containers, and no evidence of a failure.
            return Outcome(Ending.SUCCEEDED, "ChunksCommitted", done, "Nothing to do.")
        left = f"{missing} of {n(chunks, 'chunk')} are missing"
        if outcome.ending is Ending.SUCCEEDED:
            words = f"{outcome.explanation}, but {left}: its drivers exited with 0 although work is left"
            return replace(outcome, ending=Ending.UNKNOWN, reason="ChunksMissing", explanation=words)
        if outcome.ending is Ending.DEADLINE and missing == chunks:
            outcome = replace(outcome, advice=NOT_ONE.format(_where(self)))
        rows = {each.pod: self._rows(each) for each in outcome.failed}
        shown = sorted(set(filter(None, rows.values())))[:ROWS_SHOWN]
        where = f" while it had {'; '.join(shown)}" if shown else ""
        return replace(outcome, explanation=f"{outcome.explanation}{where}; {left}")

    def has_too_many_dead_letters(self) -> bool:
        """A reason why its drivers may have ended it, by their notes."""
        return bool(self._too_many_dead_letters())

    def _too_many_dead_letters(self) -> str:
        """That the run has more dead letters than its job tolerates, and what to do; '' if it has not, as far as is noted."""
        from nightshift.operators.dead_letters import too_many

        if not self.plan.rows:
            return ""
        left = partial(_untried, self)
        return too_many(self.store, self.run, self.plan, self.spec.dead_letters, left)

    def ended(self, name: str, seen: Observation) -> None:
        """Records what no worker knows: how long its pods took to start, and which were taken away. The task seal reads it."""
        from nightshift.jobset.fleet.shown import show_end
        from nightshift.jobset.verdict.starts import starts_of, taken_of
        from nightshift.run.observed.pod_startup import STAGES, Starts, save_starts
        from nightshift.triggers.night_gauges import send

        try:
            starts = starts_of(seen)
            for stage in STAGES:
                slowest = max((each[stage] for each in starts.values() if stage in each), default=None)
                tags = {"nightshift_job": self.run.job, "nightshift_run": self.run.run_id, "stage": stage}
                send({"start_up_seconds": slowest}, tags)
            save_starts(self.store, self.run, name, Starts(_with_engines(self.runtime, name, starts), taken_of(seen)))
        except Exception as error:
            self.log.warning("How long the pods of JobSet %s took to start is not recorded: %r", name, error)
        show_end(self.runtime, self.store, self.run, name, seen, self.log)

    def describe(self, failed: FailedContainer) -> str:
        rows = self._rows(failed)
        return f" ({rows})" if rows else ""

    def result(self, name: str, seen: Observation) -> dict[str, Any]:
        return {"jobset": name}

    def _rows(self, failed: FailedContainer) -> str:
        """The home range of its worker, in rows; '' for a worker that the plan lacks."""
        index = failed.index if self.night.hosts(self.spec.compute.profile) == 1 else failed.job_index
        if not 0 <= index < self.plan.workers or not (chunks := self.plan.shard(index)):
            return ""
        first, last = self.plan.chunk_range(chunks[0]).start, self.plan.chunk_range(chunks[-1]).stop - 1
        return f"rows {first} to {last}"

    def _missing(self) -> int:
        return self.plan.chunk_count - len(_committed(self)) if self.plan.rows else 0


def _committed(task: InferOperator) -> Chunks:
    from nightshift.run.ledger import Ledger
    from nightshift.store import ObjectStorage

    return asyncio.run(Ledger(ObjectStorage(task.store), task.run, task.plan).committed())


def _with_engines(runtime: Runtime, jobset: str, starts: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """With what the logs of some engines say of their own start. starts: seconds of each stage, by pod."""
    from nightshift.jobset.manifest.constants import SERVER
    from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable
    from nightshift.jobset.verdict.engine_start import engine_start
    from nightshift.run.observed.pod_startup import with_engine

    found = dict(starts)
    for pod in [pod for pod, stages in starts.items() if "weights" in stages][:ENGINES_READ]:
        with suppress(JobSetNotFound, RequestRefused, RuntimeUnavailable):
            found[pod] = with_engine(starts[pod], engine_start(runtime.logs(jobset, pod, SERVER)))
    return found


def _where(task: InferOperator) -> str:
    """Where its pods were seen last, and since when."""
    from nightshift.run.observed.pods_kept import load
    from nightshift.run.observed.pods_now import Stage
    from nightshift.status.fleets import stages

    at = [each for each in stages(load(task.store, task.run)) if each.stage is not Stage.ENDED]
    said = [f"{n(each.pods, 'pod')} waiting for {each.waits_for or each.stage} since {each.since}" for each in at]
    return ", ".join(said) or "no pod was seen"


def _untried(task: InferOperator) -> int:
    """Rows without a result."""
    return sum(len(task.plan.chunk_range(chunk)) for chunk in _committed(task).missing(range(task.plan.chunk_count)))


def _gave_up(outcome: Outcome) -> bool:
    """Whether drivers ended because another attempt cannot help."""
    from nightshift import exits

    return any(each.exit_code == exits.CONFIG for each in outcome.failed)


def trigger_for(reached: ReachedRuntime, namespace: str) -> Callable[..., BaseTrigger]:
    """Makes what waits there; takes jobsets, deadline, owner, get_logs and limits as keywords."""
    if reached.is_gke:
        from nightshift.triggers.kubernetes_engine import GKEJobSetTrigger as Trigger
    else:
        from nightshift.triggers.jobset import KubernetesJobSetTrigger as Trigger  # type: ignore[assignment]
    return partial(Trigger, namespace=namespace, **reached.connection)
