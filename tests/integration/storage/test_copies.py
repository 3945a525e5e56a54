"""Compose, rewrite, copy, rename, and many requests in one batch."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client  # type: ignore[import-untyped]

pytestmark = pytest.mark.integration


@pytest.fixture
def parts(bucket: Bucket) -> list[object]:
    for number in range(3):
        bucket.blob(f"part/{number}").upload_from_string(str(number) * 3)
    return [bucket.blob(f"part/{number}") for number in range(3)]


def test_a_composition_holds_its_parts_in_order(bucket: Bucket, parts: list[object]) -> None:
    whole = bucket.blob("whole")
    whole.content_type = "text/plain"
    whole.compose(parts)

    found = bucket.get_blob("whole")
    assert found.download_as_bytes() == b"000111222"
    assert (found.component_count, found.content_type, found.md5_hash) == (3, "text/plain", None)


def test_components_add_up(bucket: Bucket, parts: list[object]) -> None:
    bucket.blob("whole").compose(parts)
    bucket.blob("whole").compose([bucket.blob("whole"), *parts])

    assert bucket.get_blob("whole").component_count == 6
    assert bucket.blob("whole").download_as_bytes() == b"000111222000111222"


def test_a_composition_of_a_missing_part_makes_nothing(bucket: Bucket, parts: list[object]) -> None:
    with pytest.raises(exceptions.NotFound):
        bucket.blob("whole").compose([*parts, bucket.blob("missing")])
    assert bucket.get_blob("whole") is None


def test_a_composition_takes_at_most_32_parts(bucket: Bucket, parts: list[object]) -> None:
    with pytest.raises(exceptions.BadRequest):
        bucket.blob("whole").compose(parts * 11)


def test_a_copy_keeps_content_and_metadata_and_outlives_its_source(bucket: Bucket) -> None:
    source = bucket.blob("a")
    source.metadata = {"k": "v"}
    source.upload_from_string(b"hello", content_type="text/plain")
    bucket.copy_blob(source, bucket, "b")
    source.delete()

    found = bucket.get_blob("b")
    assert (found.download_as_bytes(), found.content_type, found.metadata) == (b"hello", "text/plain", {"k": "v"})


def test_a_rewrite_goes_to_another_bucket(storage_client: Client, bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"hello")
    other = storage_client.create_bucket(f"{bucket.name}-other")

    token, done, total = other.blob("b").rewrite(bucket.blob("a"))

    assert (token, done, total) == (None, 5, 5)
    assert other.blob("b").download_as_bytes() == b"hello"


def test_an_overwritten_source_does_not_change_its_copy(bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"old")
    bucket.copy_blob(bucket.blob("a"), bucket, "b")
    bucket.blob("a").upload_from_string(b"new")

    assert bucket.blob("b").download_as_bytes() == b"old"


def test_a_rename_leaves_one_object(bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"hello")
    bucket.rename_blob(bucket.blob("a"), "b")

    assert [blob.name for blob in bucket.list_blobs()] == ["b"]


def test_a_batch_deletes_many(storage_client: Client, bucket: Bucket) -> None:
    for number in range(20):
        bucket.blob(f"{number:02}").upload_from_string(b"x")
    with storage_client.batch():
        for number in range(15):
            bucket.blob(f"{number:02}").delete()

    assert [blob.name for blob in bucket.list_blobs()] == [f"{number:02}" for number in range(15, 20)]


def test_a_batch_patches_with_bodies(storage_client: Client, bucket: Bucket) -> None:
    for name in ("a", "b"):
        bucket.blob(name).upload_from_string(b"x")
    with storage_client.batch():
        for name in ("a", "b"):
            blob = bucket.blob(name)
            blob.metadata = {"name": name}
            blob.patch()

    assert [bucket.get_blob(name).metadata for name in ("a", "b")] == [{"name": "a"}, {"name": "b"}]


def test_one_failure_in_a_batch_does_not_undo_the_others(storage_client: Client, bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"x")
    bucket.blob("b").upload_from_string(b"x")
    batch = storage_client.batch(raise_exception=False)
    with batch:
        for name in ("a", "missing", "b"):
            bucket.blob(name).delete()

    assert [reply.status_code for reply in batch._responses] == [204, 404, 204]

    assert list(bucket.list_blobs()) == []
