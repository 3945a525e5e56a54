from __future__ import annotations

import uuid

import pytest
from google.cloud import bigquery
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.bigquery.tests.support import Bucket, Warehouse


@pytest.fixture
def warehouse(bigquery_client: bigquery.Client) -> Warehouse:
    made = Warehouse(bigquery_client, f"d{uuid.uuid4().hex[:12]}")
    bigquery_client.create_dataset(made.dataset)
    return made


@pytest.fixture
def bucket(storage_client: StorageClient) -> Bucket:
    made = Bucket(storage_client, f"b{uuid.uuid4().hex[:12]}")
    storage_client.create_bucket(made.name)
    return made
