"""Extract jobs and EXPORT DATA, seen through the Cloud Storage client."""

from __future__ import annotations

import datetime
import fcntl
import gzip
import io
import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from google.api_core.exceptions import BadRequest
from google.cloud import bigquery

from local.bigquery.tests.support import (
    DAY,
    NDJSON,
    PARQUET,
    Bucket,
    Warehouse,
    new_job_id,
    parameters,
    records,
)
from tests.integration.emulators import StorageEmulator, bigquery_at

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

    table = bucket.parquet("run/inputs/")
    assert table.column("id").to_pylist() == list(range(49, -1, -1))
    assert table.column("embedding").to_pylist()[0] == [0.5, 49.0]
    assert (job.statement_type, job.labels) == ("EXPORT_DATA", {"run": "r1"})


def test_export_keeps_the_order_of_more_rows_than_a_row_group_holds(warehouse: Warehouse, bucket: Bucket) -> None:
    numbers = "SELECT MOD(x * 7919, 200003) AS shuffled FROM UNNEST(GENERATE_ARRAY(1, 200000)) AS x"

    warehouse.run(export_sql(bucket.uri("out/*.parquet"), f"{numbers} ORDER BY shuffled"))

    values = bucket.parquet("out/").column("shuffled").to_pylist()
    assert len(values) == 200_000
    assert values == sorted(values)


@pytest.mark.gate
@pytest.mark.parametrize(("rows", "files_least"), [(5, 2), (3_000, 4), (200_000, 6)])
def test_export_writes_files_and_row_groups_of_many_sizes(
    warehouse: Warehouse, bucket: Bucket, rows: int, files_least: int
) -> None:
    numbers = f"SELECT x FROM UNNEST(GENERATE_ARRAY(1, {rows})) AS x"
    shapes = []
    for folder in ("first", "second"):
        job = warehouse.run(export_sql(bucket.uri(f"{folder}/part-*.parquet"), numbers))
        files = bucket.parquet_files(f"{folder}/")
        names = bucket.names(f"{folder}/")
        assert names == [f"{folder}/part-{number:012d}.parquet" for number in range(len(files))]
        groups = [[file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] for file in files]
        statistics = job._properties["statistics"]["query"]["exportDataStatistics"]
        assert statistics == {"fileCount": str(len(files)), "rowCount": str(rows)}
        assert sorted(bucket.parquet(f"{folder}/").column("x").to_pylist()) == list(range(1, rows + 1))
        shapes.append(groups)

    assert shapes[0] == shapes[1], "the same query is divided in the same way"
    assert len(shapes[0]) >= files_least
    assert len({sum(groups) for groups in shapes[0]}) > 1
    assert all(rows_of_group for groups in shapes[0] for rows_of_group in groups)
    if rows > 1_000:
        assert len({group for groups in shapes[0] for group in groups}) > len(shapes[0]), "groups of a file differ"


@pytest.mark.gate
def test_export_has_the_types_of_bigquery(warehouse: Warehouse, bucket: Bucket) -> None:
    query = """SELECT 1 AS i, 1.5 AS f, 'x' AS s, TRUE AS b, b'x' AS y, DATE '2026-01-01' AS d, TIME '12:00:00' AS t,
        TIMESTAMP '2026-01-01 01:00:00+01' AS ts, DATETIME '2026-01-01 00:00:00' AS dt,
        NUMERIC '1.5' AS n, BIGNUMERIC '-1.5' AS bn, PARSE_JSON('{"a": 1}') AS j"""

    warehouse.run(export_sql(bucket.uri("out/*.parquet"), query))

    (file,) = bucket.parquet_files("out/")
    micros = "Timestamp(isAdjustedToUTC=false, timeUnit=microseconds"
    assert [(column.name, column.physical_type, column.length) for column in file.schema] == [
        ("i", "INT64", 0),
        ("f", "DOUBLE", 0),
        ("s", "BYTE_ARRAY", 0),
        ("b", "BOOLEAN", 0),
        ("y", "BYTE_ARRAY", 0),
        ("d", "INT32", 0),
        ("t", "INT64", 0),
        ("ts", "INT64", 0),
        ("dt", "INT64", 0),
        ("n", "FIXED_LEN_BYTE_ARRAY", 16),
        ("bn", "FIXED_LEN_BYTE_ARRAY", 32),
        ("j", "BYTE_ARRAY", 0),
    ]
    logical = {column.name: str(column.logical_type).split(", is_from")[0] for column in file.schema}
    assert {logical["ts"], logical["dt"]} == {micros}
    assert (logical["n"], logical["bn"]) == ("Decimal(precision=38, scale=9)", "Decimal(precision=76, scale=38)")
    assert (logical["s"], logical["j"], logical["y"]) == ("String", "String", "None")
    (row,) = file.read().to_pylist()
    assert (row["ts"], row["dt"]) == (datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 1))
    assert (row["n"], row["bn"], json.loads(row["j"])) == (Decimal("1.5"), Decimal("-1.5"), {"a": 1})


