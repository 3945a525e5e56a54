"""What the emulator does not have is refused in clear words, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore
import pyarrow as pa
import pytest
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from obstore.store import GCSStore
from pyarrow.fs import GcsFileSystem

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def in_a_batch(bucket: Bucket) -> None:
    with bucket.client.batch():
        bucket.blob("a").delete()


GOOGLE: dict[str, Callable[[Bucket], Any]] = {
    "compose": lambda bucket: bucket.blob("b").compose([bucket.blob("a")]),
    "copy": lambda bucket: bucket.copy_blob(bucket.blob("a"), bucket, "b"),
    "rewrite": lambda bucket: bucket.blob("b").rewrite(bucket.blob("a")),
    "rename": lambda bucket: bucket.rename_blob(bucket.blob("a"), "b"),
    "batch": in_a_batch,
}
OBSTORE: dict[str, Callable[[GCSStore], Any]] = {
    "copy": lambda store: obstore.copy(store, "a", "b"),
    "copy unless there": lambda store: obstore.copy(store, "a", "b", overwrite=False),
    "rename": lambda store: obstore.rename(store, "a", "b"),
}


@pytest.fixture(autouse=True)
def _an_object_that_stays_alone(bucket: Bucket) -> Any:
    bucket.blob("a").upload_from_string(b"a")
    yield
    assert [blob.name for blob in bucket.list_blobs()] == ["a"]


@pytest.mark.parametrize("request_", GOOGLE)
def test_googles_client_is_told(bucket: Bucket, request_: str) -> None:
    with pytest.raises(Exception, match="no copies, compositions or batches"):
        GOOGLE[request_](bucket)


@pytest.mark.parametrize("request_", OBSTORE)
def test_obstore_is_told(store: GCSStore, request_: str) -> None:
    with pytest.raises(Exception, match="no copies, compositions or batches"):
        OBSTORE[request_](store)


def test_pyarrow_is_told(arrow_files: GcsFileSystem, bucket: Bucket) -> None:
    with pytest.raises(pa.ArrowInvalid, match="no copies, compositions or batches"):
        arrow_files.copy_file(f"{bucket.name}/a", f"{bucket.name}/b")
