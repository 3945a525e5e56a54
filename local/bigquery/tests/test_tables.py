"""Datasets, tables and their metadata through the REST API."""

from __future__ import annotations

import contextlib
import datetime
import time

import pytest
from google.api_core.exceptions import BadRequest, Conflict, NotFound, PreconditionFailed
from google.cloud import bigquery

from local.bigquery.tests.support import SCHEMA, Warehouse, records

pytestmark = pytest.mark.integration


def test_a_dataset_is_created_once(warehouse: Warehouse) -> None:
    with pytest.raises(Conflict):
        warehouse.client.create_dataset(warehouse.dataset)


def test_a_dataset_keeps_its_location_and_labels(warehouse: Warehouse) -> None:
    dataset = bigquery.Dataset(f"{warehouse.client.project}.{warehouse.dataset}_labelled")
    dataset.location, dataset.labels = "EU", {"team": "search"}
    warehouse.client.create_dataset(dataset)

    made = warehouse.client.get_dataset(dataset.reference)

    assert (made.location, made.labels) == ("EU", {"team": "search"})


@pytest.mark.gate
def test_a_table_keeps_what_it_was_created_with(warehouse: Warehouse) -> None:
    table = bigquery.Table(warehouse.name("t"), schema=SCHEMA)
    table.time_partitioning = bigquery.TimePartitioning(field="day")
    table.clustering_fields, table.labels, table.description = ["id"], {"owner": "search"}, "Some texts"
    warehouse.client.create_table(table)

    made = warehouse.client.get_table(warehouse.name("t"))

    assert (made.time_partitioning.field, made.clustering_fields) == ("day", ["id"])
    assert (made.labels, made.description) == ({"owner": "search"}, "Some texts")
    assert warehouse.columns("t") == [
        ("id", "INTEGER", "REQUIRED"),
        ("text", "STRING", "NULLABLE"),
        ("day", "DATE", "NULLABLE"),
        ("attributes", "JSON", "NULLABLE"),
        ("embedding", "FLOAT", "REPEATED"),
    ]


def test_a_missing_table_is_not_found(warehouse: Warehouse) -> None:
    with pytest.raises(NotFound):
        warehouse.client.get_table(warehouse.name("nowhere"))
    with pytest.raises(NotFound):
        warehouse.rows(f"SELECT * FROM `{warehouse.name('nowhere')}`")


def test_streamed_rows_are_there_at_once(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 1))

    errors = warehouse.client.insert_rows_json(warehouse.name("t"), [{"id": 1, "text": "streamed"}], row_ids=["1"])

    assert errors == []
    assert warehouse.rows(f"SELECT id, text FROM `{warehouse.name('t')}` ORDER BY id") == [(0, "text 0"), (1, "streamed")]


@pytest.mark.gate
def test_rows_are_listed_page_by_page(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 120))

    pages = warehouse.client.list_rows(warehouse.name("t"), page_size=50).pages

    assert [page.num_items for page in pages] == [50, 50, 20]


@pytest.mark.gate
def test_the_number_of_rows_follows_deletes(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 10))
    warehouse.run(f"DELETE FROM `{warehouse.name('t')}` WHERE id < 3")

    assert warehouse.client.get_table(warehouse.name("t")).num_rows == 7


def test_an_update_adds_columns_and_an_expiry(warehouse: Warehouse) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` (id INT64)")
    table = warehouse.client.get_table(warehouse.name("t"))
    table.expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    table.schema = [*table.schema, bigquery.SchemaField("extra", "STRING")]

    warehouse.client.update_table(table, ["expires", "schema"])

    updated = warehouse.client.get_table(warehouse.name("t"))
    assert [field.name for field in updated.schema] == ["id", "extra"]
    assert updated.expires is not None


def test_an_expired_table_is_gone(warehouse: Warehouse) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` (id INT64)")
    table = warehouse.client.get_table(warehouse.name("t"))
    table.expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    with contextlib.suppress(NotFound):  # If the answer comes so late that it has expired.
        warehouse.client.update_table(table, ["expires"])

    while datetime.datetime.now(datetime.UTC) <= table.expires:
        time.sleep(0.1)

    with pytest.raises(NotFound):
        warehouse.client.get_table(warehouse.name("t"))


def test_an_update_of_an_outdated_copy_is_refused(warehouse: Warehouse) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` (id INT64)")
    first, second = (warehouse.client.get_table(warehouse.name("t")) for _ in range(2))
    first.description = "one"
    warehouse.client.update_table(first, ["description"])
    second.description = "two"

    with pytest.raises(PreconditionFailed):
        warehouse.client.update_table(second, ["description"])


def test_a_table_can_insist_on_a_partition_filter(warehouse: Warehouse) -> None:
    table = bigquery.Table(warehouse.name("t"), schema=SCHEMA)
    table.time_partitioning = bigquery.TimePartitioning(field="day")
    table.require_partition_filter = True
    warehouse.client.create_table(table)

    with pytest.raises(BadRequest, match="without a filter"):
        warehouse.count("t")
    assert warehouse.rows(f"SELECT id FROM `{warehouse.name('t')}` WHERE day = '2026-01-01'") == []


def test_a_deleted_table_is_gone_and_may_be_deleted_again(warehouse: Warehouse) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` (id INT64)")

    for _ in range(2):
        warehouse.client.delete_table(warehouse.name("t"), not_found_ok=True)

    with pytest.raises(NotFound):
        warehouse.client.get_table(warehouse.name("t"))


def test_views_and_functions(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 5))
    warehouse.run(f"CREATE VIEW `{warehouse.name('v')}` AS SELECT id FROM `{warehouse.name('t')}`")
    warehouse.run(f"CREATE FUNCTION `{warehouse.name('twice')}`(x INT64) AS (x * 2)")

    assert warehouse.rows(f"SELECT `{warehouse.name('twice')}`(id) FROM `{warehouse.name('v')}` WHERE id = 3") == [(6,)]


def test_snapshots_and_time_travel(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 5))
    warehouse.run(f"CREATE SNAPSHOT TABLE `{warehouse.name('snapshot')}` CLONE `{warehouse.name('t')}`")
    ((before,),) = warehouse.rows("SELECT CURRENT_TIMESTAMP()")
    warehouse.run(f"DELETE FROM `{warehouse.name('t')}` WHERE TRUE")

    past = warehouse.rows(
        f"SELECT COUNT(*) FROM `{warehouse.name('t')}` FOR SYSTEM_TIME AS OF TIMESTAMP '{before.isoformat()}'"
    )

    assert (past, warehouse.count("t"), warehouse.count("snapshot")) == ([(5,)], 0, 5)


def test_the_information_schema_describes_tables_columns_and_partitions(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 5), time_partitioning=bigquery.TimePartitioning(field="day"))
    schema = f"`{warehouse.client.project}.{warehouse.dataset}`.INFORMATION_SCHEMA"

    assert warehouse.rows(f"SELECT table_name, table_type FROM {schema}.TABLES") == [("t", "BASE TABLE")]
    columns = warehouse.rows(f"SELECT column_name, data_type, is_partitioning_column FROM {schema}.COLUMNS ORDER BY 1")
    assert ("day", "DATE", "YES") in columns
    assert ("embedding", "ARRAY<FLOAT64>", "NO") in columns
    assert warehouse.rows(f"SELECT partition_id, total_rows FROM {schema}.PARTITIONS") == [("20260101", 5)]
