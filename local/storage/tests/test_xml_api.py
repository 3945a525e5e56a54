"""The XML API by plain HTTP, signed URLs included."""

from __future__ import annotations

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.oauth2 import service_account

from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]


@pytest.fixture(scope="module")
def signer() -> service_account.Credentials:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    info = {
        "type": "service_account",
        "client_email": "a@b",
        "private_key": text,
        "token_uri": "http://x",
        "private_key_id": "1",
    }
    credentials: service_account.Credentials = service_account.Credentials.from_service_account_info(info)  # type: ignore[no-untyped-call]
    return credentials


def test_an_object_has_an_address(url: str, bucket: Bucket) -> None:
    blob = bucket.blob("d/a.txt")
    blob.metadata = {"k": "v"}
    blob.upload_from_string(b"hello", content_type="text/plain")

    reply = requests.get(f"{url}/d/a.txt")

    assert (reply.status_code, reply.content) == (200, b"hello")
    assert reply.headers["Content-Type"] == "text/plain"
    assert reply.headers["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    assert reply.headers["x-goog-generation"] == str(blob.generation)
    assert reply.headers["x-goog-hash"] == "crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg=="
    assert reply.headers["x-goog-meta-k"] == "v"


def test_head_has_the_headers_of_get_and_no_body(url: str, bucket: Bucket) -> None:
    bucket.blob("a").upload_from_string(b"hello")

    head, get = requests.head(f"{url}/a"), requests.get(f"{url}/a")

    dropped = {"date"}
    assert head.content == b""
    assert {k: v for k, v in head.headers.items() if k not in dropped} == {
        k: v for k, v in get.headers.items() if k not in dropped
    }


@pytest.mark.parametrize("version", ["v2", "v4"])
def test_a_signed_url_reads(
    storage_emulator: StorageEmulator, bucket: Bucket, signer: service_account.Credentials, version: str
) -> None:
    blob = bucket.blob("a b/ü.txt")
    blob.upload_from_string(b"hello")
    signed = blob.generate_signed_url(60, version=version, credentials=signer, api_access_endpoint=storage_emulator.url)

    assert requests.get(signed).content == b"hello"


def test_a_signed_url_writes(storage_emulator: StorageEmulator, bucket: Bucket, signer: service_account.Credentials) -> None:
    signed = bucket.blob("a").generate_signed_url(
        60, version="v4", method="PUT", credentials=signer, api_access_endpoint=storage_emulator.url
    )

    assert requests.put(signed, data=b"hello").status_code == 200
    assert bucket.blob("a").download_as_bytes() == b"hello"


def test_a_signed_url_starts_a_resumable_upload(
    storage_emulator: StorageEmulator, bucket: Bucket, signer: service_account.Credentials
) -> None:
    start = {"x-goog-resumable": "start"}
    signed = bucket.blob("a").generate_signed_url(
        60, version="v4", method="RESUMABLE", credentials=signer, api_access_endpoint=storage_emulator.url
    )
    session = requests.post(signed, headers=start | {"Content-Type": "text/plain"}).headers["Location"]

    assert requests.put(session, data=b"hello").status_code == 200
    assert (bucket.blob("a").download_as_bytes(), bucket.get_blob("a").content_type) == (b"hello", "text/plain")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/missing", 404, "NoSuchKey"),
        ("DELETE", "/missing", 404, "NoSuchKey"),
        ("GET", "-none/a", 404, "NoSuchBucket"),
        ("PUT", "/a?partNumber=1&uploadId=none", 404, "NoSuchUpload"),
        ("PATCH", "/a", 405, "MethodNotAllowed"),
        ("POST", "/a", 400, "InvalidArgument"),
    ],
)
def test_refusals_are_xml_with_a_code(url: str, method: str, path: str, status: int, code: str) -> None:
    reply = requests.request(method, url + path)

    assert reply.status_code == status
    assert f"<Code>{code}</Code>" in reply.text


@pytest.mark.parametrize("etags", [["wrong"], []])
def test_a_multipart_upload_is_completed_from_the_parts_it_names(url: str, bucket: Bucket, etags: list[str]) -> None:
    upload = requests.post(f"{url}/a?uploads").text.partition("<UploadId>")[2].partition("<")[0]
    part = requests.put(f"{url}/a?partNumber=1&uploadId={upload}", data=b"one")
    listed = "".join(f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>" for etag in etags)

    refused = requests.post(f"{url}/a?uploadId={upload}", data=f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>")
    assert refused.status_code == 400
    assert bucket.get_blob("a") is None

    listed = f"<Part><PartNumber>1</PartNumber><ETag>{part.headers['ETag']}</ETag></Part>"
    done = requests.post(f"{url}/a?uploadId={upload}", data=f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>")
    assert done.status_code == 200
    assert bucket.blob("a").download_as_bytes() == b"one"


def test_an_aborted_multipart_upload_leaves_nothing(url: str, bucket: Bucket) -> None:
    upload = requests.post(f"{url}/a?uploads").text.partition("<UploadId>")[2].partition("<")[0]
    requests.put(f"{url}/a?partNumber=1&uploadId={upload}", data=b"one")

    assert requests.delete(f"{url}/a?uploadId={upload}").status_code == 204
    assert requests.put(f"{url}/a?partNumber=2&uploadId={upload}", data=b"two").status_code == 404
    assert bucket.get_blob("a") is None
