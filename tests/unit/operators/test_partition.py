"""The one day, or shorter period, that a DAG run is for."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from airflow.sdk.exceptions import AirflowFailException
from obstore.store import MemoryStore

from nightshift.operators.plan import left_out, partition_of
from tests.builders import a_spec

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 8, 15, tzinfo=UTC)


def run(*, asked: str | None = None, logical_date: datetime | None = None) -> Any:
    return {"params": {"partition": asked}, "dag_run": SimpleNamespace(logical_date=logical_date, run_after=NOW)}


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
        pytest.param(run(asked="2026-11-05"), "2026-11-05T0000", id="the first one of a day"),
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
        ("noon", "Write the start of a period of 10m in UTC, for example 2026-11-19T07:00"),
    ],
)
def test_a_param_that_is_no_period_is_refused(asked: str, said: str) -> None:
    with pytest.raises(AirflowFailException, match=said):
        partition_of(run(asked=asked), "10m")


class TestAPeriodThatWasLeftOut:
    SPEC = a_spec(every="10m", source__query="SELECT id, text FROM `d.t` WHERE at >= @partition", start_date="2026-11-19")

    def test_the_period_before_is_named_with_the_command_that_computes_it(self) -> None:
        said = left_out(MemoryStore(), self.SPEC, "2026-11-20T0000")

        assert said is not None
        assert said.startswith("The period before, 2026-11-19T2350, has no run: ")
        moment = "2026-11-19T23:50:00+00:00"
        assert said.endswith(f"airflow backfill create --dag-id job --from-date {moment} --to-date {moment}")

    def test_nothing_is_said_if_it_has_a_run(self) -> None:
        store = MemoryStore()
        obstore.put(store, "job/2026-11-19T2350/0123456789abcdef/spec.json", b"{}")

        assert left_out(store, self.SPEC, "2026-11-20T0000") is None

    def test_nor_if_only_periods_with_files_have_one(self) -> None:
        watching = a_spec(every="10m", source__watch="gs://shop-uploads/texts", start_date="2026-11-19")

        assert left_out(MemoryStore(), watching, "2026-11-20T0000") is None

    def test_nor_of_the_first_period_nor_of_days(self) -> None:
        assert left_out(MemoryStore(), self.SPEC, "2026-11-19T0000") is None
        assert left_out(MemoryStore(), a_spec(), "2026-11-20") is None


def test_a_param_that_is_no_date_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="Write a date, for example 2026-11-19"):
        partition_of(run(asked="yesterday"))
