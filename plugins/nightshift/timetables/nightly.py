"""What reads the schedules that release 0.1.0 stored. DAGs use Airflow's own timetable now (docs/adr/0014-schedule.md).

Airflow keeps a DAG as it was for as long as it shows a run of it. Without this class, the scheduler and the web server of an
updated installation could not read a DAG until it is parsed again, and the earlier versions of a DAG never.
"""

from __future__ import annotations

from typing import Any, Self

from airflow.timetables.interval import CronDataIntervalTimetable


class NightlyTimetable(CronDataIntervalTimetable):
    """The days of a job as today's DAGs have them, for a DAG that has not been parsed since the update."""

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """data: the job's cron, which the task ``plan`` has too and waits for."""
        return cls("0 0 * * *", "UTC")
