"""The first task: finds the partition, checks the job, and opens the run."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from nightshift.fields.text import n
from nightshift.formats import XCOM
from nightshift.operators.bigquery_jobs import SHORT_WAIT_S
from nightshift.operators.due_time import due
from nightshift.operators.failures import Entry, NightFailed
from nightshift.operators.file_periods import began_by_files, periods_of_events, start_run, within_reach
from nightshift.operators.params import only_params
from nightshift.operators.partition import has_run, left_out, not_over, partition_of, why
from nightshift.operators.run import RunOperator, keep_skip, permanent_failures
from nightshift.operators.workers_rights import check_workers
from nightshift.spec import periods

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.planner.plan import Decision
    from nightshift.run.names import RunRef
    from nightshift.run.order import Counts
    from nightshift.run.pins import Pins
    from nightshift.run.plan import ExportedSource
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


def _began(context: Context) -> datetime:
    """When the DAG run began."""
    began = context["dag_run"].start_date
    if began is None:
        raise NightFailed("The DAG run has no start date. Trigger the DAG again.", Entry.UNEXPECTED)
    return began.astimezone(UTC)


def loose_ends(spec: JobSpec, pins: Pins, settings: Settings) -> Iterator[str]:
    """Warnings: what may change its meaning while the run is open, and settings that the run does not follow."""
    from nightshift.jobset.manifest.server import image_setting, pinned_image
    from nightshift.run.pins import why_unpinned

    if pins.commit is None and pins.weights is None:
        why = why_unpinned(spec) or "HF_HUB_OFFLINE was set when the run was opened"
        yield (
            "Write a commit (40 hex digits) as model.revision, so that all pods load the same model. "
            f"The revision {spec.model.revision!r} is not pinned to a commit: {why}. "
            f"If {spec.model.uri} moves while the run is open, pods may load different models."
        )
    if settings.local_folder:
        return  # It has no images.
    for name in sorted({image_setting(spec.compute.worker(profile), settings) for profile in spec.compute.profiles}):
        now, variable = getattr(settings, name), f"NIGHTSHIFT_{name.upper()}"
        image = pinned_image(pins, name) or now
        if "@sha256:" not in image:
            yield (
                f"Set {variable} to NAME@sha256:DIGEST; later runs use it. "
                f"The engine's image {image} is named by a tag, which can be pushed again while the run is open."
            )
        if image != now:
            yield (
                f"Trigger with fresh to use the engine's image {now} ({variable}). "
                f"The run keeps the engine's image {image}, with which it was opened."
            )


def _only(context: Context, name: str) -> None:
    """Raises NightFailed if another param conflicts with this one."""
    asked = [each for each in ("fresh", "republish", "redo") if context["params"].get(each)]
    if asked != [name]:
        raise NightFailed(
            f"The params {' and '.join(asked)} are set together. Set one: fresh computes all rows again, republish shows an "
            "old run again, redo computes only rows without an answer.",
            Entry.WRONG_PARAM,
        )


class PlanOperator(RunOperator):
    """
    Checks the job against the warehouse, freezes it into a run, counts its rows, and decides how many workers compute them.

    Returns ``{version, written_by, run_prefix, run_id, partition, rows, asked_at, spec, decision, planned}``, from which every
    later task knows the run and its terms. decision: the path of what was decided (`nightshift.planner.decisions`); None for a
    run that is planned already. planned: its reasons, in words. A run that cannot end in time fails here, with ways out, before
    anything is exported and any accelerator started.

    A scheduled run exists from midnight on; the task waits in the triggerer until the run is due by the job's cron. Scheduled
    runs and backfills skip the days that the cron leaves out. The run of a period shorter than a day is due at once; if files
    have started it, the asset's event names its period.

    A day without rows may get some later: once its query has rows, the next generation of its run is opened. With the param
    ``republish``, the sealed run that it names is shown again, under the terms that the job has now. With ``redo``, only the
    rows without an answer of the run that the partition shows, or that failed, are computed (`nightshift.operators.redo`).

    :param spec: the job as JSON, as it was when Airflow parsed its file for this task.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, spec: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(run_prefix="", terms="", on_skipped_callback=keep_skip, **kwargs)
        self.job = spec
        self._counts: Counts | None = None
        self.empty = ""
        """What is said of a query without rows; '' if it has some."""

    def pre_execute(self, context: Context) -> None:
        """Refuses a DAG run whose conf has unknown keys. What an earlier try has passed on is replaced."""
        only_params(context)

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.planner.decisions import save_decision
        from nightshift.run.redo.redo import NothingToRedo
        from nightshift.spec import JobSpec

        with permanent_failures():
            partition = self._partition(context)
        self._await_due(context, partition)
        asked_for = context["params"].get("republish")
        with permanent_failures():
            spec = JobSpec.model_validate(self.job)
            if asked_for:
                run, spec, rows = self._sealed(context, spec, partition, asked_for)
            elif context["params"].get("redo"):
                try:
                    run, rows = self._again(context, spec, partition), 0
                except NothingToRedo as nothing:
                    raise AirflowSkipException(str(nothing)) from nothing
            else:
                run, rows = self._open(context, spec, partition)
            self.run_prefix = run.prefix
            if self.redo is not None and not asked_for:
                rows = self.redo.left  # Whatever the query has now.
            self.tell(f"Partition {partition} of {spec.job}: run {run.run_id} in {run.url(self.settings.bucket)}")
            self._log_start(run, rows)
            asked_at = self._asked_now(context, spec, partition) if asked_for else self.record.opened_at
            self.warehouse.check_may_replace(spec, run, asked_at, self.completes(asked_at))
            decision = None if asked_for else self._decide(spec, run, rows)
            path = save_decision(self.store, run, decision) if decision else None
            about = (left_out(self.store, spec, partition, context), not_over(spec, partition))
        self.keep_lineage()
        for reason in decision.reasons if decision else ():
            self.tell(f"Decided: {reason}")
        for warning in (*filter(None, about), *loose_ends(spec, self.record.pins, self.settings)):
            self.tell(warning, warns=True)
        for name, value in self.record.pins.to_json().items():
            self.tell(f"Pinned when the run was opened: {name} {value}")
        found = {"run_prefix": run.prefix, "run_id": run.run_id, "partition": partition, "rows": rows, "asked_at": asked_at}
        return {
            **XCOM.stamp(),
            **found,
            "spec": spec.model_dump(mode="json"),
            "decision": path,
            "planned": list(decision.reasons) if decision else [],
            "bytes_billed": self.warehouse.bytes_asked,
        }

    def _partition(self, context: Context) -> str:
        """The run's own. If files have started it, other periods of its events that have no run get one."""
        every: str | None = self.job.get("every")
        if every is None or not began_by_files(context):
            partition = partition_of(context, every)
            self.tell(f"Partition {partition}: {why(context, every)}")
            return partition
        named = periods_of_events(context, every, date.fromisoformat(self.job["start_date"]))
        if named.dropped:
            self.tell(
                "These periods get no run, because they are not over yet, or before the job's start_date: "
                f"{', '.join(named.dropped)}.",
                warns=True,
            )
        near = within_reach(named.others, named.own)
        if far := [name for name in named.others if name not in near]:
            self.tell(
                f"To compute a period from {far[0]} to {far[-1]}, trigger the DAG with its name as the param partition. "
                f"The run's events name {n(len(far), 'period')} that ended more than a day before, and get no run.",
                warns=True,
            )
        for name in [name for name in near if not has_run(self.store, self.job["job"], name)]:
            run_id = start_run(context["dag_run"].dag_id, name)
            self.tell(f"The event of period {name} came together with others: the DAG run {run_id} computes it")
        return named.own

    def on_time(self, context: Context, event: Any) -> dict[str, Any]:
        """Continues when the run is due."""
        return self.execute(context)

    def _await_due(self, context: Context, partition: str) -> None:
        """Returns when the run is due: at once if it is manual. Raises TaskDeferred, or AirflowSkipException."""
        schedule = self.job.get("schedule")
        if context["params"].get("partition") or not schedule:
            return
        run_type = context["dag_run"].run_type
        if run_type not in ("scheduled", "backfill"):
            return
        moment = due(schedule, date.fromisoformat(partition))
        if moment is None:
            raise AirflowSkipException(
                f"The schedule {schedule!r} names no time on the day after {partition}, so {partition} is not computed. "
                f"To compute it, trigger the DAG with the param partition {partition}."
            )
        wait_s = (moment - datetime.now(UTC)).total_seconds()
        if run_type == "backfill" or wait_s <= 0:
            return
        self.log.info("Waits until the run is due: %s", moment.isoformat(" ", "minutes"))
        if wait_s > SHORT_WAIT_S:
            from airflow.providers.standard.triggers.temporal import DateTimeTrigger

            raise TaskDeferred(trigger=DateTimeTrigger(moment=moment), method_name="on_time")
        # A task that resumes before the scheduler has seen its first process end would lose a retry.
        clock.sleep(wait_s)

    @property
    def labels(self) -> dict[str, str]:
        """There is no run yet."""
        return {"job": self.job["job"], "step": self.task_id}

    def _open(self, context: Context, spec: JobSpec, partition: str) -> tuple[RunRef, int]:
        """The run of the job as it is now, and how many rows its query has."""
        from nightshift.jobset.manifest import reservation
        from nightshift.operators.redo import asked_last
        from nightshift.run.opening import open_run

        reservation.check(spec, self.settings)
        check_workers(spec, self.settings, self.tell)
        fresh = bool(context["params"].get("fresh"))
        source = self.warehouse.check_query(spec, partition)
        rows = self._count(spec, partition, source).rows
        run = open_run(
            self.store,
            spec,
            partition,
            opened_by=context["dag_run"].run_id,
            project=self.settings.project,
            tables=source.tables,
            fresh=fresh,
            superseded=lambda run: self._superseded(spec, run, rows) or (fresh and self.warehouse.has_published(spec, run)),
            after=lambda: asked_last(self.warehouse, spec, partition),
            pin=lambda: self._pin(spec),
        )
        self._check_rows(run, spec, rows)
        return run, rows

    def _check_rows(self, run: RunRef, spec: JobSpec, rows: int) -> None:
        """Asks of the rows what the job wants of them, unless the run has some already. Raises Unfit."""
        from nightshift.planner.source import check_keys, check_rows
        from nightshift.run.plan import load_plan

        plan = load_plan(self.store, run)
        if plan is not None and plan.rows:
            return
        if not rows:
            self.empty = f"The query has no rows for {run.partition}"
        if said := check_rows(spec, run.partition, rows):
            self.empty = said
            self.tell(said, warns=spec.source.empty is None)
        elif plan is None:
            check_keys(spec, run.partition, self.warehouse.keys, self.tell)

    def _count(self, spec: JobSpec, partition: str, source: ExportedSource) -> Counts:
        """The query's rows, and what is counted with them to order them."""
        from nightshift.planner.order import candidates
        from nightshift.run.order import Counts

        columns = candidates(spec, source.columns)
        if not columns:
            return Counts(self.warehouse.count_rows(spec, partition))
        self._counts = self.warehouse.count_prefixes(spec, partition, columns)
        return self._counts

    def _sealed(self, context: Context, spec: JobSpec, partition: str, run_id: str) -> tuple[RunRef, JobSpec, int]:
        """The run with the requested id, its spec under the job's present terms, and its rows."""
        from nightshift.run.manifest import load_manifest
        from nightshift.run.names import RunRef
        from nightshift.run.opening import load_run
        from nightshift.run.plan import load_plan

        _only(context, "republish")
        try:
            run = RunRef.from_prefix(f"{spec.job}/{partition}/{run_id.strip()}")
        except ValueError:
            raise NightFailed(
                f"The param republish is {run_id!r}. Write the id of a run, for example 0123456789abcdef-g2; the audit table "
                "and the column nightshift_run_id have it.",
                Entry.WRONG_PARAM,
            ) from None
        frozen, record = load_run(self.store, run)
        if record.project not in (None, self.settings.project):
            raise NightFailed(
                f"{run.prefix} has rows of the project {record.project}, and this deployment's is {self.settings.project} "
                "(NIGHTSHIFT_PROJECT). Name a run of this deployment.",
                Entry.WRONG_PARAM,
            )
        frozen = frozen.under_terms_of(spec)
        plan, sealed = load_plan(self.store, run), load_manifest(self.store, run)
        if plan is None or sealed is None:
            missing = "plan.json" if plan is None else "manifest.json"
            raise NightFailed(
                f"{run.prefix} is not sealed, so it cannot be shown again: it has no {missing}. Name a run that was finished, "
                "or trigger the DAG with fresh.",
                Entry.WRONG_PARAM,
            )
        self.warehouse.check_destination(frozen, plan.exported)
        return run, frozen, plan.rows

    def _again(self, context: Context, spec: JobSpec, partition: str) -> RunRef:
        """The run of the rows without an answer alone."""
        from nightshift.operators.redo import VALUES, open_again

        _only(context, "redo")
        if (asked := context["params"]["redo"]) not in VALUES:
            raise NightFailed(f"The param redo is {asked!r}. Write {' or '.join(VALUES)}, or nothing.", Entry.WRONG_PARAM)
        return open_again(
            self.store,
            self.warehouse,
            spec,
            partition,
            context["dag_run"].run_id,
            how=asked,
            project=self.settings.project,
        )

    def _log_start(self, run: RunRef, rows: int) -> None:
        """Logs what will be done with the run. rows: those of its query now."""
        from nightshift.operators.redo import what_it_does
        from nightshift.run.manifest import load_manifest
        from nightshift.run.plan import load_plan

        plan, sealed = load_plan(self.store, run), load_manifest(self.store, run)
        if sealed is not None:
            self.tell(
                "To compute the run again, trigger with fresh: nothing is computed again now, only published again. "
                f"It was sealed at {sealed.sealed_at} with {n(sealed.rows, 'row')}."
            )
        elif plan is not None:
            self.tell(f"The run is already planned with {n(plan.rows, 'row')} and continues where it stopped")
        elif self.redo is not None:
            self.tell(what_it_does(self.redo))
        elif rows:
            self.tell(f"The query has {n(rows, 'row')}")
        if plan is not None and plan.rows != rows:
            self.tell(
                "To use the source as it is now, trigger with fresh. "
                f"The query has {n(rows, 'row')} now, but this run was planned with {plan.rows:,} and keeps them.",
                warns=True,
            )

    def _decide(self, spec: JobSpec, run: RunRef, rows: int) -> Decision | None:
        """Decides about a run, unless it has its plan, and logs why. Raises Refused and SpeedUnknown."""
        from nightshift.hooks.deployment import Deployment
        from nightshift.jobset.kubernetes.limits import limits_of
        from nightshift.planner.costs.prices import load_prices
        from nightshift.planner.inputs import known_of
        from nightshift.planner.plan import decide, table
        from nightshift.planner.speed import Basis
        from nightshift.planner.speeds import records_if_any
        from nightshift.planner.text import lines
        from nightshift.profiles.limits import Limits
        from nightshift.run.plan import load_plan

        if load_plan(self.store, run) is not None:
            return None

        def sample(columns: Sequence[str], most: int) -> Sequence[dict[str, Any]]:
            return self.warehouse.sample_rows(spec, run.partition, columns, most) if rows else ()

        known = known_of(
            spec,
            self.record.pins,
            # The query may have other rows than those of a redo.
            sample=None if self.redo else sample,
            records=records_if_any(self.store, spec, self.log.warning) if rows else None,
            # Those of the query as it is now, and a redo has only some of its rows.
            counts=None if self.redo else self._counts,
            credentials=self.storage_credentials if spec.model.uri.startswith("gs://") else None,
        )
        if known.absent:
            self.log.warning("%s", known.absent)
        for warning in known.warnings:
            self.tell(warning, warns=True)
        limits = Limits(self.settings.workers_max)
        if rows:
            limits = limits_of(
                spec, self.settings, run.partition, Deployment(self.settings).cluster, self.log.info, self.log.warning
            )
        prices = load_prices(self.settings.prices)
        shown = table(spec, rows, known, limits, prices.machines)
        for line in lines(shown, spec.deadline_seconds, prices.currency) if rows else ():
            self.tell(line)
        decision = decide(spec, rows, known, limits, prices.machines, prices.currency)
        if rows and decision.speed.basis is Basis.UNKNOWN:
            self.tell(
                f"This run may miss its deadline: the job states its workers, and their speed is {decision.speed.words}",
                warns=True,
            )
        return decision

    def _pin(self, spec: JobSpec) -> Pins:
        from nightshift.run.pins import pin_model

        settings = self.settings
        return replace(
            pin_model(spec, credentials=self.storage_credentials),
            server_image=settings.server_image,
            cpu_server_image=settings.cpu_server_image,
            tpu_server_image=settings.tpu_server_image,
        )

    def _superseded(self, spec: JobSpec, run: RunRef, rows: int) -> bool:
        """Whether the run may lack rows that the partition has now. rows: what the query has; without any, a run stays."""
        from nightshift.run.opening import rows_as_of
        from nightshift.run.plan import load_plan

        if not rows:
            return False
        plan = load_plan(self.store, run)
        if plan is not None and plan.rows == 0:
            return True
        end, asked = periods.bounds(run.partition, spec.every)[1], rows_as_of(self.store, run)
        if asked >= end or datetime.now(UTC) < end:
            return False
        self.tell(
            f"All rows are computed again, because run {run.run_id} may lack some. It was opened at "
            f"{asked.isoformat(' ', 'seconds')}, before its partition was over at {end.isoformat(' ', 'minutes')}.",
            warns=True,
        )
        return True

    def _asked_now(self, context: Context, spec: JobSpec, partition: str) -> str:
        """When this request was made, ISO 8601: after every run that was published, whatever the clocks."""
        from nightshift.operators.redo import asked_last

        return max(_began(context), asked_last(self.warehouse, spec, partition) + timedelta(microseconds=1)).isoformat()
