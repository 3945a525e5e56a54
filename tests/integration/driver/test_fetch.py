"""Objects that rows name: exactly the one that is named, or one dead letter; never another picture, and never a stop."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.cloud.storage import Client as StorageClient

from nightshift import store as stores
from nightshift.driver import backoff
from nightshift.driver.backoff import Backoff
from nightshift.driver.fetch import Fetcher
from nightshift.store import StoreUnavailable
from nightshift.tasks import image
from nightshift.tasks.base import BadInput, Fetching, load_kind
from tests.builders import a_spec
from tests.integration.driver.serving import ThreadedServer
from tests.integration.driver.tables import dead, run
from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for ten minutes while the store cannot answer."""
    monkeypatch.setattr(stores, "RETRY_TIMEOUT", timedelta(milliseconds=1))
    monkeypatch.setattr(backoff, "STORE_BUDGET_S", -1.0)


@pytest.fixture
def bucket(storage_emulator: StorageEmulator, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    return storage_client.create_bucket(f"photos-{uuid.uuid4().hex[:12]}")


def put(bucket: Bucket, name: str, body: bytes | None = None) -> None:
    """By Google's own client. An object's picture is its name, unless it says otherwise."""
    bucket.blob(name).upload_from_string(PNG + name.encode() if body is None else body)


def fetched(uri: str, **request: Any) -> bytes:
    """What the driver would send for the row. Raises BadInput, StoreUnavailable."""
    kind = load_kind(a_spec(task="image", request={"image": "photo", "user": "?", **request}))
    assert isinstance(kind, Fetching)

    async def complete() -> Any:
        stop = asyncio.Event()
        return await Fetcher(kind, Backoff(random.Random(1), stop)).complete(kind.render({"photo": uri}, 0))

    picture: bytes = asyncio.run(complete()).image
    return picture


@pytest.mark.parametrize(
    "name",
    [
        "photo#1.jpg",
        "photo?v=2.jpg",
        "photo%2F1",
        "a%2Fb.jpg",
        "100%.jpg",
        " a b ",
        "ü.jpg",
        "u\u0308.jpg",
        "😀/a+b&c=d;e.jpg",
        "...",
        "a\\b",
        "a" * 1024,
        "ü" * 512,
        '~[x]{y}|^`*"<>',
        "\u2028\ufeff\u0085",
    ],
)
def test_an_object_is_fetched_by_exactly_its_name(bucket: Bucket, name: str) -> None:
    for decoy in ("photo", "photo/1", "photo#1", "photo?v=2", "a/b.jpg", "100.jpg", "a b", "a/b"):
        put(bucket, decoy)
    put(bucket, name)

    assert fetched(f"gs://{bucket.name}/{name}") == PNG + name.encode()


@pytest.mark.parametrize("name", ["/x", "//x", "x/", "a//b", "a/../x", "a/./b", "./x", "x\n", "x\t", "x\r"])
def test_a_name_that_cannot_be_read_exactly_is_bad_input(bucket: Bucket, name: str) -> None:
    for other in ("x", "a/b", "a/x", "a"):
        put(bucket, other)

    with pytest.raises(BadInput, match="cannot be read by exactly this name"):
        fetched(f"gs://{bucket.name}/{name}")


def test_a_bucket_that_the_job_does_not_list_is_not_asked(bucket: Bucket, storage_client: StorageClient) -> None:
    other = storage_client.create_bucket(f"{bucket.name}-other")
    put(bucket, "a")
    put(other, "a", PNG + b"secret")

    assert fetched(f"gs://{bucket.name}/a", buckets=[bucket.name, "another"]) == PNG + b"a"
    for unlisted in (other.name, bucket.name[:-1], "a-bucket-that-does-not-exist"):
        with pytest.raises(BadInput, match=r"is in a bucket that the job does not list under request.buckets"):
            fetched(f"gs://{unlisted}/a", buckets=[bucket.name, "another"])
    assert fetched(f"gs://{other.name}/a") == PNG + b"secret", "without a list, as far as the worker's rights go"


def test_an_object_that_is_empty_is_bad_input(bucket: Bucket) -> None:
    put(bucket, "empty.png", b"")

    with pytest.raises(BadInput, match="not an image: 0 bytes"):
        fetched(f"gs://{bucket.name}/empty.png")


@pytest.mark.parametrize("name", ["Bad_Bucket!", "b?x", "x" * 223, "a-bucket-that-does-not-exist"])
def test_a_bucket_that_is_not_there_is_bad_input(bucket: Bucket, name: str) -> None:
    with pytest.raises(BadInput, match=r"is not a valid bucket name|does not exist"):
        fetched(f"gs://{name}/x.png")


def test_an_object_has_a_largest_size(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "BYTES_MAX", 20)
    put(bucket, "fits", PNG.ljust(20, b"0"))
    put(bucket, "larger", PNG.ljust(21, b"0"))

    assert fetched(f"gs://{bucket.name}/fits") == PNG.ljust(20, b"0")
    with pytest.raises(BadInput, match="has 21 bytes; at most 20 are read"):
        fetched(f"gs://{bucket.name}/larger")


def test_what_is_stored_as_gzip_is_unpacked(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "BYTES_MAX", 100)
    bodies = {"a": gzip.compress(PNG + b"a"), "large": gzip.compress(PNG.ljust(101, b"0")), "broken": PNG}
    for name, body in bodies.items():
        blob = bucket.blob(name)
        blob.content_encoding = "gzip"
        blob.upload_from_string(body)

    assert fetched(f"gs://{bucket.name}/a") == PNG + b"a"
    with pytest.raises(BadInput, match="more than 100 bytes when it is unpacked"):
        fetched(f"gs://{bucket.name}/large")
    with pytest.raises(BadInput, match="cannot be unpacked"):
        fetched(f"gs://{bucket.name}/broken")


@pytest.mark.parametrize(
    ("stored", "picture"),
    [
        (gzip.compress(PNG) + gzip.compress(b"rest"), PNG + b"rest"),
        (gzip.compress(PNG) + bytes(8), PNG),
        (gzip.compress(PNG)[:-9], None),
        (gzip.compress(PNG)[:-1], None),
        (gzip.compress(PNG) + gzip.compress(b"rest")[:-9], None),
        (gzip.compress(PNG) + b"rest", None),
    ],
    ids=["two parts", "padded", "cut", "cut digest", "second part cut", "trailing text"],
)
def test_a_gzip_file_that_was_cut_never_passes_for_a_smaller_picture(
    bucket: Bucket, stored: bytes, picture: bytes | None
) -> None:
    blob = bucket.blob("photo")
    blob.content_encoding = "gzip"
    blob.upload_from_string(stored)

    if picture is not None:
        assert fetched(f"gs://{bucket.name}/photo") == picture
        return
    with pytest.raises(BadInput, match="cannot be unpacked"):
        fetched(f"gs://{bucket.name}/photo")


class RefusingStore(ThreadedServer):
    """Refuses every object with the status that is its name: the emulator knows no rights, no quotas and no outages."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/{bucket}/{status}", self._refuse)]

    async def _refuse(self, request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["status"]), text="<Error>status code: 500 Oops</Error>")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    def refused(status: int) -> str:
        with RefusingStore(0) as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.port}")
            with pytest.raises((BadInput, StoreUnavailable)) as caught:
                fetched(f"gs://bucket/{status}")
        kind = BadInput if isinstance(caught.value, BadInput) else caught.type
        return f"{kind.__name__}: {caught.value}"

    return refused


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410, 412, 413, 414, 416, 451])
def test_a_refused_object_is_bad_input(refusing: Callable[[int], str], status: int) -> None:
    said = {403: "no permission to read", 404: "does not exist"}

    message = refusing(status)
    assert message.startswith("BadInput: ")
    assert said.get(status, f"refuses the request with status {status}") in message


@pytest.mark.parametrize("status", [401, 408, 429, 500, 502, 503, 504])
def test_a_store_that_cannot_answer_now_is_not_the_rows_fault(refusing: Callable[[int], str], status: int) -> None:
    assert refusing(status).startswith("StoreUnavailable: ")


def test_a_store_that_is_not_there_is_not_the_rows_fault(
    monkeypatch: pytest.MonkeyPatch, refusing: Callable[[int], str]
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")

    with pytest.raises(StoreUnavailable):
        fetched("gs://bucket/x")


def test_credentials_that_cannot_be_had_are_not_the_rows_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with RefusingStore(0) as server:
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            monkeypatch.setenv(name, f"127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable, match=r"token request.* 404 Not Found"):
            fetched("gs://bucket/x")


class Describing(ThreadedServer):
    """An engine that answers with the picture's bytes after its first eight: no small model reads names off pictures."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/{path:health|version|v1/models}", self._introduce),
            web.post("/v1/chat/completions", self._describe),
        ]

    async def _introduce(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "root": "org/m"}], "version": "canned"})

    async def _describe(self, request: web.Request) -> web.Response:
        url = (await request.json())["messages"][-1]["content"][0]["image_url"]["url"]
        text = base64.b64decode(url.partition(",")[2]).removeprefix(PNG).decode()
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def test_a_run_with_odd_names_ends_with_the_right_pictures_and_dead_letters(tmp_path: Path, bucket: Bucket) -> None:
    for name in ("photo", "photo#1.jpg", "photo?v=2.jpg", "x", "plain.jpg"):
        put(bucket, name)
    put(bucket, "empty", b"")
    home = f"gs://{bucket.name}"
    uris = [
        f"{home}/plain.jpg",
        f"{home}/photo#1.jpg",
        f"{home}/photo?v=2.jpg",
        f"{home}//x",
        f"{home}/empty",
        "gs://Bad_Bucket!/x",
        f"{home}/photo",
        f"{home}/x/",
    ]

    with Describing(0) as engine:
        spec = a_spec(task="image", request={"image": "photo", "user": "?"})
        rows = run(tmp_path, f"http://127.0.0.1:{engine.port}", spec, {"photo": pa.array(uris, pa.string())}, chunk_rows=3)

    assert dead(rows) == dict.fromkeys((3, 4, 5, 7), "bad_input")
    assert [rows[n]["prediction"] for n in (0, 1, 2, 6)] == ["plain.jpg", "photo#1.jpg", "photo?v=2.jpg", "photo"]
    assert "cannot be read by exactly this name" in rows[3]["dead_message"]
    assert "0 bytes" in rows[4]["dead_message"]
    assert "'Bad_Bucket!'" in rows[5]["dead_message"]
