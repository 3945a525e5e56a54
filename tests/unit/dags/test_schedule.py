"""Which days a scheduled run, a backfill and a manual run are for, and when they are due."""

from __future__ import annotations

from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred
from airflow.serialization.encoders import coerce_to_core_timetable
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from pendulum import DateTime

from nightshift.operators.due_time import due, nightly
from nightshift.operators.plan import PlanOperator
from nightshift.spec import periods
from tests.unit.dags.conftest import Parse

pytestmark = pytest.mark.unit


@pytest.fixture
def timetable(parse: Parse, job_text: str) -> Timetable:
    """That of a job with a schedule, as the scheduler has it."""
    dag = parse(job=job_text).dags["package-embeddings"]
    return coerce_to_core_timetable(dag.timetable)


def at(text: str) -> DateTime:
    moment = pendulum.parse(text, tz="UTC")
    assert isinstance(moment, DateTime)
    return moment


def day(text: str) -> DataInterval:
    return DataInterval(at(text), at(text).add(days=1))


def created(timetable: Timetable, first: str, last: str) -> list[DagRunInfo]:
    """The runs that a backfill creates."""
    found: list[DagRunInfo] = []
    restriction = TimeRestriction(at(first), at(last), catchup=True)
    while info := timetable.next_dagrun_info_v2(last_dagrun_info=found[-1] if found else None, restriction=restriction):
        found.append(info)
    return found


def partitions(timetable: Timetable, schedule: str, first: str, last: str) -> list[tuple[str, str]]:
    """What a backfill computes: (partition, moment at which its run is due)."""
    found = []
    for info in created(timetable, first, last):
        assert info.data_interval is not None
        assert info.logical_date == info.data_interval.start
        partition = info.data_interval.start.date()
        if moment := due(schedule, partition):
            found.append((partition.isoformat(), f"{moment:%F %H:%M}"))
    return found


class TestTheDaysOfARange:
    def test_a_backfill_takes_in_both_days_that_it_names(self, timetable: Timetable) -> None:
        assert partitions(timetable, "0 2 * * *", "2026-11-17", "2026-11-19") == [
            ("2026-11-17", "2026-11-18 02:00"),
            ("2026-11-18", "2026-11-19 02:00"),
            ("2026-11-19", "2026-11-20 02:00"),
        ]

    def test_a_range_that_begins_within_a_day_begins_with_the_next(self, timetable: Timetable) -> None:
        found = partitions(timetable, "0 2 * * *", "2026-11-17T08:00", "2026-11-19")

        assert [partition for partition, _ in found] == ["2026-11-18", "2026-11-19"]

    def test_a_weekly_job_has_the_day_before_its_moment(self, timetable: Timetable) -> None:
        assert partitions(timetable, "30 4 * * 1", "2026-11-01", "2026-11-20") == [
            ("2026-11-01", "2026-11-02 04:30"),
            ("2026-11-08", "2026-11-09 04:30"),
            ("2026-11-15", "2026-11-16 04:30"),
        ]

    def test_a_job_with_several_moments_a_day_runs_at_the_first(self, timetable: Timetable) -> None:
        assert partitions(timetable, "0 */6 * * *", "2026-11-17", "2026-11-18") == [
            ("2026-11-17", "2026-11-18 00:00"),
            ("2026-11-18", "2026-11-19 00:00"),
        ]

    def test_a_moment_of_another_month_is_none(self) -> None:
        assert due("0 2 1 3 *", date(2026, 2, 28)) == datetime(2026, 3, 1, 2, tzinfo=UTC)
        assert due("0 2 1 3 *", date(2026, 3, 1)) is None


