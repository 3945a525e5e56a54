"""Queries: parameters, types, functions, result tables, dry runs."""

from __future__ import annotations

import datetime

import pytest
from google.api_core.exceptions import BadRequest, NotFound
from google.cloud import bigquery

from local.bigquery.tests.support import DAY, Warehouse, parameters, records

pytestmark = pytest.mark.integration


@pytest.mark.gate
def test_parameters_of_every_shape(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 10))
    config = bigquery.QueryJobConfig(
        query_parameters=[
            bigquery.ScalarQueryParameter("least", "INT64", 5),
            bigquery.ScalarQueryParameter("day", "DATE", DAY),
            bigquery.ArrayQueryParameter("texts", "STRING", ["text 4", "text 5", "text 6"]),
            bigquery.StructQueryParameter("both", bigquery.ScalarQueryParameter("x", "INT64", 1)),
        ]
    )

    rows = warehouse.rows(
        f"SELECT id FROM `{warehouse.name('t')}` "
        "WHERE id >= @least AND day = @day AND text IN UNNEST(@texts) AND @both.x = 1 ORDER BY id",
        config,
    )

    assert rows == [(5,), (6,)]


def test_a_string_parameter_is_never_read_as_sql(warehouse: Warehouse) -> None:
    text = "'; DROP TABLE t; -- \x00 🦆"

    assert warehouse.rows("SELECT @text, CHAR_LENGTH(@text)", parameters(text=text)) == [(text, len(text))]


def test_search_by_cosine_distance_to_a_parameter(warehouse: Warehouse) -> None:
    """What the demo's search does."""
    warehouse.run(
        f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 'same' AS name, [3.0, 4.0] AS v "
        "UNION ALL SELECT 'orthogonal', [4.0, -3.0] UNION ALL SELECT 'opposite', [-3.0, -4.0]"
    )

    rows = warehouse.rows(
        f"SELECT name, ROUND(COSINE_DISTANCE(v, @query), 9) FROM `{warehouse.name('t')}` ORDER BY 2",
        parameters(query=[0.6, 0.8]),
    )

    assert rows == [("same", 0.0), ("orthogonal", 1.0), ("opposite", 2.0)]


def test_arrays(warehouse: Warehouse) -> None:
    warehouse.load("t", records(4, 5))

    rows = warehouse.rows(
        f"SELECT embedding, ARRAY_LENGTH(embedding), (SELECT SUM(e) FROM UNNEST(embedding) e) FROM `{warehouse.name('t')}`"
    )

    assert rows == [([0.5, 4.0], 2, 4.5)]


def test_json_columns(warehouse: Warehouse) -> None:
    warehouse.load("t", records(3, 4))

    rows = warehouse.rows(
        f"SELECT JSON_VALUE(attributes, '$.k'), LAX_INT64(attributes.k), attributes FROM `{warehouse.name('t')}`"
    )

    assert rows == [("3", 3, {"k": 3})]


def test_json_functions(warehouse: Warehouse) -> None:
    rows = warehouse.rows(
        """SELECT JSON_QUERY(JSON '{"a": {"b": [1, 2]}}', '$.a.b'), TO_JSON_STRING(STRUCT(1 AS a, [1.5] AS b)),
        PARSE_JSON('{"z": 1}'), SAFE.PARSE_JSON('nope'), JSON_EXTRACT_SCALAR('{"q": "w"}', '$.q'), TO_JSON(STRUCT(1 AS a))"""
    )

    assert rows == [([1, 2], '{"a":1,"b":[1.5]}', {"z": 1}, None, "w", {"a": 1})]


def test_hashes_and_formats_agree_with_bigquery(warehouse: Warehouse) -> None:
    rows = warehouse.rows(
        "SELECT FARM_FINGERPRINT('abc'), TO_HEX(SHA256('abc')), TO_HEX(MD5('a')), MOD(ABS(FARM_FINGERPRINT('x')), 16), "
        "FORMAT('%05d', 7)"
    )

    assert rows == [
        (
            2640714258260161385,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "0cc175b9c0f1b6a831c399e269772661",
            rows[0][3],
            "00007",
        )
    ]
    assert 0 <= rows[0][3] < 16


def test_window_functions_with_qualify(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 9))

    rows = warehouse.rows(
        f"SELECT id FROM `{warehouse.name('t')}` WHERE TRUE "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY MOD(id, 3) ORDER BY id DESC) = 1 ORDER BY id"
    )

    assert rows == [(6,), (7,), (8,)]


def test_a_table_made_from_a_query_keeps_its_layout(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 10))
    warehouse.run(
        f"CREATE TABLE `{warehouse.name('made')}` PARTITION BY day CLUSTER BY id OPTIONS(labels=[('k', 'v')]) "
        f"AS SELECT id, day, embedding FROM `{warehouse.name('t')}`"
    )

    made = warehouse.client.get_table(warehouse.name("made"))

    assert (made.num_rows, made.time_partitioning.field, made.clustering_fields, made.labels) == (10, "day", ["id"], {"k": "v"})


