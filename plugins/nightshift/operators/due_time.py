"""When the run of a partition is due: Airflow starts one as soon as its day is over, and the job's cron decides when it begins.

    partition 2026-11-19 = data interval [2026-11-19 00:00, 2026-11-20 00:00), logical date 2026-11-19 00:00
    cron "0 2 * * *"     -> Airflow creates the run at 2026-11-20 00:00, and it is due at 2026-11-20 02:00

docs/adr/0014-schedule.md explains why the cron is not the DAG's schedule. All times are UTC, as are partitions' dates.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from nightshift.spec.cron import first_of_day

ONE_DAY = timedelta(days=1)


def nightly(schedule: str) -> CronDataIntervalTimetable:
    """A run each midnight in UTC, which Airflow's pages show as the time of day at which the run is due.

    They show a timetable's cron expression, and not its time zone: 02:00, in a zone two hours ahead of UTC, is midnight in UTC.

    :param schedule: the job's cron.
    """
    minutes = first_of_day(schedule) // timedelta(minutes=1)
    return CronDataIntervalTimetable(f"{minutes % 60} {minutes // 60} * * *", timezone=pendulum.timezone(60 * minutes))


def due(schedule: str, partition: date) -> datetime | None:
    """The first moment of a cron expression on the day after the partition; None if that day has none.

    :param schedule: cron with five fields, as a job has it.
    """
    from croniter import croniter  # type: ignore[import-untyped]

    midnight = datetime.combine(partition + ONE_DAY, time(), UTC)
    # croniter finds a moment after its start.
    moment: datetime = croniter(schedule, midnight - timedelta(seconds=1)).get_next(datetime)
    return moment if moment.date() == midnight.date() else None
