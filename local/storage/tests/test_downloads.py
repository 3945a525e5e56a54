"""Ranges, checksums, conditional reads, and gzip unpacked for those who do not take it."""

from __future__ import annotations

import gzip
import http.client
import os
from urllib.parse import urlsplit

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage import Bucket  # type: ignore[import-untyped]

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CONTENT = os.urandom(3 << 20)


@pytest.fixture
def blob(bucket: Bucket) -> object:
    blob = bucket.blob("a")
    blob.upload_from_string(CONTENT)
    return bucket.blob("a")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (10, 19, CONTENT[10:20]),
        (0, 0, CONTENT[:1]),
        (len(CONTENT) - 5, None, CONTENT[-5:]),
        (5, len(CONTENT) + 100, CONTENT[5:]),
        (None, 9, CONTENT[:10]),
    ],
    # The content is random: as a part of the tests' names it would differ from process to process.
    ids=["middle", "first byte", "last bytes", "over the end", "from the start"],
)
def test_a_range(bucket: Bucket, blob: object, start: int | None, end: int | None, expected: bytes) -> None:
    assert bucket.blob("a").download_as_bytes(start=start, end=end) == expected


def test_a_range_outside_the_object_cannot_be_satisfied(bucket: Bucket, blob: object) -> None:
    with pytest.raises(exceptions.RequestRangeNotSatisfiable):
        bucket.blob("a").download_as_bytes(start=len(CONTENT))


@pytest.mark.parametrize(
    ("asked", "status", "length"),
    [
        ("bytes=-7", 206, 7),
        ("bytes=0-", 206, len(CONTENT)),
        ("bytes=0-1,4-5", 200, len(CONTENT)),
        ("rows=1-2", 200, len(CONTENT)),
    ],
)
def test_range_headers(url: str, blob: object, asked: str, status: int, length: int) -> None:
    reply = requests.get(f"{url}/a", headers={"Range": asked})

    assert (reply.status_code, len(reply.content)) == (status, length)


@pytest.mark.parametrize("checksum", ["md5", "crc32c"])
def test_a_download_that_checks_its_digest(bucket: Bucket, blob: object, checksum: str) -> None:
    assert bucket.blob("a").download_as_bytes(checksum=checksum) == CONTENT


def test_one_connection_serves_many_requests(url: str, blob: object) -> None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    connection.connect()
    socket = connection.sock
    for method, name, body, status in 3 * [("PUT", "b", CONTENT, 200), ("GET", "a", None, 200), ("GET", "missing", None, 404)]:
        connection.request(method, f"{address.path}/{name}", body)
        reply = connection.getresponse()
        reply.read()
        # http.client drops its socket when the server closes the connection or announces that it will.
        assert (reply.status, reply.version, connection.sock) == (status, 11, socket)
    connection.close()


def test_gzip_is_unpacked_only_for_clients_that_do_not_take_it(url: str, bucket: Bucket) -> None:
    packed = gzip.compress(b"hello" * 100)
    blob = bucket.blob("z")
    blob.content_encoding = "gzip"
    blob.upload_from_string(packed)

    assert bucket.blob("z").download_as_bytes() == b"hello" * 100
    assert bucket.blob("z").download_as_bytes(raw_download=True) == packed
    plain = requests.get(f"{url}/z", headers={"Accept-Encoding": "identity"})
    assert plain.content == b"hello" * 100
    assert "Content-Encoding" not in plain.headers


def test_gzip_that_must_not_be_transformed_stays_packed(url: str, bucket: Bucket) -> None:
    blob = bucket.blob("z")
    blob.content_encoding = "gzip"
    blob.cache_control = "no-transform"
    packed = gzip.compress(b"hello")  # once: its header holds the second in which it was packed
    blob.upload_from_string(packed)

    reply = requests.get(f"{url}/z", headers={"Accept-Encoding": "identity"}, stream=True)
    assert reply.raw.read(decode_content=False) == packed
    assert reply.headers["Content-Encoding"] == "gzip"


def test_conditions_of_plain_http(bucket: Bucket, blob: object) -> None:
    found = bucket.get_blob("a")

    assert found.download_as_bytes(if_etag_match=found.etag) == CONTENT
    with pytest.raises(exceptions.PreconditionFailed):
        found.download_as_bytes(if_etag_match="other")
    with pytest.raises(exceptions.NotModified):
        found.reload(if_etag_not_match=found.etag)
