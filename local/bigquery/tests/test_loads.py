"""Load jobs: from files sent with the request and from objects in Cloud Storage."""

from __future__ import annotations

import datetime
import decimal
import io
import json

import pandas as pd
import pyarrow as pa
import pytest
from google.api_core.exceptions import BadRequest, GoogleAPICallError, NotFound
from google.cloud import bigquery

from local.bigquery.tests.support import (
    NDJSON,
    PARQUET,
    SCHEMA,
    Bucket,
    Warehouse,
    load_config,
    parquet_bytes,
    records,
    vectors,
)

# The client library would rather have its dataframes read by pandas-gbq.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")]

# What real descriptions hold: emoji with joiners, markup, quotes, control characters, NUL, the last characters of a plane.
ODD_TEXTS = [
    "plain",
    "duck 🦆 family 👩‍👩‍👧 flag 🏴‍☠️",
    "<b>bold</b> & \"double\" 'single' `back`",
    "NUL \x00 inside\x00",
    "line\nfeed\ttab\rreturn",
    "back\\slash \\u0000 %s {{ jinja }}",
    "\x01\x1f\x7f\u200b\ud7ff\uffff\U0010ffff",
    "",
    None,
]


@pytest.mark.gate
def test_json_rows_arrive_with_their_types(warehouse: Warehouse) -> None:
    job = warehouse.load("t", records(0, 100))

    assert job.output_rows == 100
    (row,) = warehouse.client.query(f"SELECT * FROM `{warehouse.name('t')}` WHERE id = 7").result()
    assert (row.id, row.text, row.day.isoformat()) == (7, "text 7", "2026-01-01")
    assert (row.attributes, row.embedding) == ({"k": 7}, [0.5, 7.0])


def test_a_file_of_json_lines(warehouse: Warehouse) -> None:
    lines = io.BytesIO("\n".join(map(json.dumps, records(0, 100))).encode())

    job = warehouse.client.load_table_from_file(lines, warehouse.name("t"), job_config=load_config(NDJSON, schema=SCHEMA))
    job.result()

    assert (job.output_rows, warehouse.count("t")) == (100, 100)


def test_a_parquet_file(warehouse: Warehouse) -> None:
    file = io.BytesIO(parquet_bytes(vectors(0, 50)))

    job = warehouse.client.load_table_from_file(file, warehouse.name("t"), job_config=load_config())
    job.result()

    assert job.output_rows == 50
    assert warehouse.columns("t") == [("id", "INTEGER", "NULLABLE"), ("embedding", "FLOAT", "REPEATED")]


def test_a_dataframe(warehouse: Warehouse) -> None:
    frame = pd.DataFrame({"id": [1, 2], "text": ["a", "b"], "embedding": [[1.0, 2.0], [3.0, 4.0]]})

    warehouse.client.load_table_from_dataframe(frame, warehouse.name("t")).result()

    assert warehouse.rows(f"SELECT * FROM `{warehouse.name('t')}` ORDER BY id") == [(1, "a", [1.0, 2.0]), (2, "b", [3.0, 4.0])]


def test_a_row_that_does_not_fit_fails_the_whole_load(warehouse: Warehouse) -> None:
    warehouse.load("t", records(0, 1))

    with pytest.raises(BadRequest, match="too many errors"):
        warehouse.load("t", [*records(1, 5), {"id": "not a number", "text": "x"}])

    assert warehouse.count("t") == 1


def test_json_lines_by_wildcard(warehouse: Warehouse, bucket: Bucket) -> None:
    for part in range(2):
        bucket.put(f"in/a-{part}.ndjson", "\n".join(map(json.dumps, records(part * 10, part * 10 + 10))).encode())
    bucket.put("in/b-0.ndjson", b"not json at all")

    loaded = warehouse.load_uris("t", [bucket.uri("in/a-*.ndjson")], load_config(NDJSON, schema=SCHEMA))

    assert (loaded, warehouse.count("t")) == (20, 20)


@pytest.mark.gate
def test_parquet_by_wildcard(warehouse: Warehouse, bucket: Bucket) -> None:
    for part in range(3):
        bucket.put(f"in/p-{part:03}.parquet", parquet_bytes(vectors(part * 20, part * 20 + 20)))

    assert warehouse.load_uris("t", [bucket.uri("in/*.parquet")], load_config()) == 60


