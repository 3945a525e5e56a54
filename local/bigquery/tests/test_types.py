"""The rules of types, of names and of texts that DuckDB does not have: what BigQuery refuses is refused, in a dry run too."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import bigquery

from local.bigquery.tests.support import Bucket, Warehouse, parameters

pytestmark = [pytest.mark.integration, pytest.mark.gate]

DAY = datetime.date(2026, 1, 1)


def dry(warehouse: Warehouse, sql: str, **values: object) -> bigquery.QueryJob:
    config = parameters(**values)
    config.dry_run = True
    return warehouse.client.query(sql, job_config=config, job_retry=None)


@pytest.fixture
def events(warehouse: Warehouse) -> str:
    warehouse.run(
        f"CREATE TABLE `{warehouse.name('t')}` "
        "(id INT64, s STRING, day DATE, at TIMESTAMP, civil DATETIME, n NUMERIC, f FLOAT64)"
    )
    return f"`{warehouse.name('t')}`"


def test_a_timestamp_is_not_compared_with_the_date_of_the_run(warehouse: Warehouse, events: str) -> None:
    said = r"(?s)No matching signature for operator = for argument types: TIMESTAMP, DATE.*\{DATE, TIMESTAMP\} at \[1:\d+\]"
    query = f"SELECT id FROM {events} WHERE at = @partition"

    for sql in (query, f"WITH e AS (SELECT * FROM {events}) SELECT id FROM e WHERE e.at = @partition"):
        with pytest.raises(BadRequest, match=said):
            dry(warehouse, sql, partition=DAY)
    with pytest.raises(BadRequest, match=said):
        warehouse.rows(query, parameters(partition=DAY))
    with pytest.raises(BadRequest, match="operator = for argument types: STRING, DATE"):
        dry(warehouse, f"SELECT id FROM {events} WHERE s = @partition", partition=DAY)
    for taken in (
        "DATE(at) = @partition",
        "day = @partition",
        "civil >= @partition",
        "at >= TIMESTAMP(@partition)",
        "at > '2026-01-01'",
    ):
        assert dry(warehouse, f"SELECT id FROM {events} WHERE {taken}", partition=DAY).state == "DONE"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT COALESCE(1, 'a')", "No matching signature for function COALESCE"),
        ("SELECT IF(TRUE, 1, 'a')", "No matching signature for function IF"),
        ("SELECT 1 UNION ALL SELECT 'a'", "Column 1 in UNION ALL has incompatible types: INT64, STRING"),
        ("SELECT [1, 'a']", r"Array elements of types \{INT64, STRING\} do not have a common supertype"),
    ],
)
def test_values_without_a_common_type_are_refused(warehouse: Warehouse, sql: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        dry(warehouse, sql)
    with pytest.raises(BadRequest, match=said):
        warehouse.rows(sql)


def test_what_is_written_has_the_type_of_its_column(warehouse: Warehouse, events: str) -> None:
    with pytest.raises(
        BadRequest, match="Query column 1 has type TIMESTAMP which cannot be inserted into column day, which has type DATE"
    ):
        warehouse.run(f"INSERT INTO {events} (day) SELECT CURRENT_TIMESTAMP()")
    with pytest.raises(BadRequest, match="Value of type STRING cannot be assigned to id, which has type INT64"):
        warehouse.run(f"UPDATE {events} SET id = 'a' WHERE TRUE")
    warehouse.run(f"INSERT INTO {events} (day, n, f) SELECT '2026-01-01', 1, 2")

    assert warehouse.rows(f"SELECT day, n, f FROM {events}") == [(DAY, Decimal(1), 2.0)]


def test_two_columns_of_one_name_are_refused(warehouse: Warehouse, bucket: Bucket, events: str) -> None:
    said = r"Duplicate column names in the result are not supported. Found duplicate\(s\): "
    join = f"SELECT * FROM {events} AS a JOIN {events} AS b ON a.id = b.id WHERE a.day = @partition"

    with pytest.raises(BadRequest, match=f"{said}id, s, day, at"):
        dry(warehouse, join, partition=DAY)
    with pytest.raises(BadRequest, match=f"{said}A"):
        warehouse.rows("SELECT 1 AS a, 2 AS A")
    with pytest.raises(BadRequest, match=f"{said}id"):
        warehouse.run(
            f"EXPORT DATA OPTIONS(uri='{bucket.uri('*')}', format='PARQUET') AS SELECT id, s AS ID FROM {events}".replace(
                "ID", "id"
            )
        )
    with pytest.raises(BadRequest, match="CREATE TABLE has columns with duplicate name id"):
        warehouse.run(f"CREATE TABLE `{warehouse.name('u')}` AS SELECT a.*, b.id FROM {events} AS a, {events} AS b")
    for unnamed in ("SELECT id, UPPER('a')", "SELECT id, CAST(id AS STRING)", "SELECT *, 1 AS x"):
        source = f"(SELECT id, LOWER('b') FROM {events})" if "*" in unnamed else events
        with pytest.raises(BadRequest, match="CREATE TABLE columns must be named, but column 2 has no name"):
            warehouse.run(f"CREATE TABLE `{warehouse.name('u')}` AS {unnamed} FROM {source}")
    # Inside a query they are allowed.
    assert warehouse.rows("SELECT COUNT(*) FROM (SELECT 1 AS a, 2 AS a)") == [(1,)]


@pytest.mark.parametrize(
    "name", ["_PARTITIONTIME", "_partitiondate", "_TABLE_SUFFIX", "_FILE_NAME", "_ROW_TIMESTAMP", "__ROOT__x"]
)
def test_a_reserved_prefix_begins_no_name_of_a_column(warehouse: Warehouse, name: str) -> None:
    said = f'Invalid field name "{name}". Field names are not allowed to start with the '
    with pytest.raises(BadRequest, match=said):
        dry(warehouse, f"SELECT 1 AS {name}")
    with pytest.raises(BadRequest, match=said):
        warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` ({name} INT64)")
    with pytest.raises(BadRequest, match=said):
        warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 1 AS {name}")
    with pytest.raises(BadRequest, match=said):
        warehouse.client.create_table(bigquery.Table(warehouse.name("t"), schema=[bigquery.SchemaField(name, "INT64")]))
    config = bigquery.LoadJobConfig(schema=[bigquery.SchemaField(name, "INT64")])
    with pytest.raises(BadRequest, match=said):
        warehouse.client.load_table_from_json([{name: 1}], warehouse.name("t"), job_config=config).result()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("NUMERIC '12.5'", "12.5"),
        ("NUMERIC '0'", "0"),
        ("NUMERIC '40'", "40"),
        ("NUMERIC '-0.000000001'", "-0.000000001"),
        ("CAST('12.50' AS BIGNUMERIC)", "12.5"),
        ("NUMERIC '1.5' * 2", "3"),
        ("1.0", "1"),
        ("0.1", "0.1"),
        ("-0.0", "0"),
        ("1e15", "1e+15"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("CAST('nan' AS FLOAT64)", "nan"),
        ("CAST('-inf' AS FLOAT64)", "-inf"),
        ("9007199254740993", "9007199254740993"),
    ],
)
def test_a_number_is_cast_to_the_text_that_bigquery_makes_of_it(warehouse: Warehouse, value: str, text: str) -> None:
    assert warehouse.rows(f"SELECT CAST({value} AS STRING), CAST(v AS STRING) FROM (SELECT {value} AS v) GROUP BY v") == [
        (text, text)
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("NUMERIC '12.5'", '"12.5"'),
        ("NUMERIC '40'", "40"),
        ("NUMERIC '9007199254740993'", '"9007199254740993"'),
        ("1.0", "1"),
        ("0.1", "0.1"),
        ("CAST('nan' AS FLOAT64)", '"NaN"'),
        ("CAST('inf' AS FLOAT64)", '"Infinity"'),
        ("CAST('-inf' AS FLOAT64)", '"-Infinity"'),
        ("9007199254740992", "9007199254740992"),
        ("9007199254740993", '"9007199254740993"'),
        ("TIMESTAMP '2017-03-06 12:34:56.789012'", '"2017-03-06T12:34:56.789012Z"'),
        ("DATETIME '2017-03-06 12:34:56.789012'", '"2017-03-06T12:34:56.789012"'),
        ("DATE '2017-03-06'", '"2017-03-06"'),
        ("b'Google'", '"R29vZ2xl"'),
        (r"b'\x00\xff\377\\x'", '"AP//XHg="'),
        ("b'é'", '"w6k="'),
        ("CAST(NULL AS NUMERIC)", "null"),
        ("'a\"b'", r'"a\"b"'),
        ("[1.5, CAST('nan' AS FLOAT64)]", '[1.5,"NaN"]'),
        ("STRUCT(NUMERIC '0.5' AS n, 'x' AS s, TRUE AS b)", '{"n":"0.5","s":"x","b":true}'),
        (
            "STRUCT(STRUCT(CAST('inf' AS FLOAT64) AS f) AS inner_one, [NUMERIC '1'] AS many)",
            '{"inner_one":{"f":"Infinity"},"many":[1]}',
        ),
    ],
)
def test_a_value_is_written_as_json_as_documented(warehouse: Warehouse, value: str, text: str) -> None:
    assert warehouse.rows(f"SELECT TO_JSON_STRING({value}), TO_JSON_STRING(v) FROM (SELECT {value} AS v)") == [(text, text)]
