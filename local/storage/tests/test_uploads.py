"""Every way in: media, multipart, resumable in chunks, of unknown size, broken off, taken up again, cancelled."""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage import Bucket, transfer_manager  # type: ignore[import-untyped]

from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHUNK = 256 * 1024
CONTENT = os.urandom(5 * CHUNK + 123)


@pytest.fixture
def session(storage_emulator: StorageEmulator, bucket: Bucket) -> str:
    """The address of a resumable upload of the object ``a``."""
    url: str = bucket.blob("a").create_resumable_upload_session(content_type="text/plain")
    assert url.startswith(storage_emulator.url)
    return url


def put(session: str, data: bytes, content_range: str) -> requests.Response:
    return requests.put(session, data=data, headers={"Content-Range": content_range})


def test_a_media_upload_is_the_body_as_it_is(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    address = f"{storage_emulator.url}/upload/storage/v1/b/{bucket.name}/o"
    headers = {"Content-Type": "text/x-test"}
    reply = requests.post(address, params={"uploadType": "media", "name": "a"}, data=CONTENT, headers=headers)

    assert reply.status_code == 200
    assert reply.json()["contentType"] == "text/x-test"
    assert bucket.blob("a").download_as_bytes() == CONTENT


@pytest.mark.parametrize("content", [b"", b"\r\n", b"--\r\n--", b"a\r\n\r\nb\n", bytes(range(256)) * 4])
def test_a_multipart_upload_keeps_every_byte(bucket: Bucket, content: bytes) -> None:
    blob = bucket.blob("a")
    blob.metadata = {"k": "v"}
    blob.upload_from_string(content)

    found = bucket.get_blob("a")
    assert found.download_as_bytes() == content
    assert (found.size, found.metadata) == (len(content), {"k": "v"})


def test_a_resumable_upload_in_chunks(bucket: Bucket) -> None:
    blob = bucket.blob("a", chunk_size=CHUNK)
    blob.upload_from_file(io.BytesIO(CONTENT), size=len(CONTENT))

    found = bucket.get_blob("a")
    assert found.size == len(CONTENT)
    assert found.md5_hash == base64.b64encode(hashlib.md5(CONTENT).digest()).decode()
    assert found.download_as_bytes() == CONTENT


@pytest.mark.parametrize("size", [0, CHUNK - 1, CHUNK, 3 * CHUNK, 3 * CHUNK + 1])
def test_a_resumable_upload_of_unknown_size(bucket: Bucket, size: int) -> None:
    class Stream(io.RawIOBase):
        """Readable once, without a size and without a way back."""

        def __init__(self) -> None:
            self.source = io.BytesIO(CONTENT[:size])

        def read(self, size: int = -1) -> bytes:
            return self.source.read(size)

        def readable(self) -> bool:
            return True

        def tell(self) -> int:
            return self.source.tell()

    bucket.blob("a", chunk_size=CHUNK).upload_from_file(Stream())

    assert bucket.blob("a").download_as_bytes() == CONTENT[:size]


def test_a_blob_opened_as_a_file(bucket: Bucket) -> None:
    lines = [f"line {number}\n" for number in range(60_000)]
    with bucket.blob("a").open("w", chunk_size=CHUNK) as file:
        file.writelines(lines)

    with bucket.blob("a").open("r") as file:
        assert list(file) == lines


def test_a_session_says_how_much_has_arrived(bucket: Bucket, session: str) -> None:
    untouched = put(session, b"", "bytes */*")
    assert (untouched.status_code, untouched.headers.get("Range")) == (308, None)

    put(session, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/*")
    asked = put(session, b"", "bytes */*")

    assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    assert bucket.get_blob("a") is None


def test_bytes_sent_twice_are_stored_once(bucket: Bucket, session: str) -> None:
    put(session, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/*")
    reply = put(session, CONTENT[100:], f"bytes 100-{len(CONTENT) - 1}/{len(CONTENT)}")

    assert reply.status_code == 200
    assert bucket.blob("a").download_as_bytes() == CONTENT


def test_a_gap_in_the_bytes_is_refused(bucket: Bucket, session: str) -> None:
    assert put(session, CONTENT[CHUNK:], f"bytes {CHUNK}-{len(CONTENT) - 1}/{len(CONTENT)}").status_code == 400
    assert bucket.get_blob("a") is None


def test_the_last_answer_is_repeated_to_a_client_that_missed_it(bucket: Bucket, session: str) -> None:
    total = f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}"
    first = put(session, CONTENT, total)
    asked = put(session, b"", f"bytes */{len(CONTENT)}")
    again = put(session, CONTENT, total)

    assert [first.status_code, asked.status_code, again.status_code] == [200, 200, 200]
    assert first.json() == asked.json() == again.json()
    assert bucket.get_blob("a").generation == int(first.json()["generation"])


def test_a_cancelled_session_is_gone(bucket: Bucket, session: str) -> None:
    put(session, CONTENT[:CHUNK], f"bytes 0-{CHUNK - 1}/*")

    assert requests.delete(session).status_code == 499
    assert put(session, b"", "bytes */*").status_code == 404
    assert bucket.get_blob("a") is None


@pytest.mark.parametrize("header", [{"x-goog-hash": "crc32c=AAAAAA=="}, {"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}])
def test_content_that_does_not_fit_its_stated_digest_is_refused(url: str, bucket: Bucket, header: dict[str, str]) -> None:
    reply = requests.put(f"{url}/a", data=b"hello", headers=header)

    assert reply.status_code == 400
    assert bucket.get_blob("a") is None


def test_a_stated_digest_holds_for_a_resumable_upload_too(bucket: Bucket) -> None:
    blob = bucket.blob("a", chunk_size=CHUNK)
    blob.crc32c = "AAAAAA=="
    with pytest.raises(exceptions.BadRequest):
        blob.upload_from_file(io.BytesIO(CONTENT), size=len(CONTENT), checksum=None)
    assert bucket.get_blob("a") is None


def test_the_transfer_manager_in_both_directions(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "source.bin").write_bytes(CONTENT)

    threads = {"worker_type": "thread", "max_workers": 2}
    sent = transfer_manager.upload_many_from_filenames(bucket, ["source.bin"], source_directory=str(tmp_path), **threads)
    blob, copy = bucket.blob("source.bin"), tmp_path / "copy.bin"
    transfer_manager.download_chunks_concurrently(blob, str(copy), chunk_size=CHUNK, **threads)

    assert sent == [None]
    assert copy.read_bytes() == CONTENT


def test_an_xml_multipart_upload_by_the_transfer_manager(bucket: Bucket, tmp_path: Path) -> None:
    source, content = tmp_path / "source.bin", os.urandom(6 << 20)
    source.write_bytes(content)

    transfer_manager.upload_chunks_concurrently(
        str(source), bucket.blob("a"), chunk_size=5 << 20, worker_type="thread", max_workers=2
    )

    assert bucket.blob("a").download_as_bytes() == content
    assert bucket.get_blob("a").md5_hash is None


def test_a_client_that_vanishes_in_the_middle_of_a_body_leaves_the_old_object(url: str, bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"old")
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc)
    connection.putrequest("PUT", f"{address.path}/a")
    connection.putheader("Content-Length", str(len(CONTENT)))
    connection.endheaders(CONTENT[:CHUNK])
    connection.close()

    requests.put(f"{url}/after", data=b"x").raise_for_status()
    assert bucket.blob("a").download_as_bytes() == b"old"
