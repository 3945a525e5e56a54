"""An object's metadata, changes of its metadata, deletion, and names that need care."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket  # type: ignore[import-untyped]

pytestmark = [pytest.mark.integration, pytest.mark.gate]

HELLO_CRC32C = "mnG7TA=="
HELLO_MD5 = "XUFAKrxLKna5cZ2REBfFkg=="


def test_an_upload_has_size_type_digests_and_generation(bucket: Bucket) -> None:
    bucket.blob("d/a.txt").upload_from_string("hello", content_type="text/plain")

    found = bucket.get_blob("d/a.txt")
    assert (found.size, found.content_type, found.crc32c, found.md5_hash) == (5, "text/plain", HELLO_CRC32C, HELLO_MD5)
    assert found.generation > 0
    assert found.metageneration == 1
    assert found.time_created == found.updated


def test_every_overwrite_has_a_greater_generation(bucket: Bucket) -> None:
    generations = []
    for content in (b"1", b"2", b"2"):
        blob = bucket.blob("a")
        blob.upload_from_string(content)
        generations.append(blob.generation)

    assert generations == sorted(set(generations))


def test_a_generation_that_is_gone_is_not_found(bucket: Bucket) -> None:
    first = bucket.blob("a")
    first.upload_from_string(b"1")
    second = bucket.blob("a")
    second.upload_from_string(b"2")

    assert bucket.blob("a", generation=second.generation).download_as_bytes() == b"2"
    with pytest.raises(exceptions.NotFound):
        bucket.blob("a", generation=first.generation).download_as_bytes()


def test_custom_metadata_is_kept_and_patched_key_by_key(bucket: Bucket) -> None:
    blob = bucket.blob("a")
    blob.metadata = {"run": "r1", "sha": "x", "note": "ü"}
    blob.upload_from_string(b"a")

    blob.metadata = {"run": "r2", "sha": None}
    blob.patch()

    found = bucket.get_blob("a")
    assert found.metadata == {"run": "r2", "note": "ü"}
    assert found.metageneration == 2
    assert found.download_as_bytes() == b"a"


def test_an_update_replaces_all_metadata(bucket: Bucket) -> None:
    blob = bucket.blob("a")
    blob.metadata = {"run": "r1"}
    blob.cache_control = "no-cache"
    blob.upload_from_string(b"a", content_type="text/plain")

    blob.metadata = {"other": "1"}
    blob.cache_control = None
    blob.update()

    found = bucket.get_blob("a")
    assert (found.metadata, found.cache_control, found.content_type) == ({"other": "1"}, None, "text/plain")


def test_a_deleted_object_is_gone_and_a_second_deletion_finds_nothing(bucket: Bucket) -> None:
    blob = bucket.blob("a")
    blob.upload_from_string(b"a")
    blob.delete()

    assert not blob.exists()
    assert list(bucket.list_blobs()) == []
    with pytest.raises(exceptions.NotFound):
        blob.delete()


def test_a_missing_object_is_not_found(bucket: Bucket) -> None:
    assert bucket.get_blob("missing") is None
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").download_as_bytes()
    with pytest.raises(exceptions.NotFound):
        bucket.blob("missing").patch()


@pytest.mark.parametrize(
    "name",
    [
        "a b.txt",
        "dt=2026-01-01/part-0.parquet",
        "ü/é.txt",
        "x%2Fy",
        "q?x#y",
        "a+b&c;d",
        "/leading//double/",
        "emoji 🦉",
        "o/b/compose",
    ],
)
def test_a_name_with_unusual_characters_comes_back_as_it_was(bucket: Bucket, name: str) -> None:
    bucket.blob(name).upload_from_string(name)

    assert [blob.name for blob in bucket.list_blobs()] == [name]
    assert bucket.get_blob(name).download_as_text() == name
    bucket.blob(name).delete()
    assert list(bucket.list_blobs()) == []


def test_a_name_may_be_the_folder_of_another(bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"object")
    bucket.blob("a/b").upload_from_string(b"below")

    assert bucket.blob("a").download_as_bytes() == b"object"
    assert bucket.blob("a/b").download_as_bytes() == b"below"


@pytest.mark.parametrize("name", ["x" * 1025, "line\nbreak", "..", ".well-known/acme-challenge/a"])
def test_a_name_that_is_none_is_refused(bucket: Bucket, name: str) -> None:
    with pytest.raises(exceptions.BadRequest):
        bucket.blob(name).upload_from_string(b"a")
    assert list(bucket.list_blobs()) == []
