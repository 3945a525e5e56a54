"""The one day, or shorter period, that a DAG run is for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException
from obstore.store import MemoryStore

from nightshift.operators import partition as partitions
from nightshift.operators.partition import left_out, not_over, partition_of, why
from nightshift.spec import JobSpec
from tests.builders import a_spec

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 8, 15, tzinfo=UTC)


def run(*, asked: str | None = None, logical_date: datetime | None = None, kind: str = "manual") -> Any:
    dag_run = SimpleNamespace(logical_date=logical_date, run_after=NOW, run_type=kind)
    return {"params": {"partition": asked}, "dag_run": dag_run}


@pytest.mark.parametrize(
    ("context", "partition"),
    [
        pytest.param(run(logical_date=datetime(2026, 11, 19, tzinfo=UTC)), "2026-11-19", id="scheduled or backfill"),
        pytest.param(run(), "2026-11-20", id="manual, without anything"),
        pytest.param(run(logical_date=NOW), "2026-11-20", id="manual, the form's logical date is now"),
        pytest.param(run(logical_date=datetime(2026, 11, 7, tzinfo=UTC)), "2026-11-07", id="manual, --logical-date 2026-11-07"),
        pytest.param(run(asked="2026-11-05"), "2026-11-05", id="manual, with the param"),
        pytest.param(run(asked="2026-11-05", logical_date=datetime(2026, 11, 19, tzinfo=UTC)), "2026-11-05", id="param wins"),
        pytest.param(run(asked=""), "2026-11-20", id="an empty param is none"),
    ],
)
def test_every_kind_of_run_has_one_day(context: Any, partition: str) -> None:
    assert partition_of(context) == partition


@pytest.mark.parametrize(
    ("context", "partition"),
    [
        pytest.param(
            run(logical_date=datetime(2026, 11, 19, 7, 10, tzinfo=UTC)), "2026-11-19T0710", id="scheduled or backfill"
        ),
        pytest.param(run(), "2026-11-21T0800", id="manual, at 08:15"),
        pytest.param(run(logical_date=NOW), "2026-11-21T0800", id="manual, the form's logical date is now"),
        pytest.param(run(asked="2026-11-05T07:10"), "2026-11-05T0710", id="manual, with the param"),
        pytest.param(run(asked="2026-11-05T07:10:00+05:00"), "2026-11-05T0210", id="with an offset"),
        pytest.param(run(asked="2026-11-05T0710"), "2026-11-05T0710", id="as the run's folder is named"),
    ],
)
def test_every_kind_of_run_has_one_period(context: Any, partition: str) -> None:
    assert partition_of(context, "10m") == partition


def test_a_manual_run_at_the_start_of_a_period_is_for_that_period_as_at_midnight_for_that_day() -> None:
    assert partition_of(run(logical_date=NOW), "15m") == "2026-11-21T0815"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("2026-11-05T07:13", "The job has periods of 10m, and none begins then. Write 2026-11-05T07:10"),
        ("2026-11-05", "That is a whole day, and the job has periods of 10m. Write the start of one, in UTC: 2026-11-05T00:00"),
        ("9999-12-31T23:50", "The calendar has no such period. Correct the year"),
        ("0001-01-01T00:00+10:00", "The calendar has no such period. Correct the year"),
        ("noon", "Write the start of a period of 10m in UTC, for example 2026-11-19T07:00"),
    ],
)
def test_a_param_that_is_no_period_is_refused(asked: str, said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        partition_of(run(asked=asked), "10m")


LAST_WEEK = datetime(2026, 11, 12, 23, tzinfo=UTC)


class TestALogicalDateThatBeginsNothing:
    """A local midnight computed a day that nobody had meant, two days off."""

    @pytest.mark.parametrize("moment", ["2026-11-05T00:00:00+01:00", "2026-11-05T00:00:00+09:00", "2026-11-21T00:00:00+01:00"])
    def test_a_local_midnight_is_refused_with_the_days_that_may_be_meant(self, moment: str) -> None:
        day = datetime.fromisoformat(moment).astimezone(UTC).date()
        said = rf"does not say which day to compute: no day begins then, in UTC.*param partition, for example .*, {day} or"

        with pytest.raises(AirflowFailException, match=said):
            partition_of(run(logical_date=datetime.fromisoformat(moment)))

    def test_one_that_is_about_now_is_last_night_as_the_form_fills_it_in(self) -> None:
        for minutes in (0, 30, -30, 400):
            assert partition_of(run(logical_date=NOW - timedelta(minutes=minutes))) == "2026-11-20"

    def test_a_form_that_was_opened_before_midnight_is_the_night_before_that(self, monkeypatch: pytest.MonkeyPatch) -> None:
        context = run(logical_date=datetime(2026, 11, 20, 23, 58, tzinfo=UTC))
        context["dag_run"].run_after = datetime(2026, 11, 21, 0, 1, tzinfo=UTC)

        assert partition_of(context) == "2026-11-19"

    def test_periods_have_the_same_rule(self) -> None:
        with pytest.raises(
            AirflowFailException, match=r"no period of 10m begins then, in UTC.*2026-11-12T2300, 2026-11-12T2310 or"
        ):
            partition_of(run(logical_date=LAST_WEEK + timedelta(minutes=13)), "10m")
        assert partition_of(run(logical_date=LAST_WEEK), "10m") == "2026-11-12T2300"

    @pytest.mark.parametrize("kind", ["scheduled", "backfill", "asset_triggered"])
    def test_what_airflow_has_made_is_never_refused(self, kind: str) -> None:
        assert partition_of(run(logical_date=LAST_WEEK, kind=kind)) == "2026-11-11"

    def test_the_log_says_why(self) -> None:
        day = datetime(2026, 11, 19, tzinfo=UTC)
        assert why(run(asked="2026-11-05"), None) == "the param partition says so"
        assert why(run(logical_date=day), None) == "the logical date is 2026-11-19 00:00:00+00:00, when it begins"
        assert why(run(), None) == "it is the last one that was over then: the time of the request is 2026-11-21 08:15:00+00:00"


class TestPartitionsThatWereLeftOut:
    PERIODS = a_spec(every="10m", source__query="SELECT id, text FROM `d.t` WHERE at >= @partition", start_date="2026-11-19")
    NIGHTS = a_spec(schedule="0 2 * * *", start_date="2026-11-05")

    def said(self, spec: JobSpec, partition: str, *opened: str, kind: str = "scheduled") -> str | None:
        """opened: partitions that have runs."""
        store = MemoryStore()
        for name in opened:
            obstore.put(store, f"job/{name}/0123456789abcdef/spec.json", b"{}")
        return left_out(store, spec, partition, run(kind=kind))

    def test_a_period_is_named_with_the_command_that_computes_it(self) -> None:
        said = self.said(self.PERIODS, "2026-11-20T0000", "2026-11-19T2340")

        assert said is not None
        assert said.startswith("Partitions before this one have no run (2026-11-19T2350). ")
        moment = "2026-11-19T23:50:00+00:00"
        assert said.endswith(f"airflow backfill create --dag-id job --from-date {moment} --to-date {moment}")

    def test_nights_are_named_too_from_the_oldest_one_on(self) -> None:
        said = self.said(self.NIGHTS, "2026-11-20", "2026-11-16")

        assert said is not None
        assert "have no run (2026-11-17 to 2026-11-19, 3 in all). Airflow was away or the DAG was paused" in said
        assert said.endswith("--from-date 2026-11-17T00:00:00+00:00 --to-date 2026-11-19T00:00:00+00:00")

    def test_nights_that_the_cron_leaves_out_are_not_missed(self) -> None:
        """Mondays at 02:00 compute Sundays."""
        weekly = self.NIGHTS.model_copy(update={"schedule": "0 2 * * mon"})

        assert self.said(weekly, "2026-11-22", "2026-11-15") is None
        said = self.said(weekly, "2026-11-22")
        assert said is not None
        assert "have no run (2026-11-15). " in said

    def test_nothing_is_said_if_the_one_before_has_a_run(self) -> None:
        assert self.said(self.PERIODS, "2026-11-20T0000", "2026-11-19T2350") is None
        assert self.said(self.NIGHTS, "2026-11-20", "2026-11-19") is None

    def test_nor_of_what_is_before_the_first_one_nor_of_what_may_be_deleted(self) -> None:
        assert self.said(self.PERIODS, "2026-11-19T0000") is None
        assert self.said(self.NIGHTS, "2026-11-05") is None
        said = self.said(self.NIGHTS, "2026-11-20")
        assert said is not None
        assert "2026-11-13 to 2026-11-19, 7 in all" in said

    @pytest.mark.parametrize("kind", ["manual", "backfill", "asset_triggered"])
    def test_nor_in_a_run_that_is_not_scheduled(self, kind: str) -> None:
        """The days of a backfill run at once, in no order."""
        assert self.said(self.NIGHTS, "2026-11-20", kind=kind) is None
        assert self.said(self.PERIODS, "2026-11-20T0000", kind=kind) is None

    def test_an_outage_of_many_periods_asks_a_bounded_number_of_times(self) -> None:
        said = self.said(self.PERIODS, "2026-11-20T2300")

        assert said is not None
        assert f"{partitions.MISSED_MAX} in all" in said


def test_a_partition_that_is_not_over_is_told_with_its_end() -> None:
    today = datetime.now(UTC).date()
    said = not_over(a_spec(), today.isoformat())

    assert said is not None
    assert said.startswith(f"Partition {today} is not over before {today + timedelta(days=1)} 00:00+00:00. This run lacks")
    assert not_over(a_spec(), (today - timedelta(days=1)).isoformat()) is None
    hour = a_spec(every="1h", source__query="SELECT id, text FROM `d.t` WHERE at >= @partition")
    assert not_over(hour, f"{today - timedelta(days=1)}T2300") is None
    assert not_over(hour, f"{today}T2300") is not None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("yesterday", "Write a date, for example 2026-11-19"),
        ("9999-12-31", "The calendar has no such day. Correct the year"),
        ("0001-01-01", "The calendar has no such day. Correct the year"),
    ],
)
def test_a_param_that_is_no_date_is_refused(asked: str, said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        partition_of(run(asked=asked))
