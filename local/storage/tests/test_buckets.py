"""Buckets: created once, with settings that are kept, deleted only when empty."""

from __future__ import annotations

import uuid

import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client  # type: ignore[import-untyped]

pytestmark = pytest.mark.integration


def test_a_new_bucket_is_listed_and_has_its_location(storage_client: Client) -> None:
    name = f"test-{uuid.uuid4().hex[:12]}"
    storage_client.create_bucket(name, location="eu")

    assert name in [bucket.name for bucket in storage_client.list_buckets()]
    assert storage_client.get_bucket(name).location == "EU"


def test_a_second_creation_of_the_same_bucket_is_a_conflict(storage_client: Client, bucket: Bucket) -> None:
    with pytest.raises(exceptions.Conflict):
        storage_client.create_bucket(bucket.name)


def test_labels_and_lifecycle_rules_are_kept(storage_client: Client, bucket: Bucket) -> None:
    bucket.labels = {"team": "search"}
    bucket.add_lifecycle_delete_rule(age=7)
    bucket.patch()

    found = storage_client.get_bucket(bucket.name)
    assert found.labels == {"team": "search"}
    assert [dict(rule) for rule in found.lifecycle_rules] == [{"action": {"type": "Delete"}, "condition": {"age": 7}}]


def test_a_patch_removes_one_label_and_keeps_the_rest(storage_client: Client, bucket: Bucket) -> None:
    bucket.labels = {"team": "search", "stage": "test"}
    bucket.patch()

    labels = bucket.labels
    del labels["team"]
    bucket.labels = labels
    bucket.patch()

    assert storage_client.get_bucket(bucket.name).labels == {"stage": "test"}


def test_a_stale_metageneration_does_not_change_a_bucket(storage_client: Client, bucket: Bucket) -> None:
    stale = bucket.metageneration
    bucket.labels = {"team": "search"}
    bucket.patch(if_metageneration_match=stale)

    bucket.labels = {"team": "ads"}
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.patch(if_metageneration_match=stale)
    assert storage_client.get_bucket(bucket.name).labels == {"team": "search"}


def test_only_an_empty_bucket_can_be_deleted(storage_client: Client, bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"a")
    with pytest.raises(exceptions.Conflict):
        bucket.delete()

    bucket.blob("a").delete()
    bucket.delete()
    with pytest.raises(exceptions.NotFound):
        storage_client.get_bucket(bucket.name)


def test_a_missing_bucket_takes_no_objects_and_lists_none(storage_client: Client) -> None:
    missing = storage_client.bucket(f"test-{uuid.uuid4().hex[:12]}")

    with pytest.raises(exceptions.NotFound):
        missing.blob("a").upload_from_string(b"a")
    with pytest.raises(exceptions.NotFound):
        list(missing.list_blobs())


@pytest.mark.parametrize("name", ["UPPER", "_health", "a/b", "a"])
def test_a_name_that_is_none_is_refused(storage_client: Client, name: str) -> None:
    with pytest.raises(exceptions.BadRequest):
        storage_client._post_resource("/b", {"name": name}, query_params={"project": "local"})


def test_a_bucket_without_a_location_is_in_us(storage_client: Client, bucket: Bucket) -> None:
    assert storage_client.get_bucket(bucket.name).location == "US"


def test_permissions_are_answered_as_they_are_asked(bucket: Bucket) -> None:
    """Every request may do everything here, so every permission is there."""
    asked = ["storage.objects.create", "storage.buckets.get"]

    assert bucket.test_iam_permissions(asked) == asked


@pytest.mark.parametrize("asked", [[], ["storage.*"], ["storage.objects.*"], ["bigquery.jobs.create"], ["objects.get"]])
def test_a_permission_that_is_none_is_refused(bucket: Bucket, asked: list[str]) -> None:
    with pytest.raises(exceptions.BadRequest):
        bucket.test_iam_permissions(asked)


def test_a_missing_bucket_has_no_permissions(storage_client: Client) -> None:
    with pytest.raises(exceptions.NotFound):
        storage_client.bucket(f"test-{uuid.uuid4().hex[:12]}").test_iam_permissions(["storage.buckets.get"])
