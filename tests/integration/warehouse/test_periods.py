"""A job with periods shorter than a day: what its query reads, and that publishing replaces one period and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.hooks import warehouse as hook
from nightshift.run.manifest import load_manifest
from nightshift.run.opening import open_run
from nightshift.run.plan import load_plan
from nightshift.run.seal import seal
from nightshift.warehouse import WarehouseError
from nightshift.warehouse.audit import audit_row
from tests.builders import a_spec
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import TEXTS, Night, prediction
from tests.integration.warehouse.test_plan_operator import Planner

pytestmark = pytest.mark.integration

SEVEN, EIGHT = "2026-11-20T0700", "2026-11-20T0800"
NEXT_DAY = "2026-11-21T0700"


@pytest.fixture
def hourly(night: Night) -> Night:
    """Rows that came at 06:59:59, 07:00, 07:59:59 and 08:00; the job takes those of an hour."""
    name = night.settings.bucket
    night.rows(
        f"CREATE TABLE `{name}.uploads` (name STRING, version INT64, text STRING, at TIMESTAMP); "
        f"INSERT INTO `{name}.uploads` VALUES ('before', 0, 'x', TIMESTAMP '2026-11-20 06:59:59+00'), "
        "('first', 1, 'x', TIMESTAMP '2026-11-20 07:00:00+00'), ('last', 2, 'x', TIMESTAMP '2026-11-20 07:59:59.999999+00'), "
        "('after', 3, 'x', TIMESTAMP '2026-11-20 08:00:00+00')"
    )
    query = f"SELECT name, version, text FROM `{name}.uploads` WHERE at >= @partition AND at < @partition_end"
    spec = a_spec(
        every="1h",
        source={"query": query, "key": ["name", "version"]},
        destination={"table": f"{name}.vectors", "column": "vector", "partition_column": "period_start"},
        compute__rows_per_worker_per_second=20,
    )
    return replace(night, spec=spec)


def published(night: Night, partition: str, names: list[str], *, generation: int = 1, dead: tuple[int, ...] = ()) -> Any:
    run = night.run_of(partition, generation)
    return night.publish(run, night.seal(run, names, dead=dead, bias=float(generation)))


def shown(night: Night) -> list[tuple[str, str, float]]:
    rows = night.rows(f"SELECT period_start, name, vector[OFFSET(0)] FROM `{night.destination}` ORDER BY 1, 2")
    return [(f"{start:%dT%H%M}", name, first) for start, name, first in rows]


def value(ordinal: int, generation: int = 1) -> float:
    return prediction(ordinal, float(generation))[0]


@pytest.mark.gate
def test_publishing_replaces_one_period_and_no_other(hourly: Night) -> None:
    for partition in (SEVEN, EIGHT, NEXT_DAY):
        counts = published(hourly, partition, ["a", "b"], dead=(1,))
        assert (counts["partition"], counts["predictions"], counts["dead_letters"]) == (partition, 1, 1)
    published(hourly, SEVEN, ["a", "c"], generation=2)

    assert shown(hourly) == [
        ("20T0700", "a", value(0, 2)),
        ("20T0700", "c", value(1, 2)),
        ("20T0800", "a", value(0)),
        ("21T0700", "a", value(0)),
    ]
    table = hourly.client.get_table(hourly.destination)
    assert table.time_partitioning is not None
    assert (table.time_partitioning.field, table.time_partitioning.type_) == ("period_start", "DAY")
    assert {field.name: field.field_type for field in table.schema}["period_start"] == "TIMESTAMP"
    own = f"{PROJECT}.{hourly.settings.dataset}"
    dead = hourly.rows(f"SELECT partition_date, partition_time FROM `{own}.dead_letters` ORDER BY 2")
    assert [(f"{day}", f"{time:%H%M}") for day, time in dead] == [("2026-11-20", "0800"), ("2026-11-21", "0700")]
    recorded = hourly.rows(f"SELECT partition_time, COUNT(*) FROM `{own}.publications` GROUP BY 1 ORDER BY 1")
    assert [(f"{time:%dT%H%M}", times) for time, times in recorded] == [("20T0700", 2), ("20T0800", 1), ("21T0700", 1)]


def test_an_earlier_run_of_the_period_is_refused_whatever_other_periods_show(hourly: Night) -> None:
    published(hourly, EIGHT, ["a"], generation=2)
    published(hourly, SEVEN, ["a"], generation=1)
    earlier = hourly.run_of(EIGHT, 1)
    hourly.warehouse.check_may_replace(hourly.spec, hourly.run_of(SEVEN, 1), "2026-11-21T01:00:01+00:00")

    with pytest.raises(WarehouseError, match=f"Partition {EIGHT} of .* shows run .*-g2, asked for at"):
        hourly.warehouse.check_may_replace(hourly.spec, earlier, "2026-11-21T01:00:01+00:00")


def test_rows_of_somebody_else_in_another_period_do_not_matter(hourly: Night) -> None:
    published(hourly, SEVEN, ["a"])
    hourly.rows(
        f"INSERT INTO `{hourly.destination}` (name, period_start) VALUES ('theirs', TIMESTAMP '2026-11-20 08:00:00+00')"
    )
    published(hourly, SEVEN, ["b"], generation=2)

    asked_at = "2026-11-21T01:00:01+00:00"
    with pytest.raises(WarehouseError, match=r"= TIMESTAMP '2026-11-20T08:00:00\+00:00'") as caught:
        hourly.warehouse.check_may_replace(hourly.spec, hourly.run_of(EIGHT), asked_at)
    hourly.rows(str(caught.value).partition("delete them: ")[2])
    hourly.warehouse.check_may_replace(hourly.spec, hourly.run_of(EIGHT), asked_at)


@pytest.mark.gate
def test_the_query_reads_the_rows_of_its_period(hourly: Night) -> None:
    hourly.warehouse.check_query(hourly.spec, SEVEN)
    assert [hourly.warehouse.count_rows(hourly.spec, each) for each in (SEVEN, EIGHT, NEXT_DAY)] == [2, 1, 0]
    run = hourly.run_of(SEVEN)
    hourly.source = hourly.warehouse.read_source(hourly.spec, SEVEN)

    assert hourly.extract(run).rows == 2


def test_from_rows_to_predictions(hourly: Night) -> None:
    """Every step that Airflow's tasks take, and a real driver."""
    run = open_run(hourly.store, hourly.spec, SEVEN, opened_by="r", project=hourly.settings.project)
    assert run == hourly.run_of(SEVEN)
    hourly.source = hourly.warehouse.read_source(hourly.spec, SEVEN)
    plan = hourly.extract(run)
    hourly.compute(run, plan)
    counts = hourly.publish(run, seal(hourly.store, run, hourly.spec, plan))
    manifest = load_manifest(hourly.store, run)
    stored = load_plan(hourly.store, run)
    assert manifest is not None
    assert stored is not None
    hourly.warehouse.record_audit(audit_row(hourly.spec, run, stored, manifest, counts, dag_run_id="r"))

    assert [(start, name) for start, name, _ in shown(hourly)] == [("20T0700", "first"), ("20T0700", "last")]
    (row,) = hourly.rows(f"SELECT partition_date, partition_time, predictions FROM `{hourly.settings.dataset}.audit`")
    assert (f"{row[0]}", f"{row[1]:%H%M}", row[2]) == ("2026-11-20", "0700", 2)


