"""Images through the real driver against a real vLLM with a tiny vision model: from a column, and from Cloud Storage."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local import models
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.integration.driver.tables import dead, predictions, run
from tests.integration.driver.vllm import Vllm
from tests.integration.emulators import StorageEmulator

pytestmark = pytest.mark.integration

GREEDY = {"temperature": 0, "max_tokens": 12}
QUESTION = "what is it?"


def a_job(**request: Any) -> JobSpec:
    model = models.ensure(models.TINY_BLIP)
    return a_spec(
        task="image",
        request={"image": "photo", "user": QUESTION, **GREEDY, **request},
        model={"name": "eyes", "uri": model.uri, "revision": model.revision},
        engine={"max_num_seqs": 8, "max_model_len": 512, "dtype": "float32", "args": {"enforce-eager": True}},
    )


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    server = Vllm(a_job(), tmp_path_factory.mktemp("vllm") / "vllm.log")
    server.await_health()
    yield server
    server.kill()


def picture(number: int, *, width: int = 40, height: int = 30) -> bytes:
    """A PNG of a colour gradient of its own."""
    lines = [
        bytes(
            value
            for x in range(width)
            for value in ((40 * number + 3 * x) % 256, (90 * number + 5 * y) % 256, 7 * number % 256)
        )
        for y in range(height)
    ]

    def part(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + line for line in lines))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", packed) + part(b"IEND", b"")


def seen(vllm: Vllm, image: bytes) -> str:
    """What the engine itself answers."""
    url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    reply = vllm.ask("/v1/chat/completions", {"model": "eyes", "messages": [{"role": "user", "content": content}], **GREEDY})
    answer: str = reply["choices"][0]["message"]["content"]
    return answer


def test_images_of_a_column_are_seen_and_what_is_none_costs_no_neighbour(tmp_path: Path, vllm: Vllm) -> None:
    images = [
        picture(0),
        b"not an image",
        picture(1),
        picture(2)[:60],  # begins as one
        picture(3, width=300, height=200),
        None,
        picture(4, width=1, height=1),
        b"\x89PNG\r\n\x1a\n",
        picture(5),
        b"",
        picture(0),
    ]

    rows = run(tmp_path, vllm.url, a_job(), {"photo": pa.array(images, pa.binary())}, chunk_rows=4)

    assert dead(rows) == {1: "bad_input", 3: "rejected", 5: "bad_input", 7: "rejected", 9: "bad_input"}
    for ordinal, image in enumerate(images):
        if rows[ordinal]["dead_reason"] is None:
            assert rows[ordinal]["prediction"] == seen(vllm, image or b"")
    assert rows[0]["prediction"] == rows[10]["prediction"]
    assert len({answer for answer in predictions(rows) if answer is not None}) > 2, "another image, another answer"


def test_images_are_fetched_from_cloud_storage(
    tmp_path: Path,
    vllm: Vllm,
    storage_emulator: StorageEmulator,
    storage_client: StorageClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = storage_client.create_bucket("photos-of-test-vllm-image")
    bucket.blob("a folder/ünï.png").upload_from_string(picture(1))
    bucket.blob("page.html").upload_from_string(b"<html>")
    name = f"gs://{bucket.name}"
    uris = [
        f"{name}/a folder/ünï.png",
        f"{name}/none.png",
        f"{name}/page.html",
        "gs://no-such-bucket/a.png",
        "/etc/passwd",
        None,
    ]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)

    rows = run(tmp_path, vllm.url, a_job(), {"photo": pa.array([*uris, uris[0]], pa.string())})

    assert dead(rows) == dict.fromkeys(range(1, 6), "bad_input")
    assert rows[0]["prediction"] == rows[6]["prediction"] == seen(vllm, picture(1))
    assert f"{name}/none.png" in rows[1]["dead_message"]
