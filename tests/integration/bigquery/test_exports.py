"""Extract jobs and EXPORT DATA, seen through the Cloud Storage client."""

from __future__ import annotations

import datetime
import gzip
import json

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import bigquery

from tests.integration.bigquery.support import (
    DAY,
    NDJSON,
    PARQUET,
    Bucket,
    Warehouse,
    new_job_id,
    parameters,
    records,
)

pytestmark = pytest.mark.integration


def export_sql(uri: str, query: str, options: str = "") -> str:
    return f"EXPORT DATA OPTIONS(uri='{uri}', format='PARQUET'{options}) AS {query}"


def extract_config(**settings: str) -> bigquery.ExtractJobConfig:
    return bigquery.ExtractJobConfig(**settings)  # type: ignore[no-untyped-call]


def test_extract_to_parquet(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.load("t", records(0, 30))

    config = extract_config(destination_format=PARQUET)
    warehouse.client.extract_table(warehouse.name("t"), bucket.uri("out/t.parquet"), job_config=config).result()

    assert bucket.names() == ["out/t.parquet"]
    assert sorted(bucket.parquet("out/t.parquet").column("id").to_pylist()) == list(range(30))


def test_extract_to_json_lines_says_how_many_files(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.load("t", records(0, 30))

    config = extract_config(destination_format=NDJSON)
    job = warehouse.client.extract_table(warehouse.name("t"), bucket.uri("out/*.json"), job_config=config)
    job.result()

    names = bucket.names()
    assert job.destination_uri_file_counts == [len(names)]
    lines = [json.loads(line) for name in names for line in bucket.get(name).splitlines()]
    assert sorted(line["id"] for line in lines) == list(range(30))


def test_extract_compressed(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.load("t", records(0, 3))

    config = extract_config(destination_format=NDJSON, compression="GZIP")
    warehouse.client.extract_table(warehouse.name("t"), bucket.uri("out/*.json.gz"), job_config=config).result()

    (name,) = bucket.names()
    assert len(gzip.decompress(bucket.get(name)).splitlines()) == 3


@pytest.mark.gate
def test_export_of_a_partition_by_parameter_in_order(warehouse: Warehouse, bucket: Bucket) -> None:
    """What extract does: the partition is a query parameter, the order of rows is kept, labels and the job id are ours."""
    warehouse.load("t", records(0, 50) + records(50, 80, DAY + datetime.timedelta(days=1)))
    query = f"SELECT id, embedding FROM `{warehouse.name('t')}` WHERE day = @partition"
    config = parameters(partition=DAY)
    config.labels = {"run": "r1"}

    sql = export_sql(bucket.uri("run/inputs/*.parquet"), f"SELECT * FROM ({query}) ORDER BY id DESC", ", overwrite=true")
    job = warehouse.run(sql, config, new_job_id())

    (name,) = bucket.names("run/inputs/")
    table = bucket.parquet(name)
    assert table.column("id").to_pylist() == list(range(49, -1, -1))
    assert table.column("embedding").to_pylist()[0] == [0.5, 49.0]
    assert (job.statement_type, job.labels) == ("EXPORT_DATA", {"run": "r1"})


def test_export_keeps_the_order_of_more_rows_than_a_row_group_holds(warehouse: Warehouse, bucket: Bucket) -> None:
    numbers = "SELECT MOD(x * 7919, 200003) AS shuffled FROM UNNEST(GENERATE_ARRAY(1, 200000)) AS x"

    warehouse.run(export_sql(bucket.uri("out/*.parquet"), f"{numbers} ORDER BY shuffled"))

    (name,) = bucket.names("out/")
    values = bucket.parquet(name).column("shuffled").to_pylist()
    assert len(values) == 200_000
    assert values == sorted(values)


@pytest.mark.gate
def test_export_has_the_types_of_bigquery(warehouse: Warehouse, bucket: Bucket) -> None:
    query = "SELECT 1 AS i, 1.5 AS f, [1.5] AS v, 'x' AS s, TRUE AS b, DATE '2026-01-01' AS d"

    warehouse.run(export_sql(bucket.uri("out/*.parquet"), query))

    (name,) = bucket.names("out/")
    schema = bucket.parquet(name).schema
    types = [str(field.type).replace("element", "item") for field in schema]
    assert types == ["int64", "double", "list<item: double>", "string", "bool", "date32[day]"]


def test_export_of_no_rows_still_writes_the_schema(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.run(export_sql(bucket.uri("out/*.parquet"), "SELECT 1 AS id FROM UNNEST(CAST([] AS ARRAY<INT64>))"))

    (name,) = bucket.names("out/")
    table = bucket.parquet(name)
    assert (table.column_names, table.num_rows) == (["id"], 0)


@pytest.mark.gate
def test_export_onto_existing_objects_needs_overwrite(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.uri("out/*.parquet")
    warehouse.run(export_sql(uri, "SELECT 1 AS id"))

    with pytest.raises(BadRequest, match="overwrite=true"):
        warehouse.run(export_sql(uri, "SELECT 2 AS id"))
    with pytest.raises(BadRequest, match="overwrite=true"):
        warehouse.run(export_sql(uri, "SELECT 2 AS id", ", overwrite=false"))
    (name,) = bucket.names("out/")
    assert bucket.parquet(name).column("id").to_pylist() == [1]

    warehouse.run(export_sql(uri, "SELECT 3 AS id", ", overwrite=true"))
    assert bucket.parquet(name).column("id").to_pylist() == [3]


@pytest.mark.gate
def test_export_needs_one_wildcard(warehouse: Warehouse, bucket: Bucket) -> None:
    for name in ("out.parquet", "*/out-*.parquet"):
        with pytest.raises(BadRequest, match="single wildcard"):
            warehouse.run(export_sql(bucket.uri(name), "SELECT 1 AS id"))

    assert bucket.names() == []


def test_export_to_a_missing_bucket_fails(warehouse: Warehouse) -> None:
    with pytest.raises(Exception, match="no-such-bucket"):
        warehouse.run(export_sql("gs://no-such-bucket/*.parquet", "SELECT 1 AS id"))
