"""The partition of a DAG run, and warnings about it: earlier partitions without a run, and that it is not over."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Final

from nightshift.operators.due_time import due
from nightshift.operators.failures import Entry, NightFailed
from nightshift.spec import periods

if TYPE_CHECKING:
    from airflow.sdk import Context
    from obstore.store import ObjectStore

    from nightshift.spec import JobSpec

JUST_NOW: Final = timedelta(hours=1)
"""Airflow's form fills in the time at which it was opened as the logical date."""
BACK: Final = timedelta(days=7)
"""Partitions before this are not checked: their folders may have been deleted."""
MISSED_MAX: Final = 50


def partition_of(context: Context, every: str | None = None) -> str:
    """The one partition (`nightshift.spec.periods`) that a DAG run is for.

    The param ``partition`` (trigger form, ``--conf``, a backfill's ``--dag-run-conf``) wins. Else the run's logical date
    decides, or its start if it has none: midnight means that day, as in scheduled runs and backfills, and any other time
    means the day before, as for last night's run. The data interval is not used: Airflow's command line makes it from
    the current time, whatever the ``--logical-date``.

    :param every: the length of the job's periods, to which the same applies as to days; None for days.

    Raises NightFailed for a param that is not a partition, and for the logical date of a manual run that is neither
    the start of one nor about now, such as a local midnight.
    """
    asked = context["params"].get("partition")
    if asked:
        try:
            return periods.read(str(asked), every)
        except periods.NoPartition as error:
            raise NightFailed(f"The param partition is {asked!r}. {error}", Entry.WRONG_PARAM) from None
    dag_run = context["dag_run"]
    moment, triggered = dag_run.logical_date, dag_run.run_after
    found = nearest(context, every)
    if moment is None or periods.holding(moment, every) == found or dag_run.run_type != "manual":
        return found
    if abs(triggered - moment) < JUST_NOW or found == periods.at(triggered, every):
        return found
    meant = periods.holding(moment, every)
    raise NightFailed(
        f"The logical date {moment.astimezone(UTC).isoformat()} does not say which {'day' if every is None else 'period'} to "
        f"compute: no {'day' if every is None else f'period of {every}'} begins then, in UTC. Trigger the DAG with the param "
        f"partition, for example {periods.before(meant, every)}, {meant} or {periods.after(meant, every)}.",
        Entry.WRONG_PARAM,
    )


def nearest(context: Context, every: str | None) -> str:
    """The partition of a DAG run's logical date, whether or not a user could mean another one."""
    dag_run = context["dag_run"]
    return periods.at(dag_run.logical_date or dag_run.run_after, every)


def why(context: Context, every: str | None) -> str:
    """Why `partition_of` has chosen that partition, for the log."""
    dag_run = context["dag_run"]
    if context["params"].get("partition"):
        return "the param partition says so"
    moment = dag_run.logical_date or dag_run.run_after
    what = "the logical date" if dag_run.logical_date else "the time of the request"
    when = f"{what} is {moment.astimezone(UTC).isoformat(' ', 'seconds')}"
    if periods.bounds(periods.holding(moment, every), every)[0] == moment:
        return f"{when}, when it begins"
    return f"it is the last one that was over then: {when}"


def has_run(store: ObjectStore, job: str, partition: str) -> bool:
    """Whether a run of the partition was ever opened."""
    import obstore

    return bool(obstore.list_with_delimiter(store, f"{job}/{partition}")["common_prefixes"])


def left_out(store: ObjectStore, spec: JobSpec, partition: str, context: Context) -> str | None:
    """A sentence about the partitions just before, if these have no run: Airflow leaves some out while it is away or the DAG is
    paused, or while runs take longer than a period.

    None for a run that is not scheduled, for days that the job's schedule leaves out, and for what was before the first one.
    """
    if context["dag_run"].run_type != "scheduled":
        return None
    missed: list[str] = []
    start = periods.bounds(partition, spec.every)[0]
    first = max(start - BACK, datetime.combine(spec.start_date, time(), UTC))
    name = partition
    while periods.bounds(name, spec.every)[0] > first and len(missed) < MISSED_MAX:
        name = periods.before(name, spec.every)
        if spec.schedule and due(spec.schedule, date.fromisoformat(name)) is None:
            continue
        if has_run(store, spec.job, name):
            break
        missed.append(name)
    if not missed:
        return None
    latest, oldest = (periods.bounds(each, spec.every)[0].isoformat() for each in (missed[0], missed[-1]))
    which = missed[0] if len(missed) == 1 else f"{missed[-1]} to {missed[0]}, {len(missed)} in all"
    return (
        f"Partitions before this one have no run ({which}). Airflow was away or the DAG was paused when they were over, or "
        "earlier runs took too long. To compute them:\n"
        f"airflow backfill create --dag-id {spec.job} --from-date {oldest} --to-date {latest}"
    )


def not_over(spec: JobSpec, partition: str) -> str | None:
    """A sentence about a partition that still gets rows; None if it is over."""
    end = periods.bounds(partition, spec.every)[1]
    if datetime.now(UTC) >= end:
        return None
    return (
        f"Partition {partition} is not over before {end.isoformat(' ', 'minutes')}. "
        "This run lacks the rows that arrive until then. The first run of it that begins afterwards computes all rows again."
    )