def test_a_wildcard_that_matches_nothing_is_not_found(warehouse: Warehouse, bucket: Bucket) -> None:
    with pytest.raises(NotFound):
        warehouse.load_uris("t", [bucket.uri("in/*.parquet")], load_config())


@pytest.mark.gate
def test_exactly_the_listed_objects_replace_the_table(warehouse: Warehouse, bucket: Bucket) -> None:
    """What publish does: chunks by name into a staging table, again with the same result."""
    uris = [bucket.put(f"chunk-{n}.parquet", parquet_bytes(vectors(n * 5, n * 5 + 5, pa.float32()))) for n in range(4)]

    for _ in range(2):
        assert warehouse.load_uris("t", [uris[0], uris[2]], load_config(write_disposition="WRITE_TRUNCATE")) == 10

    ids = [row[0] for row in warehouse.rows(f"SELECT id FROM `{warehouse.name('t')}` ORDER BY id")]
    assert ids == [*range(5), *range(10, 15)]


@pytest.mark.gate
def test_one_missing_object_of_a_list_loads_nothing(warehouse: Warehouse, bucket: Bucket) -> None:
    there = bucket.put("there.parquet", parquet_bytes(vectors(0, 5)))

    with pytest.raises(NotFound, match=r"missing\.parquet"):
        warehouse.load_uris("t", [there, bucket.uri("missing.parquet")], load_config())

    with pytest.raises(NotFound):
        warehouse.client.get_table(warehouse.name("t"))


def test_a_broken_object_of_a_list_loads_nothing(warehouse: Warehouse, bucket: Bucket) -> None:
    there = bucket.put("there.parquet", parquet_bytes(vectors(0, 5)))
    broken = bucket.put("broken.parquet", parquet_bytes(vectors(5, 10))[:-20])
    warehouse.run(f"CREATE TABLE `{warehouse.name('t')}` AS SELECT 99 AS id, [0.5] AS embedding")

    with pytest.raises(GoogleAPICallError, match=r"broken\.parquet"):
        warehouse.load_uris("t", [there, broken], load_config(write_disposition="WRITE_TRUNCATE"))

    assert warehouse.rows(f"SELECT id FROM `{warehouse.name('t')}`") == [(99,)]


def test_a_load_reads_what_an_object_holds_now(warehouse: Warehouse, bucket: Bucket) -> None:
    """Nothing between the bucket and the table may answer from memory, not even for an object of the same size."""
    for first in (0, 1):
        uri = bucket.put("a.parquet", parquet_bytes(vectors(first, first + 1)))
        warehouse.load_uris("t", [uri], load_config(write_disposition="WRITE_TRUNCATE"))
        assert warehouse.rows(f"SELECT id FROM `{warehouse.name('t')}`") == [(first,)]


def test_lists_of_float32_become_arrays_of_float64(warehouse: Warehouse, bucket: Bucket) -> None:
    """A null list, which a dead letter has, is an empty array: BigQuery has no null arrays."""
    table = pa.table({"id": [0, 1], "embedding": pa.array([[0.1, -2.5], None], pa.list_(pa.float32()))})

    warehouse.load_uris("t", [bucket.put("a.parquet", parquet_bytes(table))], load_config())

    assert warehouse.columns("t") == [("id", "INTEGER", "NULLABLE"), ("embedding", "FLOAT", "REPEATED")]
    rows = warehouse.rows(f"SELECT embedding FROM `{warehouse.name('t')}` ORDER BY id")
    assert rows == [([0.10000000149011612, -2.5],), ([],)]


@pytest.mark.gate
@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("unit", ["ms", "us"])
def test_parquet_timestamps_become_timestamps_with_and_without_the_mark_of_utc(
    warehouse: Warehouse, bucket: Bucket, zone: str | None, unit: str
) -> None:
    moment = datetime.datetime(2026, 1, 1, 12, 0, 0, 1000)
    table = pa.table({"a": pa.array([moment], pa.timestamp(unit, zone))})
    uri = bucket.put("a.parquet", parquet_bytes(table))

    warehouse.load_uris("said_nothing", [uri], load_config())
    warehouse.load_uris("said_datetime", [uri], load_config(schema=[bigquery.SchemaField("a", "DATETIME")]))

    assert warehouse.columns("said_nothing") == [("a", "TIMESTAMP", "NULLABLE")]
    assert warehouse.rows(f"SELECT a FROM `{warehouse.name('said_nothing')}`") == [(moment.replace(tzinfo=datetime.UTC),)]
    assert warehouse.columns("said_datetime") == [("a", "DATETIME", "NULLABLE")]
    assert warehouse.rows(f"SELECT a FROM `{warehouse.name('said_datetime')}`") == [(moment,)]


