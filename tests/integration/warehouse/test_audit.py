"""The audit table: one row for each publication, whatever is repeated."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pytest

from nightshift.planner.bills import bill_of
from nightshift.planner.costs.prices import Prices
from nightshift.run.plan import Plan
from nightshift.warehouse import Warehouse, WarehouseError
from nightshift.warehouse.audit import COLUMNS, audit_row
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import PARTITION, Night

pytestmark = pytest.mark.integration

LATER = "2026-11-22T02:00:00+00:00"


def audited(night: Night) -> list[dict[str, Any]]:
    table = f"{PROJECT}.{night.settings.dataset}.audit"
    return [dict(row) for row in night.client.query(f"SELECT * FROM `{table}` ORDER BY run_id").result()]


def published_row(night: Night, generation: int = 1) -> dict[str, Any]:
    run = night.run_of(PARTITION, generation)
    manifest = night.seal(run, ["a", "b", "c"], dead=[2])
    published = night.publish(run, manifest)
    plan = Plan(run.run_id, 0, 1, 1, ())
    began = datetime.fromisoformat(published["published_at"]) - timedelta(seconds=12.5)
    costs = bill_of(night.store, manifest, plan, night.spec, Prices("EUR", {"cpu": 1.0}, 6.0, 0.005, 0.0004), bigquery_bytes=0)
    assert costs is not None
    return audit_row(
        night.spec,
        run,
        plan,
        manifest,
        published,
        dag_run_id="manual__1",
        by_dag_run_id="manual__2",
        asked_at=began.isoformat(),
        costs={**costs.to_json(), "machines_estimated": 0.5},
    )


@pytest.mark.gate
def test_a_published_run_leaves_one_row_with_every_column(night: Night) -> None:
    recorded = published_row(night)
    night.warehouse.record_audit(recorded)
    (row,) = audited(night)

    assert list(row) == list(COLUMNS)
    unset = [name for name, value in row.items() if value is None]
    assert unset == ["partition_time", "failed_task", "failed_at", "error", "completes"], "a day, nothing failed, no redo"
    assert (row["state"], row["by_dag_run_id"], row["seconds"], row["currency"]) == ("published", "manual__2", 12.5, "EUR")
    assert json.loads(row["costs"])["attempts_not_seen"] == 1
    assert (row["run_id"], row["partition_date"], row["dag_run_id"]) == (
        night.run.run_id,
        date.fromisoformat(PARTITION),
        "manual__1",
    )
    assert (row["input_rows"], row["predictions"], row["dead_letters"], row["dead_reasons"]) == (3, 2, 1, '{"too_long":1}')
    assert row["source_tables"] == f"{PROJECT}.{night.settings.bucket}.source"
    assert row["sealed_at"] == datetime.fromisoformat(recorded["sealed_at"])


@pytest.mark.gate
def test_a_repeat_changes_nothing(night: Night) -> None:
    row = published_row(night)
    night.warehouse.record_audit(row)
    before = audited(night)
    night.warehouse.record_audit(published_row(night))

    assert audited(night) == before


def test_each_publication_has_its_row_and_none_is_ever_changed(night: Night) -> None:
    first, second = published_row(night), published_row(night, generation=2)
    again = {**first, "published_at": LATER}
    for row in (first, second, again, {**first, "seconds": 99.0}):
        night.warehouse.record_audit(row)

    assert sorted((row["run_id"], row["published_at"].isoformat(), row["seconds"]) for row in audited(night)) == sorted(
        (row["run_id"], datetime.fromisoformat(row["published_at"]).isoformat(), 12.5) for row in (first, second, again)
    )


def test_all_jobs_of_a_night_may_write_their_rows_at_the_same_moment(night: Night) -> None:
    rows = [{"run_id": f"r{number}", "partition_date": PARTITION, "published_at": LATER} for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(night.warehouse.record_audit, rows))

    assert [row["run_id"] for row in audited(night)] == ["r0", "r1", "r2", "r3"]


def test_failures_of_two_jobs_have_two_rows_though_airflow_names_their_dag_runs_alike(night: Night) -> None:
    """And one that fails again, after more machine time, has another; what is only repeated has none."""
    failure = {
        "job": "one",
        "partition_date": PARTITION,
        "state": "failed",
        "failed_task": "infer",
        "failed_at": LATER,
        "by_dag_run_id": "scheduled__2026-11-20T00:00:00+00:00",
        "error": "no machine",
        "machine_seconds": 0.1,
    }
    unknown = {**failure, "error": None, "machine_seconds": None}
    again, other = {**failure, "machine_seconds": 7.5}, {**failure, "job": "other"}
    for row in (failure, other, again, unknown, {**failure, "failed_at": "2026-11-23T02:00:00+00:00"}, unknown):
        night.warehouse.record_audit(row)

    found = [(row["job"], row["machine_seconds"], row["failed_at"]) for row in audited(night)]
    later = datetime.fromisoformat(LATER)
    assert sorted(found, key=str) == sorted(
        [(row["job"], row["machine_seconds"], later) for row in (failure, other, again, unknown)], key=str
    )


def test_failures_of_two_deployments_have_two_rows(night: Night) -> None:
    """They share a dataset, and each has the job."""
    failure = {
        "job": "one",
        "partition_date": PARTITION,
        "state": "failed",
        "failed_task": "plan",
        "failed_at": LATER,
        "by_dag_run_id": "scheduled__2026-11-20T00:00:00+00:00",
    }
    other = Warehouse(night.client, replace(night.settings, bucket="other"))
    for warehouse in (night.warehouse, other, night.warehouse, other):
        warehouse.record_audit(failure)

    assert sorted(row["bucket"] for row in audited(night)) == sorted([night.settings.bucket, "other"])


def test_what_is_not_known_is_null(night: Night) -> None:
    known = {"run_id": "r", "partition_date": PARTITION, "published_at": LATER}
    night.warehouse.record_audit(known)
    (row,) = audited(night)

    assert {name for name, value in row.items() if value is not None} == {*known, "bucket"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"run_id": "r", "colour": "red"}, "colour, which the table lacks"),
        ({"job": "j"}, "no run_id"),
        ({"run_id": "r"}, "no published_at"),
        ({"run_id": "r", "state": "failed", "by_dag_run_id": "d"}, "no failed_task"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(night: Night, row: dict[str, Any], message: str) -> None:
    with pytest.raises(WarehouseError, match=message):
        night.warehouse.record_audit(row)
