"""A bucket of its own for every test, and clients for it: Google's, gcsfs, pyarrow's and obstore."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from typing import Any

import pytest
from google.cloud.storage import Bucket, Client  # type: ignore[import-untyped]
from obstore.store import GCSStore
from pyarrow.fs import GcsFileSystem

from local.storage.tests.stores import open_bucket
from tests.integration.emulators import PROJECT, StorageEmulator

# gcsfs otherwise asks a gRPC API about hierarchical namespaces, which only the real service has. Read when it is imported.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"


@pytest.fixture
def bucket(storage_client: Client) -> Bucket:
    return storage_client.create_bucket(f"test-{uuid.uuid4().hex[:12]}")


@pytest.fixture
def url(storage_emulator: StorageEmulator, bucket: Bucket) -> str:
    """The bucket's address in the XML API."""
    return f"{storage_emulator.url}/{bucket.name}"


@pytest.fixture
def store(storage_emulator: StorageEmulator, bucket: Bucket) -> GCSStore:
    return open_bucket(storage_emulator.url, bucket.name)


@pytest.fixture
def fsspec_options(storage_emulator: StorageEmulator) -> dict[str, Any]:
    """How gcsfs, and pandas through it, reach the emulator."""
    return {"token": "anon", "endpoint_url": storage_emulator.url, "project": PROJECT, "skip_instance_cache": True}


@pytest.fixture
def arrow_files(storage_emulator: StorageEmulator) -> GcsFileSystem:
    address = storage_emulator.url.removeprefix("http://")
    retry = timedelta(seconds=5)
    return GcsFileSystem(anonymous=True, endpoint_override=address, scheme="http", project_id=PROJECT, retry_time_limit=retry)
