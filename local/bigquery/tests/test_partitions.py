"""``table$partition`` as a destination and as the source of a copy."""

from __future__ import annotations

import datetime

import pytest
from google.api_core.exceptions import BadRequest, Conflict
from google.cloud import bigquery

from local.bigquery.tests.support import Warehouse, records

pytestmark = pytest.mark.integration

FIRST, SECOND = datetime.date(2026, 3, 1), datetime.date(2026, 3, 2)
BY_DAY = bigquery.TimePartitioning(field="day")


@pytest.fixture
def two_days(warehouse: Warehouse) -> Warehouse:
    """Ten rows of the first of March and twenty of the second, in the table `t`."""
    warehouse.load("t", records(0, 10, FIRST) + records(10, 30, SECOND), time_partitioning=BY_DAY)
    return warehouse


def per_day(warehouse: Warehouse) -> dict[datetime.date, int]:
    return dict(warehouse.rows(f"SELECT day, COUNT(*) FROM `{warehouse.name('t')}` GROUP BY day"))


@pytest.mark.gate
def test_a_load_replaces_one_partition(two_days: Warehouse) -> None:
    two_days.load("t$20260301", records(100, 103, FIRST), write_disposition="WRITE_TRUNCATE", time_partitioning=BY_DAY)

    assert per_day(two_days) == {FIRST: 3, SECOND: 20}


def test_a_load_appends_to_one_partition(two_days: Warehouse) -> None:
    two_days.load("t$20260301", records(100, 103, FIRST), write_disposition="WRITE_APPEND")

    assert per_day(two_days) == {FIRST: 13, SECOND: 20}


def test_a_load_into_an_empty_partition_only(two_days: Warehouse) -> None:
    two_days.load("t$20260303", records(100, 103, datetime.date(2026, 3, 3)), write_disposition="WRITE_EMPTY")

    with pytest.raises(Conflict):
        two_days.load("t$20260301", records(100, 103, FIRST), write_disposition="WRITE_EMPTY")

    assert per_day(two_days) == {FIRST: 10, SECOND: 20, datetime.date(2026, 3, 3): 3}


def test_rows_of_another_partition_fail_the_load(two_days: Warehouse) -> None:
    rows = records(100, 103, FIRST) + records(103, 104, SECOND)

    with pytest.raises(BadRequest, match="different partitions"):
        two_days.load("t$20260301", rows, write_disposition="WRITE_TRUNCATE")

    assert per_day(two_days) == {FIRST: 10, SECOND: 20}


def test_a_query_may_replace_the_partition_that_it_reads(two_days: Warehouse) -> None:
    config = bigquery.QueryJobConfig(destination=two_days.name("t$20260302"), write_disposition="WRITE_TRUNCATE")

    two_days.run(f"SELECT * FROM `{two_days.name('t')}` WHERE day = '2026-03-02' AND id < 15", config)

    assert per_day(two_days) == {FIRST: 10, SECOND: 5}


def test_a_copy_of_one_partition(two_days: Warehouse) -> None:
    two_days.client.copy_table(two_days.name("t$20260301"), two_days.name("copy")).result()

    assert two_days.count("copy") == 10


def test_a_partition_of_an_integer_range(warehouse: Warehouse) -> None:
    by_range = bigquery.RangePartitioning(field="id", range_=bigquery.PartitionRange(start=0, end=100, interval=10))
    warehouse.load("t", records(0, 30), range_partitioning=by_range)

    warehouse.load("t$10", records(10, 11), write_disposition="WRITE_TRUNCATE")

    assert [row[0] for row in warehouse.rows(f"SELECT id FROM `{warehouse.name('t')}` ORDER BY id")] == [
        *range(11),
        *range(20, 30),
    ]


def test_a_table_without_partitions_has_none(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 1))

    with pytest.raises(BadRequest, match="not partitioned"):
        warehouse.load("t$20260301", records(0, 1, FIRST))


@pytest.mark.parametrize(
    ("column", "ranges", "said"),
    [
        ("text", "GENERATE_ARRAY(0, 10, 1)", "PARTITION BY expression must be"),
        ("embedding", "GENERATE_ARRAY(0, 10, 1)", "PARTITION BY expression must be"),
        ("id", "GENERATE_ARRAY(0, 10001, 1)", "at most 10000"),
        ("id", "GENERATE_ARRAY(0, 100010, 10)", "at most 10000"),
    ],
)
@pytest.mark.parametrize("temporary", ["", "TEMP "])
def test_an_integer_range_is_of_an_integer_and_has_so_many_partitions(
    warehouse: Warehouse, temporary: str, column: str, ranges: str, said: str
) -> None:
    warehouse.load("t", records(0, 1))
    name = "parts" if temporary else f"`{warehouse.name('new')}`"
    create = (
        f"CREATE {temporary}TABLE {name} PARTITION BY RANGE_BUCKET({column}, {{}}) AS SELECT * FROM `{warehouse.name('t')}`"
    )

    with pytest.raises(BadRequest, match=said):
        warehouse.run(f"{create.format(ranges)}; SELECT 1")
    warehouse.run(f"{create.replace(column, 'id').format('GENERATE_ARRAY(0, 10000, 1)')}; SELECT 1")


def test_a_temporary_table_needs_a_script_or_a_session(warehouse: Warehouse) -> None:
    with pytest.raises(BadRequest, match="Use of CREATE TEMPORARY TABLE requires a script or session"):
        warehouse.run("CREATE TEMP TABLE t AS SELECT 1 AS x")
    assert warehouse.rows("CREATE TEMP TABLE t AS SELECT 1 AS x; SELECT x FROM t") == [(1,)]