def test_airflows_tasks_take_a_period(hourly: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook, "warehouse_for", lambda _settings, **_: hourly.warehouse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    planner = Planner(hourly)
    told = planner.told("2026-11-20T07:00", run_type="scheduled")
    assert (told["partition"], told["rows"]) == (SEVEN, 2)
    assert "Partitions before this one have no run (2026-11-18T0500 to 2026-11-20T0600, 50 in all)" in planner.log
    assert told["run_prefix"] == hourly.run_of(SEVEN).prefix

    counts = planner.publish(told)
    assert (counts["partition"], counts["predictions"]) == (SEVEN, len(TEXTS))
    assert {start for start, _, _ in shown(hourly)} == {"20T0700"}
    assert planner.told(SEVEN)["run_prefix"] == told["run_prefix"]
    assert "nothing is computed again" in planner.log
    planner.told(EIGHT, run_type="scheduled")
    assert "have no run" not in planner.log


def test_a_destination_that_holds_days_does_not_take_periods(hourly: Night) -> None:
    name = hourly.spec.destination.table
    hourly.rows(
        f"CREATE TABLE `{name}` (name STRING, version INT64, vector ARRAY<FLOAT64>, period_start DATE, "
        "nightshift_run_id STRING, nightshift_ordinal INT64) PARTITION BY period_start"
    )
    with pytest.raises(WarehouseError, match="has the column period_start as DATE; this job writes TIMESTAMP"):
        hourly.warehouse.check_query(hourly.spec, SEVEN)


def test_our_tables_of_an_earlier_release_get_the_time(night: Night, hourly: Night) -> None:
    """What they have is of days, and stays so."""
    night.publish(night.run, night.seal(night.run, ["a"]))
    own = f"{PROJECT}.{night.settings.dataset}"
    for table in ("publications", "dead_letters", "audit"):
        night.rows(f"ALTER TABLE `{own}.{table}` DROP COLUMN partition_time")
    later = night.run_of("2026-11-20", 2)
    night.publish(later, night.seal(later, ["a", "b"]))
    night.rows(f"DROP TABLE `{night.destination}`")
    published(hourly, SEVEN, ["a"])

    times = night.rows(f"SELECT partition_time IS NULL, COUNT(*) FROM `{own}.publications` GROUP BY 1 ORDER BY 1")
    assert times == [(False, 1), (True, 2)]
