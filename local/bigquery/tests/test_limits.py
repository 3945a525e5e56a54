"""BigQuery's limits: what is over them is refused, and nothing of it is done."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPICallError
from google.cloud import bigquery

from local.bigquery.tests.support import Bucket, Warehouse, load_config, new_job_id, parquet_bytes, vectors

pytestmark = pytest.mark.integration

DAYS = bigquery.TimePartitioning(field="day")


def days(count: int) -> bytes:
    first = datetime.date(2000, 1, 1)
    return parquet_bytes(pa.table({"day": [first + datetime.timedelta(days=n) for n in range(count)]}))


@pytest.mark.gate
def test_a_load_job_has_at_most_ten_thousand_uris(warehouse: Warehouse, bucket: Bucket) -> None:
    uri, job_id = bucket.put("a.parquet", parquet_bytes(vectors(0, 2))), new_job_id()

    with pytest.raises(BadRequest, match="10001, and the limit is 10000"):
        warehouse.load_uris("t", [uri] * 10_001, load_config(), job_id)

    assert warehouse.load_uris("t", [uri], load_config(), job_id) == 2, "the refused job was never there"


@pytest.mark.gate
def test_a_job_writes_into_at_most_four_thousand_partitions(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.put("a.parquet", days(4_001))

    with pytest.raises(BadRequest, match="Too many partitions produced by query, allowed 4000, query produces at least 4001"):
        warehouse.load_uris("t", [uri], load_config(time_partitioning=DAYS))

    assert list(warehouse.client.list_tables(warehouse.dataset)) == []


def test_the_result_of_a_query_goes_into_so_many_partitions(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.limit(partitions_per_job=3)
    destination = bigquery.TableReference.from_string(warehouse.name("t"))
    config = bigquery.QueryJobConfig(destination=destination, time_partitioning=DAYS, write_disposition="WRITE_APPEND")
    query = "SELECT day FROM UNNEST(GENERATE_DATE_ARRAY('2026-01-01', '2026-01-{:02}')) AS day"

    warehouse.run(query.format(3), config)
    with pytest.raises(BadRequest, match="allowed 3, query produces at least 4"):
        warehouse.run(query.format(4), config)

    assert warehouse.count("t") == 3


@pytest.mark.gate
def test_a_table_is_written_so_often_a_day(warehouse: Warehouse, bucket: Bucket) -> None:
    """Failed loads count, DML does not, and neither does what another table gets."""
    warehouse.limit(writes_per_day=2)
    uri = bucket.put("a.parquet", parquet_bytes(vectors(0, 2)))
    warehouse.load_uris("t", [uri], load_config())
    with pytest.raises(BadRequest):
        warehouse.load_uris("t", [uri], load_config(schema=[bigquery.SchemaField("embedding", "DATE")]))
    warehouse.run(f"INSERT INTO `{warehouse.name('t')}` VALUES (7, [0.5])")

    with pytest.raises(Forbidden, match="exceeded quota for imports or query appends per table") as refused:
        warehouse.load_uris("t", [uri], load_config())

    assert refused.value.errors[0]["reason"] == "quotaExceeded"
    assert warehouse.count("t") == 3
    assert warehouse.load_uris("other", [uri], load_config()) == 2


@pytest.mark.gate
@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("statement", ["DELETE FROM `{}` WHERE FALSE", "INSERT INTO `{}` (n) SELECT n FROM `{}` WHERE FALSE"])
def test_dml_needs_the_right_to_update(warehouse: Warehouse, statement: str, dry_run: bool) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 1 AS n")
    sql, config = statement.format(warehouse.name("t"), warehouse.name("t")), bigquery.QueryJobConfig(dry_run=dry_run)
    warehouse.limit(data_updates=False)

    with pytest.raises(Forbidden, match=r"Permission bigquery\.tables\.updateData denied on table") as refused:
        warehouse.client.query(sql, config, job_retry=None).result()

    assert refused.value.errors[0]["reason"] == "accessDenied"
    assert warehouse.count("t") == 1
    warehouse.limit()
    warehouse.client.query(sql, config, job_retry=None)


@pytest.mark.parametrize("dry_run", [True, False])
def test_rows_of_upsert_streams_take_no_delete(warehouse: Warehouse, dry_run: bool) -> None:
    """An INSERT is taken."""
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 1 AS n")
    config = bigquery.QueryJobConfig(dry_run=dry_run)
    warehouse.limit(upserts=True)

    with pytest.raises(BadRequest, match="are not supported over tables that had UPSERT streams"):
        warehouse.client.query(f"DELETE FROM `{warehouse.name('t')}` WHERE n = 1", config, job_retry=None).result()
    warehouse.client.query(f"INSERT INTO `{warehouse.name('t')}` VALUES (2)", config, job_retry=None)


def test_the_text_of_a_query_has_at_most_a_million_characters(warehouse: Warehouse) -> None:
    most = 1 << 20
    query = "SELECT 1 -- "

    warehouse.run(query + "x" * (most - len(query)))
    with pytest.raises(BadRequest, match=r"The query is too large. The maximum standard SQL query length is 1024\.00K"):
        warehouse.run(query + "x" * (most - len(query) + 1))


def test_a_query_has_at_most_ten_thousand_parameters(warehouse: Warehouse) -> None:
    parameters = [bigquery.ScalarQueryParameter(f"p{n}", "INT64", n) for n in range(10_001)]

    with pytest.raises(BadRequest, match="10001, and the limit is 10000"):
        warehouse.run("SELECT @p0", bigquery.QueryJobConfig(query_parameters=parameters))


@pytest.mark.gate
def test_a_request_has_at_most_ten_megabytes(warehouse: Warehouse) -> None:
    large = bigquery.ScalarQueryParameter("p", "STRING", "x" * (10 << 20))

    with pytest.raises(GoogleAPICallError, match="Request payload size exceeds the limit: 10485760 bytes") as refused:
        warehouse.run("SELECT @p", bigquery.QueryJobConfig(query_parameters=[large]))

    assert refused.value.code == 413