class TestWhatAirflowShows:
    """`airflow.dag_processing.collection` stores summary and description of the serialized DAG's timetable, for the pages."""

    @pytest.mark.parametrize(
        ("cron", "shown", "said"),
        [
            ("0 2 * * *", "0 2 * * *", "At 02:00"),
            ("30 23 * * *", "30 23 * * *", "At 23:30"),
            ("0 0 * * *", "0 0 * * *", "At 00:00"),
            # Airflow makes a run for each day, and the task plan skips the others.
            ("5 4 * * 1", "5 4 * * *", "At 04:05"),
            ("0 7 L * *", "0 7 * * *", "At 07:00"),
        ],
    )
    def test_is_the_jobs_own_time(self, parse: Parse, job_text: str, cron: str, shown: str, said: str) -> None:
        dag = parse(job=job_text.replace('"0 2 * * *"', f'"{cron}"')).dags["package-embeddings"]

        found = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
        assert (found.summary, found.description) == (shown, said)

    @pytest.mark.parametrize("cron", ["0 0 * * *", "1 0 * * *", "0 2 * * *", "30 12 * * 1", "59 23 * * *"])
    @pytest.mark.parametrize("now", ["2026-02-28 23:59:59", "2026-03-01 00:00", "2026-03-29 01:30", "2027-01-01 02:00"])
    def test_and_the_runs_are_those_of_midnight(self, cron: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow.timetables.interval.utcnow", lambda: at(now))
        own = coerce_to_core_timetable(nightly(cron))
        midnight = coerce_to_core_timetable(nightly("0 0 * * *"))

        for first, last in (("2026-02-27", "2026-03-02"), ("2026-02-27T03:00", "2026-03-02T23:59")):
            assert created(own, first, last) == created(midnight, first, last) != []
        assert own.infer_manual_data_interval(run_after=at(now)) == midnight.infer_manual_data_interval(run_after=at(now))
        for last_run in (None, day("2026-02-20"), day("2026-03-28")):
            for catchup in (False, True):
                asked = TimeRestriction(at("2026-02-01"), None, catchup=catchup)
                assert own.next_dagrun_info(
                    last_automated_data_interval=last_run, restriction=asked
                ) == midnight.next_dagrun_info(last_automated_data_interval=last_run, restriction=asked)


class TestTheNextRun:
    @pytest.mark.parametrize(
        ("now", "partition"),
        [("2026-11-20 23:59", "2026-11-19"), ("2026-11-21 00:01", "2026-11-20"), ("2026-11-21 23:59", "2026-11-20")],
    )
    def test_without_catchup_it_is_the_newest_day_that_is_over(
        self, timetable: Timetable, now: str, partition: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow.timetables.interval.utcnow", lambda: at(now))

        assert self._next(timetable, None) == DagRunInfo(run_after=at(partition).add(days=1), data_interval=day(partition))

    def test_after_a_run_comes_the_next_day(self, timetable: Timetable, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow.timetables.interval.utcnow", lambda: at("2026-11-21 08:00"))
        expected = DagRunInfo(run_after=at("2026-11-22"), data_interval=day("2026-11-21"))

        assert self._next(timetable, day("2026-11-20")) == expected

    def test_nothing_is_due_before_the_first_partition_is_over(
        self, timetable: Timetable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow.timetables.interval.utcnow", lambda: at("2026-11-21 08:00"))
        expected = DagRunInfo(run_after=at("2026-12-02"), data_interval=day("2026-12-01"))

        assert self._next(timetable, None, first="2026-12-01") == expected

    def _next(self, timetable: Timetable, last: DataInterval | None, first: str = "2026-11-01") -> DagRunInfo | None:
        restriction = TimeRestriction(at(first), None, catchup=False)
        return timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)


class TestPeriods:
    """A run for each period of ten minutes, when it is over."""

    @pytest.fixture
    def timetable(self, parse: Parse, job_text: str) -> Timetable:
        text = job_text.replace('schedule: "0 2 * * *"', "every: 10m")
        bag = parse(job=text.replace("partition_column: snapshot_date", "partition_column: period_start"))
        return coerce_to_core_timetable(bag.dags["package-embeddings"].timetable)

    def test_the_next_one_begins_when_its_period_is_over(self, timetable: Timetable) -> None:
        last = DataInterval(at("2026-11-19T07:10"), at("2026-11-19T07:20"))
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(at("2026-11-01"), None, catchup=True)
        )

        assert info is not None
        assert info.logical_date is not None
        assert (info.logical_date, info.run_after) == (at("2026-11-19T07:20"), at("2026-11-19T07:30"))
        assert periods.at(info.logical_date, "10m") == "2026-11-19T0720"

    def test_a_backfill_makes_every_period_of_its_days(self, timetable: Timetable) -> None:
        found = created(timetable, "2026-11-17", "2026-11-18T23:59:59")
        names = [periods.at(info.logical_date, "10m") for info in found if info.logical_date]

        assert (names[0], names[-1], len(set(names))) == ("2026-11-17T0000", "2026-11-18T2350", 288)

    def test_a_backfill_of_one_moment_makes_one_period(self, timetable: Timetable) -> None:
        """As the task plan tells a person to do for a period that was left out."""
        found = created(timetable, "2026-11-19T07:10", "2026-11-19T07:10")

        assert [info.logical_date for info in found] == [at("2026-11-19T07:10")]

    def test_without_catchup_periods_that_were_over_meanwhile_are_left_out(self, timetable: Timetable) -> None:
        last = DataInterval(at("2024-11-19T07:10"), at("2024-11-19T07:20"))
        info = timetable.next_dagrun_info(
            last_automated_data_interval=last, restriction=TimeRestriction(at("2024-11-01"), None, catchup=False)
        )

        assert info is not None
        assert info.logical_date is not None
        assert info.logical_date > at("2024-11-19T07:20"), "years have passed since"


class TestWaiting:
    """The task plan of a run for 2026-11-19; `now` is when it starts."""

    def test_a_scheduled_run_waits_in_the_triggerer_until_it_is_due(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(TaskDeferred) as raised:
            self._start(monkeypatch, now="2026-11-20 00:00:03")

        trigger = raised.value.trigger
        assert isinstance(trigger, DateTimeTrigger)
        assert trigger.moment == at("2026-11-20 02:00")
        assert raised.value.method_name == "on_time"

    def test_it_goes_on_once_it_is_due(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._start(monkeypatch, now="2026-11-20 02:00:00") == []
        assert self._start(monkeypatch, now="2026-11-24 17:00:00") == []

    def test_a_short_wait_keeps_the_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._start(monkeypatch, now="2026-11-20 01:59:50") == [10.0]

    @pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
    def test_a_day_without_a_moment_is_skipped(self, run_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(AirflowSkipException, match="names no time on the day after 2026-11-19"):
            self._start(monkeypatch, now="2026-11-20 02:00:00", run_type=run_type, schedule="30 4 * * 1")

    def test_a_backfill_does_not_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._start(monkeypatch, now="2026-11-20 01:00:00", run_type="backfill") == []

    @pytest.mark.parametrize("schedule", ["0 2 * * *", "30 4 * * 1", None])
    def test_a_manual_run_neither_waits_nor_skips(self, schedule: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._start(monkeypatch, now="2026-11-20 01:00:00", run_type="manual", schedule=schedule) == []

    def test_the_param_partition_does_neither(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backfill's --dag-run-conf sets it too."""
        found = self._start(
            monkeypatch, now="2026-11-20 01:00:00", run_type="backfill", schedule="30 4 * * 1", asked="2026-11-19"
        )

        assert found == []

    def _start(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        now: str,
        run_type: str = "scheduled",
        schedule: str | None = "0 2 * * *",
        asked: str | None = None,
    ) -> list[float]:
        """What the task sleeps before it begins, in seconds."""
        slept: list[float] = []

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return at(now)

        class Begun(Exception):
            pass

        def begin(*_: Any) -> None:
            raise Begun

        monkeypatch.setattr("nightshift.operators.plan.datetime", Clock)
        monkeypatch.setattr("nightshift.operators.plan.clock.sleep", slept.append)
        monkeypatch.setattr("nightshift.spec.JobSpec.model_validate", begin)
        task = PlanOperator(task_id="plan", spec={"schedule": schedule})
        run = SimpleNamespace(run_type=run_type, logical_date=at("2026-11-19"), run_after=at("2026-11-20"))
        with pytest.raises(Begun):
            task.execute({"params": {"partition": asked}, "dag_run": run})
        return slept
