"""What the BigQuery tests share: a dataset and a bucket of one test's own, rows of one shape, short ways to ask."""

from __future__ import annotations

import datetime
import io
import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import requests
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

DAY = datetime.date(2026, 1, 1)
SCHEMA = [
    bigquery.SchemaField("id", "INT64", "REQUIRED"),
    bigquery.SchemaField("text", "STRING"),
    bigquery.SchemaField("day", "DATE"),
    bigquery.SchemaField("attributes", "JSON"),
    bigquery.SchemaField("embedding", "FLOAT64", "REPEATED"),
]
PARQUET = "PARQUET"
NDJSON = "NEWLINE_DELIMITED_JSON"


def records(first: int, end: int, day: datetime.date = DAY) -> list[dict[str, Any]]:
    """Rows of `SCHEMA` with the ids ``first`` to ``end - 1``, as the JSON loads take them."""
    return [
        {"id": i, "text": f"text {i}", "day": day.isoformat(), "attributes": {"k": i}, "embedding": [0.5, float(i)]}
        for i in range(first, end)
    ]


def parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def vectors(first: int, end: int, element: Any = None) -> pa.Table:
    """``id`` and ``embedding`` (list of ``element``, float64 unless said) for the ids ``first`` to ``end - 1``."""
    ids = range(first, end)
    embeddings = pa.array([[0.5, float(i)] for i in ids], pa.list_(element or pa.float64()))
    return pa.table({"id": pa.array(ids, pa.int64()), "embedding": embeddings})


def load_config(source_format: str = PARQUET, **settings: Any) -> bigquery.LoadJobConfig:
    if source_format == PARQUET:
        settings["parquet_options"] = bigquery.ParquetOptions()  # type: ignore[no-untyped-call]
        settings["parquet_options"].enable_list_inference = True
    return bigquery.LoadJobConfig(source_format=source_format, **settings)


def parameters(**values: Any) -> bigquery.QueryJobConfig:
    """A query configuration with a parameter for each keyword, typed by its value; a list makes an array of FLOAT64."""
    return bigquery.QueryJobConfig(query_parameters=[_parameter(name, value) for name, value in values.items()])


def _parameter(name: str, value: Any) -> bigquery.ScalarQueryParameter | bigquery.ArrayQueryParameter:
    if isinstance(value, list):
        return bigquery.ArrayQueryParameter(name, "FLOAT64", value)
    kind = {int: "INT64", str: "STRING", datetime.date: "DATE"}[type(value)]
    return bigquery.ScalarQueryParameter(name, kind, value)


def new_job_id() -> str:
    return f"job-{uuid.uuid4().hex}"


@dataclass(frozen=True)
class Warehouse:
    """A client and a dataset that no other test uses."""

    client: bigquery.Client
    dataset: str

    def name(self, table: str) -> str:
        return f"{self.client.project}.{self.dataset}.{table}"

    def run(self, sql: str, config: bigquery.QueryJobConfig | None = None, job_id: str | None = None) -> bigquery.QueryJob:
        """A query job that succeeded."""
        job = self.start(sql, config, job_id)
        job.result()
        return job

    def start(self, sql: str, config: bigquery.QueryJobConfig | None = None, job_id: str | None = None) -> bigquery.QueryJob:
        """A query job that may still run. Nothing is tried twice: what fails, fails the test."""
        return self.client.query(sql, job_config=config, job_id=job_id or new_job_id(), job_retry=None)

    def reason(self, job: bigquery.QueryJob) -> str | None:
        """Why a job has failed, asked anew: its error may come with the reply to `result`, which leaves the job as it was."""
        result = self.client.get_job(job.job_id).error_result
        return None if result is None else str(result["reason"])

    def rows(self, sql: str, config: bigquery.QueryJobConfig | None = None) -> list[tuple[Any, ...]]:
        return [row.values() for row in self.start(sql, config).result()]

    def count(self, table: str) -> int:
        return int(self.rows(f"SELECT COUNT(*) FROM `{self.name(table)}`")[0][0])

    def columns(self, table: str) -> list[tuple[str, str, str]]:
        """Name, type and mode of each column, as the API names them."""
        return [(field.name, field.field_type, field.mode) for field in self.client.get_table(self.name(table)).schema]

    def load(self, table: str, rows: list[dict[str, Any]], **settings: Any) -> bigquery.LoadJob:
        config = bigquery.LoadJobConfig(schema=SCHEMA, **settings)
        job: bigquery.LoadJob = self.client.load_table_from_json(rows, self.name(table), job_config=config)
        job.result()
        return job

    def limit(self, **lowered: float) -> None:
        """Lowers limits of the dataset's tables (`local.bigquery.limits.TableLimits`)."""
        url = f"{self.client._connection.API_BASE_URL}/limits/{self.dataset}"
        requests.put(url, json=lowered, timeout=600).raise_for_status()

    def load_uris(self, table: str, uris: list[str], config: bigquery.LoadJobConfig, job_id: str | None = None) -> int:
        """Loads objects; returns the number of rows."""
        job = self.client.load_table_from_uri(uris, self.name(table), job_config=config, job_id=job_id)
        job.result()
        return int(job.output_rows)


@dataclass(frozen=True)
class Bucket:
    """A bucket that no other test uses."""

    client: StorageClient
    name: str

    def uri(self, name: str) -> str:
        return f"gs://{self.name}/{name}"

    def put(self, name: str, content: bytes) -> str:
        """Returns the object's URI."""
        self.client.bucket(self.name).blob(name).upload_from_string(content)
        return self.uri(name)

    def names(self, prefix: str = "") -> list[str]:
        return [blob.name for blob in self.client.list_blobs(self.name, prefix=prefix)]

    def get(self, name: str) -> bytes:
        content: bytes = self.client.bucket(self.name).blob(name).download_as_bytes(raw_download=True)
        return content

    def parquet(self, prefix: str) -> pa.Table:
        """The rows of all objects whose names begin so, in the order of their names."""
        return pa.concat_tables(file.read() for file in self.parquet_files(prefix))

    def parquet_files(self, prefix: str) -> list[pq.ParquetFile]:
        return [pq.ParquetFile(io.BytesIO(self.get(name))) for name in self.names(prefix)]
