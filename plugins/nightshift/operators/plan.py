"""The first task: finds the partition, checks the job, and opens the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, time, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.lineage.facets import Lineage
    from nightshift.run.names import RunRef
    from nightshift.run.pins import Pins
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec


def partition_of(context: Context) -> str:
    """The one partition (YYYY-MM-DD) that a DAG run is for.

    The param ``partition`` (trigger form, ``--conf``, a backfill's ``--dag-run-conf``) wins. Else the run's logical date
    decides, or its start if it has none: midnight means that day, as in scheduled runs and backfills, and any other time
    means the day before, as for last night's run. The data interval is not used: Airflow's command line makes it from
    the current time, whatever the ``--logical-date``.

    Raises AirflowFailException for a param that is not a date.
    """
    asked = context["params"].get("partition")
    if asked:
        try:
            return date.fromisoformat(asked).isoformat()
        except ValueError:
            raise AirflowFailException(f"The param partition is {asked!r}. Write a date, for example 2026-11-19.") from None
    dag_run = context["dag_run"]
    moment = (dag_run.logical_date or dag_run.run_after).astimezone(UTC)
    return (moment.date() if moment.time() == time() else moment.date() - timedelta(days=1)).isoformat()


def loose_ends(spec: JobSpec, pins: Pins, settings: Settings) -> Iterator[str]:
    """What may come to mean something else while the run is open, and settings that the run does not follow.

    Nothing for a run that an earlier release opened: it pins nothing.
    """
    from nightshift.jobset.manifest.server import image_setting
    from nightshift.run.pins import UNPINNED, why_unpinned

    if pins == UNPINNED:
        return
    if pins.commit is None and pins.weights is None:
        yield (
            f"The revision {spec.model.revision!r} of {spec.model.uri} is not pinned to a commit: {why_unpinned(spec)}. If it "
            "moves while the run is open, pods may load different models. To rule that out, write a commit (40 hex digits) "
            "as model.revision."
        )
    if settings.runtime.startswith("local:"):
        return  # It has no images.
    for name in sorted({image_setting(spec.compute.worker(profile)) for profile in spec.compute.profiles}):
        image, now, variable = getattr(pins, name), getattr(settings, name), f"NIGHTSHIFT_{name.upper()}"
        if "@sha256:" not in image:
            yield (
                f"The engine's image {image} is named by a tag, which can be pushed again while the run is open. Set "
                f"{variable} to NAME@sha256:DIGEST; later runs use it."
            )
        if image != now:
            yield (
                f"The run keeps the engine's image {image} with which it was opened, although {variable} is {now} now. "
                "To use that one, trigger with fresh."
            )


class PlanOperator(RunOperator):
    """
    Checks the job against the warehouse, freezes it into a run, and counts its rows.

    Returns ``{run_prefix, run_id, partition, rows, spec}``, from which every later task knows the run and its terms.

    A day without rows may get some later: once its query has rows, the next generation of its run is opened.

    :param spec: the job as JSON, as it was when Airflow parsed its file for this task.
    """

    template_fields: Sequence[str] = ()

    def __init__(self, *, spec: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(run_prefix="", terms="", **kwargs)
        self.job = spec

    def get_openlineage_facets_on_start(self) -> Lineage:
        """Nothing yet: the task has still to find its run."""
        from nightshift.lineage.facets import Lineage

        return Lineage()

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.hooks.warehouse import warehouse_for
        from nightshift.run.opening import open_run
        from nightshift.run.plan import load_plan
        from nightshift.run.seal import load_manifest
        from nightshift.spec import JobSpec

        partition = partition_of(context)
        fresh = bool(context["params"].get("fresh"))
        opened_by = context["dag_run"].run_id
        with permanent_failures():
            spec = JobSpec.model_validate(self.job)
            warehouse = warehouse_for(self.settings)
            warehouse.check_query(spec, partition)
            rows = warehouse.count_rows(spec, partition)
            run = open_run(
                self.store,
                spec,
                partition,
                opened_by=opened_by,
                fresh=fresh,
                superseded=lambda run: rows > 0 and self._empty(run),
                pin=lambda: self._pin(spec),
            )
            plan, sealed = load_plan(self.store, run), load_manifest(self.store, run)
        self.run_prefix = run.prefix
        self.keep_lineage()
        if pinned := self.pins.to_json():
            self.log.info("Pinned when the run was opened: %s", ", ".join(f"{name} {value}" for name, value in pinned.items()))
        for warning in loose_ends(spec, self.pins, self.settings):
            self.log.warning(warning)
        self.log.info("Partition %s of %s: run %s in %s", partition, spec.job, run.run_id, run.url(self.settings.bucket))
        if sealed is not None:
            self.log.info(
                "The run was sealed at %s with %d rows: nothing is computed again; it is only published again. "
                "To compute it again, trigger with fresh.",
                sealed["sealed_at"],
                sealed["rows"],
            )
        elif plan is not None:
            self.log.info("The run is already planned with %d rows and continues where it stopped", plan.rows)
        elif rows:
            self.log.info("The query has %d rows. The task 'extract' plans workers and chunks once they are exported.", rows)
        else:
            self.log.warning(
                "The query has no rows for %s: the partition will be published without rows. Is the source late? "
                "Once it has rows, trigger the DAG again to compute them.",
                partition,
            )
        if plan is not None and plan.rows != rows:
            self.log.warning(
                "The query has %d rows now, but this run was planned with %d and keeps them. "
                "To use the source as it is now, trigger with fresh.",
                rows,
                plan.rows,
            )
        found = {"run_prefix": run.prefix, "run_id": run.run_id, "partition": partition, "rows": rows}
        return {**found, "spec": spec.model_dump(mode="json")}

    def _pin(self, spec: JobSpec) -> Pins:
        from nightshift.run.pins import pin_model

        images = {"server_image": self.settings.server_image, "tpu_server_image": self.settings.tpu_server_image}
        return replace(pin_model(spec), **images)

    def _empty(self, run: RunRef) -> bool:
        from nightshift.run.plan import load_plan

        plan = load_plan(self.store, run)
        return plan is not None and plan.rows == 0