def test_parquet_timestamps_of_nanoseconds_are_refused(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.put("a.parquet", parquet_bytes(pa.table({"a": pa.array([1], pa.timestamp("ns"))})))

    with pytest.raises(BadRequest, match="a: timestamps of nanoseconds"):
        warehouse.load_uris("t", [uri], load_config())


@pytest.mark.gate
def test_lists_are_nested_records_unless_inference_is_asked_for(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.put("a.parquet", parquet_bytes(vectors(3, 4)))

    warehouse.load_uris("t", [uri], bigquery.LoadJobConfig(source_format=PARQUET))

    (_, embedding) = warehouse.client.get_table(warehouse.name("t")).schema
    assert (embedding.field_type, embedding.mode) == ("RECORD", "NULLABLE")
    (inner,) = embedding.fields
    assert (inner.name, inner.field_type, inner.mode) == ("list", "RECORD", "REPEATED")
    assert [(part.name, part.field_type) for part in inner.fields] == [("element", "FLOAT")]
    rows = warehouse.rows(f"SELECT item.element FROM `{warehouse.name('t')}`, UNNEST(embedding.list) AS item ORDER BY 1")
    assert rows == [(0.5,), (3.0,)]


@pytest.mark.gate
def test_an_export_loads_as_it_was(warehouse: Warehouse, bucket: Bucket) -> None:
    """Without a schema. An ARRAY is a repeated field in the file, which is an array without any inference."""
    digits = "-12345678901234567890.000000000000000001"
    query = f"SELECT id, [0.5, id] AS v, BIGNUMERIC '{digits}' AS n FROM UNNEST([1, 2, 3]) AS id ORDER BY id"
    warehouse.run(f"EXPORT DATA OPTIONS(uri='{bucket.uri('*.parquet')}', format='PARQUET') AS {query}")

    warehouse.load_uris("t", [bucket.uri("*.parquet")], bigquery.LoadJobConfig(source_format=PARQUET))

    assert warehouse.columns("t") == [
        ("id", "INTEGER", "NULLABLE"),
        ("v", "FLOAT", "REPEATED"),
        ("n", "BIGNUMERIC", "NULLABLE"),
    ]
    rows = warehouse.rows(f"SELECT * FROM `{warehouse.name('t')}` ORDER BY id")
    assert rows == [(n, [0.5, float(n)], decimal.Decimal(digits)) for n in (1, 2, 3)]


def test_json_strings_become_a_json_column(warehouse: Warehouse, bucket: Bucket) -> None:
    uri = bucket.put("a.parquet", parquet_bytes(pa.table({"j": ['{"a": {"b": [1, 2]}}', None]})))

    warehouse.load_uris("t", [uri], load_config(schema=[bigquery.SchemaField("j", "JSON")]))

    rows = warehouse.rows(f"SELECT j, JSON_VALUE(j, '$.a.b[1]') FROM `{warehouse.name('t')}`")
    assert sorted(rows, key=str) == [(None, None), ({"a": {"b": [1, 2]}}, "2")]


def test_odd_texts_survive_load_export_load_and_query(warehouse: Warehouse, bucket: Bucket) -> None:
    table = pa.table({"n": range(len(ODD_TEXTS)), "text": ODD_TEXTS})
    warehouse.load_uris("first", [bucket.put("odd.parquet", parquet_bytes(table))], load_config())
    first = warehouse.name("first")
    options = f"uri='{bucket.uri('out/*.parquet')}', format='PARQUET'"
    warehouse.run(f"EXPORT DATA OPTIONS({options}) AS SELECT n, text FROM `{first}` ORDER BY n")

    exported = [bucket.parquet(name) for name in bucket.names("out/")]
    warehouse.load_uris("second", [bucket.uri("out/*.parquet")], load_config())

    assert pa.concat_tables(exported).column("text").to_pylist() == ODD_TEXTS
    rows = warehouse.rows(f"SELECT text FROM `{warehouse.name('second')}` ORDER BY n")
    assert [text for (text,) in rows] == ODD_TEXTS
