"""The watcher of files lists a real folder: the emulator's, through nightshift's own store and Airflow's connection."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.cloud.storage import Client as StorageClient

from nightshift.spec import periods
from nightshift.store import StoreUnavailable
from nightshift.triggers.files import FilesTrigger
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

EVERY = "12h"


@pytest.fixture
def bucket(storage_emulator: StorageEmulator, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", ANONYMOUS_CONNECTION)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    monkeypatch.setenv("NIGHTSHIFT_PROJECT", PROJECT)
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "runs")
    return storage_client.create_bucket(f"test-{uuid.uuid4().hex[:12]}")


def look(url: str) -> dict[str, int]:
    """The objects of this period and of the one before."""
    now = periods.holding(datetime.now(UTC), EVERY)
    return FilesTrigger(url=url, every=EVERY, settle="1s")._look(periods.before(now, EVERY), now)


def test_it_counts_what_appeared_below_the_folder_and_nothing_else(bucket: Bucket) -> None:
    today = datetime.now(UTC).date().isoformat()
    for path in ("texts/a", f"texts/dt={today}/hour=7/b", "texts/other/c"):
        bucket.blob(path).upload_from_string(b"a row")
    for path, body in (
        ("texts/dt=2020-01-01/hour=7/d", b"a row"),
        ("texts/_nightshift/job/e", b"a marker"),
        ("texts/folder/", b""),
        ("texts-of-others/f", b"a row"),
        ("g", b"a row"),
    ):
        bucket.blob(path).upload_from_string(body)

    assert sum(look(f"gs://{bucket.name}/texts").values()) == 3
    assert look(f"gs://{bucket.name}/nothing") == {}


def test_a_bucket_that_is_not_there_may_come(bucket: Bucket) -> None:
    with pytest.raises(StoreUnavailable, match="list gs://absent/texts: "):
        look("gs://absent/texts")
