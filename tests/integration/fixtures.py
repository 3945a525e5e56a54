"""Emulators shared by a test session, and official clients for them. Tests keep apart by datasets and buckets of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from google.cloud import bigquery, bigquery_storage_v1
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from tests.integration.emulators import (
    IDENTITIES,
    BigQueryEmulator,
    PostgresServer,
    PubSubEmulator,
    StorageEmulator,
    start_bigquery,
    start_postgres,
    start_pubsub,
    start_storage,
)

if TYPE_CHECKING:
    from tests.integration.driver.collector import Collector


@pytest.fixture(scope="session")
def storage_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageEmulator]:
    """With identities (`IDENTITIES`); a request without a token may do everything."""
    emulator = start_storage(tmp_path_factory.mktemp("storage-emulator"), identities=IDENTITIES)
    yield emulator
    emulator.stop()


@pytest.fixture(scope="session")
def bigquery_emulator(
    tmp_path_factory: pytest.TempPathFactory, storage_emulator: StorageEmulator
) -> Iterator[BigQueryEmulator]:
    emulator = start_bigquery(tmp_path_factory.mktemp("bigquery-emulator"), storage_emulator)
    yield emulator
    emulator.stop()


@pytest.fixture(scope="session")
def pubsub_emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubEmulator]:
    """Tests keep apart by topics of their own."""
    emulator = start_pubsub(tmp_path_factory.mktemp("pubsub-emulator"))
    yield emulator
    emulator.stop()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Tests keep apart by databases or tables of their own."""
    server = start_postgres(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def storage_client(storage_emulator: StorageEmulator) -> StorageClient:
    return storage_emulator.client()


@pytest.fixture(scope="session")
def bigquery_client(bigquery_emulator: BigQueryEmulator) -> bigquery.Client:
    return bigquery_emulator.client()


@pytest.fixture(scope="session")
def bigquery_read_client(bigquery_emulator: BigQueryEmulator) -> bigquery_storage_v1.BigQueryReadClient:
    return bigquery_emulator.read_client()


@pytest.fixture(scope="session")
def bigquery_write_client(bigquery_emulator: BigQueryEmulator) -> bigquery_storage_v1.BigQueryWriteClient:
    return bigquery_emulator.write_client()


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """OpenTelemetry's, one for each module: what one module's programs send is not another's."""
    # Here, because only its own tests need what it imports.
    from local.cluster.build import BuildError
    from tests.integration.driver.collector import collecting

    try:
        with collecting(tmp_path_factory.mktemp("collector")) as found:
            yield found
    except BuildError as error:
        pytest.skip(str(error))
