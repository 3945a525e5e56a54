"""What the emulator does not do, and what it does instead. When one fails, `local/bigquery/__init__.py` is out of date."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import bigquery

from local.bigquery.tests.support import Bucket, Warehouse, parquet_bytes, records, vectors

pytestmark = pytest.mark.integration


def test_bytes_are_not_counted(warehouse: Warehouse) -> None:
    """So a limit on billed bytes never fails a query."""
    warehouse.load("t", records(0, 100))

    job = warehouse.run(f"SELECT * FROM `{warehouse.name('t')}`", bigquery.QueryJobConfig(maximum_bytes_billed=1))

    assert (job.total_bytes_processed, job.total_bytes_billed) == (0, 0)


def test_the_information_schema_of_jobs_has_no_byte_counts(warehouse: Warehouse) -> None:
    assert warehouse.rows("SELECT state FROM `region-us`.INFORMATION_SCHEMA.JOBS_BY_PROJECT LIMIT 1") != []
    with pytest.raises(BadRequest, match="Unrecognized name: total_bytes_processed"):
        warehouse.rows("SELECT total_bytes_processed FROM `region-us`.INFORMATION_SCHEMA.JOBS_BY_PROJECT")


def test_tables_partitioned_by_ingestion_time_have_no_such_time(warehouse: Warehouse) -> None:
    table = bigquery.Table(warehouse.name("t"), schema=[bigquery.SchemaField("a", "INT64")])
    table.time_partitioning = bigquery.TimePartitioning(type_="DAY")
    warehouse.client.create_table(table)

    with pytest.raises(BadRequest, match="Unrecognized name: _PARTITIONTIME"):
        warehouse.rows(f"SELECT a, _PARTITIONTIME FROM `{warehouse.name('t')}`")


def test_external_tables_are_not_understood(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.put("a.parquet", parquet_bytes(vectors(0, 2)))

    with pytest.raises(BadRequest, match="syntax error"):
        warehouse.run(f"CREATE EXTERNAL TABLE `{warehouse.name('t')}` OPTIONS(format='PARQUET', uris=['{uri}'])")


@pytest.mark.parametrize("sql", ["SELECT rb'a'", "FROM (SELECT 1 AS a) |> SET a = 2", "SELECT WITH(a AS 1, a + 1)"])
def test_grammar_that_sqlglot_does_not_know_is_not_understood(warehouse: Warehouse, sql: str) -> None:
    """So a job with such a query is valid, and its night cannot be tried here."""
    with pytest.raises(BadRequest, match="Syntax error"):
        warehouse.rows(sql)


def test_vector_search_is_not_understood(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 2))

    with pytest.raises(BadRequest, match="Syntax error: Unexpected TABLE"):
        warehouse.rows(
            f"SELECT base.id FROM VECTOR_SEARCH(TABLE `{warehouse.name('t')}`, 'embedding', (SELECT [0.1, 0.2] AS embedding))"
        )


def test_ml_distance_is_unknown(warehouse: Warehouse) -> None:
    with pytest.raises(BadRequest, match=r"Function not found: ML\.DISTANCE"):
        warehouse.rows("SELECT ML.DISTANCE([1.0], [2.0], 'EUCLIDEAN')")


def test_geography_functions_are_unknown(warehouse: Warehouse) -> None:
    with pytest.raises(BadRequest, match="not"):
        warehouse.rows("SELECT ST_GEOGPOINT(1.0, 2.0)")


def test_an_export_is_one_file_whatever_its_size_unless_it_is_parquet(warehouse: Warehouse, bucket: Bucket) -> None:
    query = "SELECT REPEAT(GENERATE_UUID(), 100) AS s FROM UNNEST(GENERATE_ARRAY(1, 20000))"

    warehouse.run(f"EXPORT DATA OPTIONS(uri='{bucket.uri('*.csv')}', format='CSV') AS {query}")

    assert bucket.names() == ["000000000000.csv"]


def test_a_name_that_two_columns_of_a_subquery_have_is_taken_for_the_first(warehouse: Warehouse) -> None:
    """In BigQuery the column name is ambiguous."""
    assert warehouse.rows("SELECT a FROM (SELECT 1 AS a, 2 AS a)") == [(1,)]


def test_the_types_of_arguments_are_those_that_duckdb_takes(warehouse: Warehouse) -> None:
    """BigQuery's TIMESTAMP_TRUNC takes no DATE."""
    assert warehouse.rows("SELECT TIMESTAMP_TRUNC(DATE '2026-01-02', MONTH) IS NULL") == [(False,)]


def test_a_comparison_of_unknown_types_is_left_to_duckdb(warehouse: Warehouse) -> None:
    """Here of a function's result."""
    warehouse.run(f"CREATE FUNCTION `{warehouse.name('same')}`(x ANY TYPE) AS (x)")

    assert warehouse.rows(f"SELECT `{warehouse.name('same')}`(TIMESTAMP '2026-01-01') = DATE '2026-01-01'") == [(True,)]
