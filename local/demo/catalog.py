"""The demo's table, ``catalog.packages``: one row for each distribution installed in the environments.

The rows are what the authors published: empty and missing descriptions, HTML, emoji, and texts many times longer than
the model reads.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core.exceptions import NotFound
from google.cloud import bigquery

from local.demo.packages import packages

DATASET = "catalog"
TABLE = f"{DATASET}.packages"
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("summary", pa.string()),
        pa.field("description", pa.string()),
        pa.field("home_page", pa.string()),
        pa.field("snapshot_date", pa.date32(), nullable=False),
    ]
)


def load(client: bigquery.Client, partition: str, environments: Iterable[Path]) -> int:
    """Loads the table's partition from the distributions in `environments` unless it exists; returns its number of rows.

    Loads a partition only once: the source table must not change under a night that is already planned.
    """
    client.create_dataset(DATASET, exists_ok=True)
    there = _rows(client, partition)
    if there:
        return there
    day = datetime.date.fromisoformat(partition)
    table = pa.Table.from_pylist([{**package, "snapshot_date": day} for package in packages(environments)], SCHEMA)
    body = io.BytesIO()
    pq.write_table(table, body)
    body.seek(0)
    config = bigquery.LoadJobConfig(
        source_format="PARQUET",
        write_disposition="WRITE_TRUNCATE",
        time_partitioning=bigquery.TimePartitioning(field="snapshot_date"),
    )
    # The decorator limits the truncation to this partition, so a demo that was killed here can simply be repeated.
    client.load_table_from_file(body, f"{TABLE}${partition.replace('-', '')}", job_config=config).result()
    return int(table.num_rows)


def _rows(client: bigquery.Client, partition: str) -> int:
    parameters = [bigquery.ScalarQueryParameter("day", "DATE", partition)]
    query = f"SELECT COUNT(*) AS n FROM `{TABLE}` WHERE snapshot_date = @day"
    try:
        rows = client.query(query, job_config=bigquery.QueryJobConfig(query_parameters=parameters)).result()
    except NotFound:
        return 0
    counted: int = next(iter(rows))["n"]
    return counted
