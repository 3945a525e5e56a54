"""When a nightly job runs, and for which partition.

A partition is one day. Its run is due at the first moment of the job's cron on the day after, when the day is over::

    partition 2026-11-19 = data interval [2026-11-19 00:00, 2026-11-20 00:00), logical date 2026-11-19 00:00
    cron "0 2 * * *"     -> its run is due at 2026-11-20 02:00

Airflow's own cron timetables put the cron's hour into the logical date (2026-11-19 02:00), so that
``airflow backfill create --to-date 2026-11-19`` leaves the 19th out. Here a date given as an end is that day's partition.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pendulum
from airflow.timetables._cron import CronMixin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from pendulum import DateTime

ONE_DAY = timedelta(days=1)


class NightlyTimetable(CronMixin, Timetable):
    """One run a day at most, on the days on which the cron has a moment; each for the day before.

    All times are UTC, as BigQuery's dates of a partition are.

    :param cron: cron expression with five fields.
    """

    def __init__(self, cron: str) -> None:
        super().__init__(cron, "UTC")

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        return cls(data["cron"])

    def serialize(self) -> dict[str, Any]:
        return {"cron": self._expression}

    def infer_manual_data_interval(self, *, run_after: DateTime) -> DataInterval:
        """A moment at midnight names its own day, as it does for scheduled runs; any other one means the day before."""
        midnight = _midnight(run_after)
        return _day(midnight if run_after == midnight else midnight - ONE_DAY)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """The next partition after the last one; without catchup, the newest partition whose moment has come."""
        candidates = []
        if restriction.earliest is not None:
            earliest = _midnight(restriction.earliest)
            candidates.append(earliest if earliest == restriction.earliest else earliest + ONE_DAY)
        if last_automated_data_interval is not None:
            candidates.append(_midnight(last_automated_data_interval.start) + ONE_DAY)
        if not restriction.catchup or not candidates:
            candidates.append(_midnight(self._align_to_prev(pendulum.now("UTC"))) - ONE_DAY)
        due = self._align_to_next(max(candidates) + ONE_DAY)
        start = _midnight(due) - ONE_DAY
        if restriction.latest is not None and start > restriction.latest:
            return None
        return DagRunInfo(run_after=due, data_interval=_day(start))


def _midnight(moment: DateTime) -> DateTime:
    return pendulum.instance(moment).in_timezone("UTC").start_of("day")


def _day(midnight: DateTime) -> DataInterval:
    return DataInterval(start=midnight, end=midnight + ONE_DAY)
