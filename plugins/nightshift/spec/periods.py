"""Names of partitions: the day that a run is for (2026-11-23), or the shorter period by its start (2026-11-23T0710). In UTC.

A name has no colon, so that it may be part of a path and of the id of a BigQuery job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, Literal

from nightshift.fields.values import duration_seconds

Every = Literal["5m", "10m", "15m", "20m", "30m", "1h", "2h", "3h", "4h", "6h", "8h", "12h"]
"""Lengths of periods. Each divides an hour or a day, so that periods begin at the same times every day."""
DAY: Final = "1d"
PARAMETER: Final = "partition"
"""Of a query: the day, or the start of the period."""
END: Final = "partition_end"
"""The parameter that jobs with periods have, too."""
_PERIOD: Final = re.compile(r"\d{4}-\d\d-\d\dT\d{4}")


class NoPartition(ValueError):
    """A text that names no partition of a job; the message says what to write."""


def is_day(name: str) -> bool:
    return not _PERIOD.fullmatch(name)


def bounds(name: str, every: str | None) -> tuple[datetime, datetime]:
    """Start and end of a partition. every: the job's, None for days."""
    start = datetime.combine(date.fromisoformat(name[:10]), time(), UTC)
    if not is_day(name):
        start += timedelta(hours=int(name[11:13]), minutes=int(name[13:]))
    return start, start + timedelta(seconds=duration_seconds(every or DAY))


def at(moment: datetime, every: str | None) -> str:
    """The partition that begins at `moment`; if none does, the last one that was over then. moment: aware."""
    moment = moment.astimezone(UTC)
    start = _start(moment, every)
    return _name(start if start == moment else start - timedelta(seconds=duration_seconds(every or DAY)), every)


def holding(moment: datetime, every: str | None) -> str:
    """The partition that a moment is in. moment: aware."""
    return _name(_start(moment.astimezone(UTC), every), every)


def before(name: str, every: str | None) -> str:
    """The partition that ends when this one begins."""
    start, end = bounds(name, every)
    return _name(start - (end - start), every)


def after(name: str, every: str | None) -> str:
    """The partition that begins when this one ends."""
    return _name(bounds(name, every)[1], every)


def read(text: str, every: str | None) -> str:
    """The name of the partition that a user means: 2026-11-19, or 2026-11-19T07:10 (UTC unless it has an offset).

    Raises NoPartition.
    """
    try:
        name = _read(text, every)
        # Both neighbours are asked for, of any partition.
        before(name, every), after(after(name, every), every)
    except OverflowError:
        raise NoPartition(f"The calendar has no such {'day' if every is None else 'period'}. Correct the year.") from None
    return name


def _read(text: str, every: str | None) -> str:
    try:
        day = date.fromisoformat(text).isoformat()
    except ValueError:
        day = None
    if every is None:
        if day is None:
            raise NoPartition("Write a date, for example 2026-11-19.")
        return day
    if day is not None:
        raise NoPartition(
            f"That is a whole day, and the job has periods of {every}. Write the start of one, in UTC: {day}T00:00."
        )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise NoPartition(f"Write the start of a period of {every} in UTC, for example 2026-11-19T07:00.") from None
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    start = _start(moment, every)
    if start != moment:
        raise NoPartition(f"The job has periods of {every}, and none begins then. Write {start.isoformat()[:16]}.")
    return _name(start, every)


def cron(every: str) -> str:
    """The moments at which periods begin, as cron."""
    seconds = duration_seconds(every)
    if seconds < 3600:
        return f"*/{seconds // 60} * * * *"
    return "0 * * * *" if seconds == 3600 else f"0 */{seconds // 3600} * * *"


def columns(name: str) -> Mapping[str, str | None]:
    """Columns of nightshift's own tables about a partition: partition_date, and partition_time unless it is a day."""
    return {"partition_date": name[:10], "partition_time": None if is_day(name) else bounds(name, None)[0].isoformat()}


def _start(moment: datetime, every: str | None) -> datetime:
    """Of the period that holds a moment in UTC."""
    seconds = moment.hour * 3600 + moment.minute * 60 + moment.second
    midnight = datetime.combine(moment.date(), time(), UTC)
    return midnight + timedelta(seconds=seconds - seconds % duration_seconds(every or DAY))


def _name(start: datetime, every: str | None) -> str:
    return start.date().isoformat() if every is None else start.isoformat()[:16].replace(":", "")
