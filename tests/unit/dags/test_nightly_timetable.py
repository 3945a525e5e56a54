"""Which day a scheduled run, a backfill and a manual run are for."""

from __future__ import annotations

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowTimetableInvalid
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from pendulum import DateTime

from nightshift.timetables.nightly import NightlyTimetable

pytestmark = pytest.mark.unit

NIGHTLY = NightlyTimetable("0 2 * * *")


def at(text: str) -> DateTime:
    moment = pendulum.parse(text, tz="UTC")
    assert isinstance(moment, DateTime)
    return moment


def day(text: str) -> DataInterval:
    return DataInterval(at(text), at(text).add(days=1))


def partitions(timetable: NightlyTimetable, first: str, last: str) -> list[tuple[str, str]]:
    """What a backfill creates: (partition, moment at which its run is due)."""
    found: list[tuple[str, str]] = []
    info: DagRunInfo | None = None
    restriction = TimeRestriction(at(first), at(last), catchup=True)
    while info := timetable.next_dagrun_info_v2(last_dagrun_info=info, restriction=restriction):
        assert info.data_interval is not None
        found.append((info.data_interval.start.to_date_string(), info.run_after.strftime("%F %H:%M")))
    return found


def test_a_backfill_takes_in_both_days_that_it_names() -> None:
    assert partitions(NIGHTLY, "2026-11-17", "2026-11-19") == [
        ("2026-11-17", "2026-11-18 02:00"),
        ("2026-11-18", "2026-11-19 02:00"),
        ("2026-11-19", "2026-11-20 02:00"),
    ]


def test_a_range_that_begins_within_a_day_begins_with_the_next() -> None:
    assert [found for found, _ in partitions(NIGHTLY, "2026-11-17T08:00", "2026-11-19")] == ["2026-11-18", "2026-11-19"]


def test_a_weekly_job_has_the_day_before_its_moment() -> None:
    mondays = NightlyTimetable("30 4 * * 1")

    assert partitions(mondays, "2026-11-01", "2026-11-20") == [
        ("2026-11-01", "2026-11-02 04:30"),
        ("2026-11-08", "2026-11-09 04:30"),
        ("2026-11-15", "2026-11-16 04:30"),
    ]


def test_a_job_with_several_moments_a_day_runs_at_the_first() -> None:
    assert partitions(NightlyTimetable("0 */6 * * *"), "2026-11-17", "2026-11-18") == [
        ("2026-11-17", "2026-11-18 00:00"),
        ("2026-11-18", "2026-11-19 00:00"),
    ]


@pytest.mark.parametrize(
    ("now", "partition", "due"),
    [
        ("2026-11-21 01:59", "2026-11-19", "2026-11-20T02:00"),
        ("2026-11-21 02:00", "2026-11-20", "2026-11-21T02:00"),
        ("2026-11-21 23:59", "2026-11-20", "2026-11-21T02:00"),
    ],
)
def test_without_catchup_the_newest_day_whose_moment_has_come(
    now: str, partition: str, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.timetables.nightly.pendulum.now", lambda _: at(now))
    restriction = TimeRestriction(at("2026-11-01"), None, catchup=False)

    assert NIGHTLY.next_dagrun_info(last_automated_data_interval=None, restriction=restriction) == DagRunInfo(
        run_after=at(due), data_interval=day(partition)
    )


def test_after_a_run_comes_the_next_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.timetables.nightly.pendulum.now", lambda _: at("2026-11-21 08:00"))
    restriction = TimeRestriction(at("2026-11-01"), None, catchup=False)

    assert NIGHTLY.next_dagrun_info(last_automated_data_interval=day("2026-11-20"), restriction=restriction) == DagRunInfo(
        run_after=at("2026-11-22T02:00"), data_interval=day("2026-11-21")
    )


def test_nothing_is_due_before_the_first_partition_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.timetables.nightly.pendulum.now", lambda _: at("2026-11-21 08:00"))
    restriction = TimeRestriction(at("2026-12-01"), None, catchup=False)

    assert NIGHTLY.next_dagrun_info(last_automated_data_interval=None, restriction=restriction) == DagRunInfo(
        run_after=at("2026-12-02T02:00"), data_interval=day("2026-12-01")
    )


@pytest.mark.parametrize(("moment", "partition"), [("2026-11-19T00:00", "2026-11-19"), ("2026-11-20T09:30", "2026-11-19")])
def test_a_manual_runs_interval(moment: str, partition: str) -> None:
    assert NIGHTLY.infer_manual_data_interval(run_after=at(moment)) == day(partition)


def test_it_lives_through_serialization() -> None:
    assert NightlyTimetable.deserialize(NIGHTLY.serialize()) == NIGHTLY


def test_a_cron_that_is_none_is_refused() -> None:
    with pytest.raises(AirflowTimetableInvalid):
        NightlyTimetable("every night").validate()
