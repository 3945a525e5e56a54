"""The image kind: bytes or an object's URI, one chat request with the picture in it."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pyarrow as pa
import pytest

from nightshift.run.names import run_digest
from nightshift.tasks import image
from nightshift.tasks.base import BadInput, Fetch, Fetching, InvalidReply, NotDone, TaskKind, load_kind
from tests.builders import a_spec, predictions

pytestmark = pytest.mark.unit

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00" * 8
FORMS = {
    "png": PNG,
    "jpeg": b"\xff\xd8\xff\xe0abcdefgh",
    "gif": b"GIF89a\x01\x00\x01\x00",
    "webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
}


def make(**request: Any) -> TaskKind:
    return load_kind(a_spec(task="image", request={"image": "photo", "user": "What is {{ name }}?", **request}))


def fetching(kind: TaskKind) -> Fetching:
    assert isinstance(kind, Fetching)
    return kind


@pytest.mark.parametrize(("form", "photo"), FORMS.items())
def test_bytes_are_sent_within_the_question(form: str, photo: bytes) -> None:
    kind = make(system="Look.", max_tokens=9)
    payload = kind.render({"photo": photo, "name": "this"}, 4)
    path, body = kind.request([payload], 0)

    assert kind.columns == ("name", "photo")
    assert fetching(kind).fetches(payload) is None
    assert path == "/v1/chat/completions"
    assert orjson.loads(body)["messages"] == [
        {"role": "system", "content": "Look."},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/{form};base64,{base64.b64encode(photo).decode()}"}},
                {"type": "text", "text": "What is this?"},
            ],
        },
    ]
    assert orjson.loads(body)["max_tokens"] == 9


def test_a_job_can_name_the_buckets_of_its_objects() -> None:
    kind = make(buckets=["shop-photos", "b_2.example"])
    want = fetching(kind).fetches(kind.render({"photo": "gs://other/x.png", "name": "x"}, 0))

    assert want == Fetch("gs://other/x.png", image.BYTES_MAX, frozenset({"shop-photos", "b_2.example"}))


def test_a_job_that_names_no_buckets_is_the_job_it_was() -> None:
    """Its run must be found again: the digest is made of this."""
    request: dict[str, Any] = {"image": "photo", "user": "?"}
    before, after = (a_spec(task="image", request={**request, **more}).request for more in ({}, {"buckets": ["shop-photos"]}))

    assert before.semantic() == request
    assert run_digest("j", "2026-11-01", a_spec(task="image", request=request).semantic()) == "c0f4105b0ad8c5f2"
    assert after.semantic() == {**before.semantic(), "buckets": ["shop-photos"]}


def test_an_object_is_fetched_by_the_driver() -> None:
    kind = make()
    payload = kind.render({"photo": "gs://bucket/a folder/ü.png", "name": "x"}, 4)

    assert fetching(kind).fetches(payload) == Fetch("gs://bucket/a folder/ü.png", image.BYTES_MAX)
    complete = fetching(kind).with_bytes(payload, PNG)
    assert fetching(kind).fetches(complete) is None
    assert kind.request([complete], 0) == kind.request([kind.render({"photo": PNG, "name": "x"}, 4)], 0)


@pytest.mark.parametrize("body", [b"", b"<svg/>", b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WAVE", b"\x89PN", "é".encode()])
def test_what_is_not_an_image_is_bad_input(body: bytes) -> None:
    kind = make()
    payload = kind.render({"photo": "gs://b/o", "name": "x"}, 0)

    with pytest.raises(BadInput, match="not an image"):
        kind.render({"photo": body, "name": "x"}, 0)
    with pytest.raises(BadInput, match="not an image"):
        fetching(kind).with_bytes(payload, body)


def test_an_image_has_a_largest_size() -> None:
    kind = make()
    largest = PNG.ljust(image.BYTES_MAX, b"\x00")

    assert kind.render({"photo": largest, "name": "x"}, 0).image == largest
    with pytest.raises(BadInput, match="20,971,521 bytes; at most 20,971,520"):
        kind.render({"photo": largest + b"\x00", "name": "x"}, 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the image is NULL"),
        ("", "neither bytes nor"),
        ("https://example.com/a.png", "neither bytes nor"),
        ("file:///etc/passwd", "neither bytes nor"),
        ("gs://bucket", "neither bytes nor"),
        ("gs:///object", "neither bytes nor"),
        (base64.b64encode(PNG).decode(), "neither bytes nor"),
        (7, "neither bytes nor"),
        (["gs://b/o"], "neither bytes nor"),
    ],
)
def test_other_values_are_bad_input(value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make().render({"photo": value, "name": "x"}, 0)


def test_no_question_is_bad_input() -> None:
    with pytest.raises(BadInput, match="nothing"):
        make(user="{{ name }}").render({"photo": PNG, "name": None}, 0)


def test_answers_are_those_of_a_chat() -> None:
    kind, typed = make(), make(json_schema={"type": "object", "properties": {"cats": {"type": "integer"}}})
    payloads = [kind.render({"photo": PNG, "name": "x"}, 0)]

    def reply(content: Any, reason: str = "stop") -> dict[str, Any]:
        return {"choices": [{"message": {"content": content}, "finish_reason": reason}]}

    assert predictions(kind.answers(reply("A cat."), payloads)) == ["A cat."]
    assert predictions(typed.answers(reply('{"cats": 2}'), payloads)) == [{"cats": 2}]
    assert typed.prediction_type == pa.struct([("cats", pa.int64())])
    assert predictions(kind.answers(reply(None, "length"), payloads)) == [""]
    with pytest.raises(InvalidReply):
        kind.answers(reply(7), payloads)
    with pytest.raises(NotDone):
        kind.answers(reply("A", "abort"), payloads)


def test_server_takes_one_image_a_request() -> None:
    assert make().server_args == ("--runner=generate", '--limit-mm-per-prompt={"image": 1}')
    assert make().rows_per_request == 1


@pytest.mark.parametrize("task", ["embedding", "classify"])
def test_other_kinds_fetch_nothing(task: str) -> None:
    assert not isinstance(load_kind(a_spec(task=task, request={"input": "{{ text }}"})), Fetching)