def test_create_or_replace_replaces_schema_and_rows(warehouse: Warehouse) -> None:
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 'old' AS old")
    warehouse.run(
        f"CREATE OR REPLACE TABLE `{warehouse.name('t')}` AS SELECT 1 AS id, [1.5, 2.5] AS v, JSON '{{\"a\": 1}}' AS j"
    )

    (row,) = warehouse.client.query(f"SELECT *, j.a AS a FROM `{warehouse.name('t')}`").result()

    assert dict(row) == {"id": 1, "v": [1.5, 2.5], "j": {"a": 1}, "a": 1}


def test_create_table_if_not_exists_leaves_a_table_alone(warehouse: Warehouse) -> None:
    create = f"CREATE TABLE IF NOT EXISTS `{warehouse.name('t')}` (id INT64, day DATE) PARTITION BY day"
    warehouse.run(create)
    warehouse.run(f"INSERT INTO `{warehouse.name('t')}` VALUES (1, '2026-01-01')")
    warehouse.run(create)

    assert warehouse.count("t") == 1
    assert warehouse.client.get_table(warehouse.name("t")).time_partitioning.field == "day"


def test_a_destination_is_replaced_or_appended_to(warehouse: Warehouse) -> None:
    sizes = []
    for disposition in ("WRITE_TRUNCATE", "WRITE_APPEND", "WRITE_TRUNCATE"):
        config = bigquery.QueryJobConfig(destination=warehouse.name("t"), write_disposition=disposition)
        warehouse.run("SELECT 1 AS a UNION ALL SELECT 2", config)
        sizes.append(warehouse.count("t"))

    assert sizes == [2, 4, 2]


@pytest.mark.gate
def test_a_dry_run_tells_the_schema_and_runs_nothing(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 3))
    config = parameters(partition=DAY)
    config.dry_run = True

    job = warehouse.client.query(
        f"SELECT id, text, day, attributes, embedding, 1.5 AS f, STRUCT(1 AS a) AS s FROM `{warehouse.name('t')}` "
        "WHERE day = @partition",
        job_config=config,
    )
    warehouse.client.query(f"DELETE FROM `{warehouse.name('t')}` WHERE TRUE", job_config=bigquery.QueryJobConfig(dry_run=True))

    assert job.dry_run
    assert job.schema is not None
    assert [(field.name, field.field_type, field.mode) for field in job.schema] == [
        ("id", "INTEGER", "NULLABLE"),
        ("text", "STRING", "NULLABLE"),
        ("day", "DATE", "NULLABLE"),
        ("attributes", "JSON", "NULLABLE"),
        ("embedding", "FLOAT", "REPEATED"),
        ("f", "FLOAT", "NULLABLE"),
        ("s", "RECORD", "NULLABLE"),
    ]
    assert warehouse.count("t") == 3


@pytest.mark.gate
@pytest.mark.parametrize("sql", ["SELECT id, ERROR(@text) AS x FROM `{}`", "SELECT 1 AS x UNION ALL SELECT ERROR(@text)"])
def test_a_dry_run_of_a_query_with_parameters_reads_no_rows(warehouse: Warehouse, sql: str) -> None:
    warehouse.load("t", records(0, 1))
    config = parameters(text="a row was read")
    config.dry_run = True

    job = warehouse.client.query(sql.format(warehouse.name("t")), job_config=config)

    assert job.schema is not None
    assert job.schema[-1].name == "x"


@pytest.mark.parametrize(
    ("sql", "error", "message"),
    [
        ("SELECT nope FROM `{}`", BadRequest, "Unrecognized name: nope"),
        ("SELECT id FROM `{}_missing`", NotFound, "Not found: Table"),
        ("SELEC id FROM `{}`", BadRequest, "Syntax error"),
        ("SELECT id FROM `{}` WHERE day = @partition", BadRequest, "Query parameter 'partition' not found"),
    ],
)
def test_a_dry_run_names_what_is_wrong(warehouse: Warehouse, sql: str, error: type[Exception], message: str) -> None:
    warehouse.load("t", records(0, 1))

    with pytest.raises(error, match=message):
        warehouse.client.query(sql.format(warehouse.name("t")), job_config=bigquery.QueryJobConfig(dry_run=True))


def test_dates_come_back_as_dates(warehouse: Warehouse) -> None:
    ((day, moment),) = warehouse.rows("SELECT DATE '2026-03-01', TIMESTAMP '2026-03-01 12:00:00+01:00'")

    assert day == datetime.date(2026, 3, 1)
    assert moment == datetime.datetime(2026, 3, 1, 11, tzinfo=datetime.UTC)
