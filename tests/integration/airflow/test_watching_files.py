"""The watcher of files lists a real folder: the emulator's, through nightshift's own store and Airflow's connection."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.cloud.storage import Client as StorageClient

from nightshift.spec import periods
from nightshift.store import StoreUnavailable
from nightshift.triggers.files import FilesTrigger
from nightshift.triggers.folder import created
from tests.integration.emulators import ANONYMOUS_CONNECTION, PROJECT, StorageEmulator, start_storage

pytestmark = [pytest.mark.integration, pytest.mark.gate]

EVERY = "12h"
NOW = datetime.now(UTC)


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
    return FilesTrigger(url=url, every=EVERY, settle="1s")._list(periods.before(now, EVERY), now)


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


def test_days_that_are_long_over_are_not_listed_and_folders_that_only_look_like_days_are(bucket: Bucket) -> None:
    kept, old = ((NOW - timedelta(days=days)).date().isoformat() for days in (8, 10))
    for path in (f"dt={kept}/e", "dt=2026-13-77/no-date", "dt=someday/e", "texts/dt=2020-01-01/e", f"dt={old}-late/e"):
        bucket.blob(path).upload_from_string(b"a row")
    for path in (f"dt={old}/e", "dt=2020-01-01/hour=3/e", f"dt={kept}/_x", ".y", "texts/.tmp/x"):
        bucket.blob(path).upload_from_string(b"a row")

    assert sum(look(f"gs://{bucket.name}").values()) == 5


def test_a_change_of_metadata_is_no_new_object(bucket: Bucket, storage_client: StorageClient) -> None:
    """Cloud Storage's ``updated`` moves with the storage class, with custom metadata and with holds."""
    blob = bucket.blob("texts/a")
    blob.upload_from_string(b"a row")
    first = blob.time_created
    blob.metadata = {"checked": "yes"}
    blob.patch()

    assert blob.updated > first
    assert list(created(storage_client, f"gs://{bucket.name}/texts", NOW)) == [first]
    blob.upload_from_string(b"another row")
    assert list(created(storage_client, f"gs://{bucket.name}/texts", NOW)) > [first]


def test_memory_does_not_grow_with_the_folder(tmp_path: Path) -> None:
    """In the triggerer, a flat folder took 0.9 MiB for 1,000 objects."""
    emulator = start_storage(tmp_path)
    try:
        emulator.client().create_bucket("uploads").blob("texts/a").upload_from_string(b"a row")
        assert emulator.stop() == 0
        _repeat_object(tmp_path / "storage" / "catalog.sqlite", 30_000)
        emulator.start()
        few, many = (
            _peak(emulator.url, f"gs://uploads/{folder}", count) for folder, count in (("few", 1500), ("texts", 30_001))
        )
    finally:
        emulator.kill()
    assert many - few < 6 << 20, f"{(many - few) / (1 << 20):.1f} MiB"


def _repeat_object(catalog: Path, count: int) -> None:
    """Puts copies of ``texts/a`` beside it, and 1,500 into another folder, while the emulator is stopped."""
    with sqlite3.connect(catalog) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(objects)")]
        (row,) = database.execute(f"SELECT {', '.join(columns)} FROM objects").fetchall()
        where = columns.index("name")
        names = [f"texts/upload-{number:08d}.parquet" for number in range(count)]
        names += [f"few/upload-{number:08d}.parquet" for number in range(1500)]
        rows = [(*row[:where], name, *row[where + 1 :]) for name in names]
        database.executemany(f"INSERT INTO objects VALUES ({', '.join('?' * len(columns))})", rows)


_PROGRAM = """
import os, re, sys
from datetime import UTC, datetime
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from nightshift.triggers.folder import created
client = Client(project="local", credentials=AnonymousCredentials())
count = sum(1 for _ in created(client, sys.argv[1], datetime.now(UTC)))
print(count, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def _peak(emulator: str, url: str, count: int) -> int:
    """The most bytes that a process holds that lists the folder."""
    environment = {**os.environ, "STORAGE_EMULATOR_HOST": emulator, "PYTHONPATH": "plugins"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM, url], env=environment, capture_output=True, text=True, check=True)
    found, kilobytes = map(int, done.stdout.split())
    assert found == count
    return kilobytes * 1024


def test_a_bucket_that_is_not_there_may_come(bucket: Bucket) -> None:
    with pytest.raises(StoreUnavailable, match="list gs://absent/texts: "):
        look("gs://absent/texts")
