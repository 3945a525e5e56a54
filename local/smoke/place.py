"""What a smoke test makes in a project, and removes again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from google.api_core.exceptions import GoogleAPICallError
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

LIFE: Final = timedelta(days=1)
"""After this time Google's services delete what a killed smoke test has left."""
JOB_S: Final = 300.0
"""For one query or load of a few rows."""


@dataclass(frozen=True)
class Place:
    """A dataset and a bucket with no other purpose. name: of both. location: of both, as BigQuery names it."""

    bigquery: bigquery.Client
    storage: StorageClient
    location: str
    name: str

    def query(self, sql: str, parameters: Mapping[str, tuple[str, Any]] | None = None) -> list[tuple[Any, ...]]:
        """The rows. parameters: type and value, by name. Raises GoogleAPICallError if BigQuery refuses it."""
        bound = [bigquery.ScalarQueryParameter(name, *each) for name, each in (parameters or {}).items()]
        job = self.bigquery.query(sql, bigquery.QueryJobConfig(query_parameters=bound), location=self.location, job_retry=None)
        return [tuple(row) for row in job.result(timeout=JOB_S)]

    def table(self, name: str) -> str:
        """``project.dataset.name``."""
        return f"{self.bigquery.project}.{self.name}.{name}"

    def objects(self, prefix: str) -> dict[str, bytes]:
        """The objects below a prefix, by name."""
        return {blob.name: blob.download_as_bytes() for blob in self.storage.list_blobs(self.name, prefix=prefix)}


@contextmanager
def made(bigquery_client: bigquery.Client, storage_client: StorageClient, location: str) -> Iterator[Place]:
    """Makes both; removes both with all that is in them. Raises GoogleAPICallError."""
    place = Place(bigquery_client, storage_client, location, f"nightshift_smoke_{uuid.uuid4().hex[:12]}")
    dataset = bigquery.Dataset(f"{bigquery_client.project}.{place.name}")
    dataset.location = location
    dataset.default_table_expiration_ms = int(LIFE.total_seconds() * 1000)
    bigquery_client.create_dataset(dataset)
    try:
        bucket = storage_client.bucket(place.name)
        bucket.add_lifecycle_delete_rule(age=LIFE.days)
        # BigQuery's exports ask for a bucket without it.
        bucket.soft_delete_policy.retention_duration_seconds = 0
        storage_client.create_bucket(bucket, location=location)
        try:
            yield place
        finally:
            _remove_bucket(bucket)
    finally:
        bigquery_client.delete_dataset(dataset, delete_contents=True, not_found_ok=True)


def _remove_bucket(bucket: Any) -> None:
    for blob in list(bucket.list_blobs()):
        blob.delete()
    bucket.delete()


def reason(error: GoogleAPICallError) -> str:
    """Google's reason and its words, on one line."""
    first: Mapping[str, Any] = next((each for each in error.errors or () if isinstance(each, Mapping)), {})
    return f"{error.code} {first.get('reason', '')}: {' '.join(str(first.get('message') or error.message).split())}"
