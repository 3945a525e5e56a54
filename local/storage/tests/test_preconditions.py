"""Generation and metageneration preconditions on every verb. What is refused must also leave everything as it was."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud.storage import Blob, Bucket  # type: ignore[import-untyped]

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHUNK = 256 * 1024


@pytest.fixture
def blob(bucket: Bucket) -> Blob:
    """An object of content ``v1`` and metageneration 2, with its state read."""
    blob = bucket.blob("a")
    blob.upload_from_string(b"v1")
    blob.metadata = {"k": "1"}
    blob.patch()
    return bucket.get_blob("a")


def simple_upload(blob: Blob, content: bytes, **conditions: int) -> None:
    blob.upload_from_string(content, **conditions)


def resumable_upload(blob: Blob, content: bytes, **conditions: int) -> None:
    blob.chunk_size = CHUNK
    blob.upload_from_file(io.BytesIO(content), size=len(content), **conditions)


@pytest.mark.parametrize("upload", [simple_upload, resumable_upload])
def test_create_only_refuses_a_second_write(bucket: Bucket, upload: Callable[..., None]) -> None:
    upload(bucket.blob("a"), b"first", if_generation_match=0)
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket.blob("a"), b"second", if_generation_match=0)
    assert bucket.blob("a").download_as_bytes() == b"first"


@pytest.mark.parametrize("upload", [simple_upload, resumable_upload])
def test_compare_and_set_takes_the_current_generation_only(bucket: Bucket, blob: Blob, upload: Callable[..., None]) -> None:
    upload(bucket.blob("a"), b"v2", if_generation_match=blob.generation)
    with pytest.raises(exceptions.PreconditionFailed):
        upload(bucket.blob("a"), b"v3", if_generation_match=blob.generation)
    assert bucket.blob("a").download_as_bytes() == b"v2"


def test_create_only_is_decided_when_a_resumable_upload_ends(bucket: Bucket) -> None:
    late = bucket.blob("a", chunk_size=CHUNK)
    session = late.create_resumable_upload_session(size=3, if_generation_match=0)
    bucket.blob("a").upload_from_string(b"first", if_generation_match=0)

    reply = bucket.client._http.put(session, data=b"abc", headers={"Content-Range": "bytes 0-2/3"})

    assert reply.status_code == 412
    assert bucket.blob("a").download_as_bytes() == b"first"


def test_create_only_works_again_after_a_deletion(bucket: Bucket, blob: Blob) -> None:
    blob.delete()
    bucket.blob("a").upload_from_string(b"new", if_generation_match=0)

    assert bucket.blob("a").download_as_bytes() == b"new"


# What each verb does with an object, given conditions. Each is tried with every condition that does not hold.
VERBS: dict[str, Callable[[Bucket, Blob, dict[str, int]], object]] = {
    "overwrite": lambda bucket, blob, conditions: bucket.blob("a").upload_from_string(b"x", **conditions),
    "read": lambda bucket, blob, conditions: bucket.blob("a").download_as_bytes(**conditions),
    "stat": lambda bucket, blob, conditions: bucket.blob("a").reload(**conditions),
    "patch": lambda bucket, blob, conditions: patched(bucket, conditions),
    "update": lambda bucket, blob, conditions: bucket.blob("a").update(**conditions),
    "delete": lambda bucket, blob, conditions: bucket.blob("a").delete(**conditions),
}


def patched(bucket: Bucket, conditions: dict[str, int]) -> None:
    blob = bucket.blob("a")
    blob.metadata = {"k": "changed"}
    blob.patch(**conditions)


CONDITIONS = ["generation_match", "metageneration_match", "generation_not_match", "metageneration_not_match"]
# The client misspells this one (ifMetaGenerationNotMatch).
NOT_OFFERED = ("overwrite", "metageneration_not_match")
OFFERED = [(verb, condition) for verb in VERBS for condition in CONDITIONS if (verb, condition) != NOT_OFFERED]


@pytest.mark.parametrize(("verb", "condition"), OFFERED)
def test_a_condition_that_does_not_hold_refuses_the_verb(bucket: Bucket, blob: Blob, verb: str, condition: str) -> None:
    current = blob.metageneration if "meta" in condition else blob.generation
    value = current if "not" in condition else current - 1
    # A read that asks for "anything but what I know" gets the answer that there is nothing new.
    expected = exceptions.NotModified if verb in ("read", "stat") and "not" in condition else exceptions.PreconditionFailed

    with pytest.raises(expected):
        VERBS[verb](bucket, blob, {f"if_{condition}": value})

    now = bucket.get_blob("a")
    assert (now.generation, now.metageneration, now.metadata) == (blob.generation, blob.metageneration, {"k": "1"})
    assert now.download_as_bytes() == b"v1"


@pytest.mark.parametrize("verb", VERBS)
def test_conditions_that_hold_let_the_verb_through(bucket: Bucket, blob: Blob, verb: str) -> None:
    held = {"if_generation_match": blob.generation, "if_metageneration_match": blob.metageneration}

    VERBS[verb](bucket, blob, held)


def test_a_generation_cannot_match_where_there_is_no_object(bucket: Bucket) -> None:
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").upload_from_string(b"x", if_generation_match=1)
    assert bucket.get_blob("a") is None