@pytest.mark.gate
def test_arrays_are_exported_as_repeated_fields(warehouse: Warehouse, bucket: Bucket) -> None:
    query = """SELECT 1 AS id, [0.5, 1.5] AS v, [STRUCT('a' AS name, [1, 2] AS parts), STRUCT(NULL, [])] AS s,
        STRUCT(TIMESTAMP '2026-01-01 00:00:00+00' AS ts, ['x'] AS words) AS g
        UNION ALL SELECT 2, [], [], NULL UNION ALL SELECT 3, NULL, NULL, NULL ORDER BY id"""

    warehouse.run(export_sql(bucket.uri("out/*.parquet"), query))

    (first, *_) = bucket.parquet_files("out/")
    assert [column.path for column in first.schema] == ["id", "v", "s.name", "s.parts", "g.ts", "g.words"]
    levels = {column.path: (column.max_definition_level, column.max_repetition_level) for column in first.schema}
    assert levels == {"id": (1, 0), "v": (1, 1), "s.name": (2, 1), "s.parts": (2, 2), "g.ts": (2, 0), "g.words": (2, 1)}
    assert bucket.parquet("out/").to_pylist() == [
        {
            "id": 1,
            "v": [0.5, 1.5],
            "s": [{"name": "a", "parts": [1, 2]}, {"name": None, "parts": []}],
            "g": {"ts": datetime.datetime(2026, 1, 1), "words": ["x"]},
        },
        {"id": 2, "v": [], "s": [], "g": None},
        {"id": 3, "v": [], "s": [], "g": None},
    ]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("INTERVAL 1 DAY", "INTERVAL of column bad"),
        ("RANGE(DATE '2026-01-01', NULL)", "RANGE of column bad"),
        ("[STRUCT(INTERVAL 1 DAY AS inner_one)]", "INTERVAL of column inner_one"),
        ("[1, NULL]", "Array cannot have a null element; error in writing field bad"),
        ("IF(x > 3, ERROR('not before the fourth row'), x)", "not before the fourth row"),
    ],
)
def test_what_cannot_be_exported_is_refused(warehouse: Warehouse, bucket: Bucket, column: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        warehouse.run(export_sql(bucket.uri("*.parquet"), f"SELECT {column} AS bad FROM UNNEST([1, 2, 3, 4]) AS x"))


def test_a_row_that_fails_late_fails_the_export_in_its_own_words(warehouse: Warehouse, bucket: Bucket) -> None:
    query = "SELECT IF(x = 1500000, ERROR('this one'), x) AS x FROM UNNEST(GENERATE_ARRAY(1, 2000000)) AS x"

    # DuckDB locks the files that it writes. The emulator must not need one that every process on the machine has.
    with open(os.devnull, "w") as null:
        fcntl.lockf(null, fcntl.LOCK_EX)
        with pytest.raises(BadRequest, match="this one"):
            warehouse.run(export_sql(bucket.uri("*.parquet"), query))


@pytest.mark.parametrize("compression", ["GZIP", "SNAPPY", "ZSTD"])
def test_parquet_is_compressed_as_asked(warehouse: Warehouse, bucket: Bucket, compression: str) -> None:
    warehouse.run(export_sql(bucket.uri("*.parquet"), "SELECT 'a' AS a", f", compression='{compression}'"))

    (file,) = bucket.parquet_files("")
    assert file.metadata.row_group(0).column(0).compression == compression


def test_a_compression_that_parquet_does_not_have_is_refused(warehouse: Warehouse, bucket: Bucket) -> None:
    with pytest.raises(BadRequest, match="DEFLATE"):
        warehouse.run(export_sql(bucket.uri("*.parquet"), "SELECT 'a' AS a", ", compression='DEFLATE'"))

    assert bucket.names() == []


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


def test_a_script_exports_buckets_of_a_temporary_table(warehouse: Warehouse, bucket: Bucket) -> None:
    """Each statement is a child job, which says how many rows it wrote."""
    warehouse.load("t", records(0, 60))
    exports = [
        export_sql(
            bucket.uri(f"run/{part}-*.parquet"), f"SELECT * EXCEPT (part) FROM parts WHERE part = {part} ORDER BY id DESC"
        )
        for part in range(3)
    ]
    source = f"SELECT id, MOD(id, 3) AS part FROM `{warehouse.name('t')}`"
    create = f"CREATE TEMP TABLE parts PARTITION BY RANGE_BUCKET(part, GENERATE_ARRAY(0, 3, 1)) AS {source}"
    job = warehouse.run("; ".join([create, *exports, "DROP TABLE parts"]))

    assert bucket.parquet("run/").column("id").to_pylist() == [id_ for part in range(3) for id_ in range(57 + part, -1, -3)]
    children = list(warehouse.client.list_jobs(parent_job=job.job_id))
    wrote = [child._properties["statistics"]["query"].get("exportDataStatistics") for child in children]
    assert sorted(int(each["rowCount"]) for each in wrote if each) == [20, 20, 20]
    assert (job.num_child_jobs, len(children)) == (5, 5)


def test_more_rows_than_a_worker_can_sort_fail_the_export(warehouse: Warehouse, bucket: Bucket) -> None:
    warehouse.load("t", records(0, 30))
    warehouse.limit(rows_sorted=29)
    query = f"SELECT id FROM `{warehouse.name('t')}`"

    with pytest.raises(BadRequest, match=r"Resources exceeded .* ORDER BY operations"):
        warehouse.run(export_sql(bucket.uri("run/*.parquet"), f"{query} ORDER BY id"))
    assert bucket.names() == []
    warehouse.run(export_sql(bucket.uri("run/*.parquet"), query))
    warehouse.run(export_sql(bucket.uri("run2/*.parquet"), f"{query} WHERE id > 0 ORDER BY id"))


@pytest.mark.gate
@pytest.mark.parametrize(("options", "small"), [((), True), (("--group-bytes", "0"), False)])
def test_how_large_a_row_group_may_be_is_a_setting(
    tmp_path: Path, storage_emulator: StorageEmulator, bucket: Bucket, options: tuple[str, ...], small: bool
) -> None:
    emulator = bigquery_at(tmp_path, storage_emulator, *options)
    emulator.start()
    try:
        rows = "SELECT i AS id, REPEAT(CAST(MOD(i, 8) AS STRING), 8000) AS text FROM UNNEST(GENERATE_ARRAY(1, 40000)) AS i"
        emulator.client().query(export_sql(bucket.uri("out/*.parquet"), rows)).result()
    finally:
        emulator.stop()

    files = [pq.read_metadata(io.BytesIO(bucket.get(name))) for name in bucket.names()]
    groups = [file.row_group(number).num_rows for file in files for number in range(file.num_row_groups)]
    assert sum(groups) == 40_000
    assert (max(groups) * 8000 <= 64 << 20) == small
