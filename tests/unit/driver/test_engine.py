"""What the engine's replies mean, and how its metrics are read."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from nightshift.driver.engine import (
    MESSAGE_MAX,
    Busy,
    EngineClient,
    Failed,
    Gone,
    Load,
    Refused,
    Replied,
    SendResult,
    judge,
    parse_load,
)
from nightshift.driver.served import WrongEngine, check_fit, read_served
from nightshift.tasks.base import Reason

pytestmark = pytest.mark.unit

DEAD = b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause."}}'
TOO_MANY = b'{"error":{"message":"max_tokens=4096 cannot be greater than max_model_len=512. Fewer, please."}}'
LONG = b'{"error":{"message":"This model\'s maximum context length is 64 tokens."}}'


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b'{"a": 1}', Replied({"a": 1})),
        (200, b"[1]", Failed("200 with a body that is not a JSON object", Reason.INVALID_OUTPUT, lasting=True)),
        (400, LONG, Refused(Reason.TOO_LONG, "This model's maximum context length is 64 tokens.")),
        (413, b"", Refused(Reason.TOO_LONG, "")),
        (400, TOO_MANY, Refused(Reason.REJECTED, "max_tokens=4096 cannot be greater than max_model_len=512. Fewer, please.")),
        (422, b'{"error": "no such parameter"}', Refused(Reason.REJECTED, "no such parameter")),
        (408, b"late", Failed("late", Reason.TIMEOUT, 408)),
        (425, b"early", Failed("early", status=425)),
        (429, b"full", Busy("full", status=429)),
        (503, b"full", Busy("full", status=503)),
        (500, b'{"error": {"message": "oops"}}', Failed("oops", status=500)),
        (500, b"EngineDeadError", Gone("EngineDeadError", 500)),
        (500, DEAD, Gone("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500)),
        (502, b"bad gateway", Gone("bad gateway", 502)),
        (504, b"gateway", Failed("gateway", Reason.TIMEOUT, 504)),
        (505, b"", Failed("", status=505)),
        (204, b"", Failed("", Reason.INVALID_OUTPUT, 204, lasting=True)),
    ],
)
def test_what_a_reply_means(status: int, body: bytes, outcome: SendResult) -> None:
    assert judge(status, body, {}) == outcome


@pytest.mark.parametrize("status", [301, 307, 401, 402, 403, 404, 405, 407, 410, 415, 421, 451, 501])
def test_what_may_be_said_to_every_request_is_a_lasting_failure_of_this_one(status: int) -> None:
    assert judge(status, b"not here", {}) == Failed("not here", Reason.REJECTED, status, lasting=True)


def test_a_redirect_says_where_to() -> None:
    outcome = judge(307, b"", {"location": "https://host/v2"})

    assert str(outcome) == "307: it redirects to https://host/v2"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"error": {"message": "down", "code": 502}}', Failed("down", status=502)),
        (b'{"error": {"message": "down", "code": "503"}}', Failed("down", status=503)),
        (b'{"error": {"message": "full", "code": 429}}', Busy("full", 7.0, 429)),
        (b'{"error": {"message": "late", "code": 408}}', Failed("late", Reason.TIMEOUT, 408)),
        (b'{"error": {"message": "flagged", "code": 403}}', Failed("flagged", Reason.REJECTED, 403, lasting=True)),
        (b'{"error": {"message": "bad", "code": 400}}', Refused(Reason.REJECTED, "bad")),
        (b'{"error": {"message": "bad", "code": "no such thing"}}', Failed("bad")),
        (b'{"error": {"message": "bad", "code": 1013}}', Failed("bad")),
        (b'{"error": {"message": "bad", "code": true}}', Failed("bad")),
        (b'{"error": {}}', Failed("{}")),
        (b'{"error": "all is lost", "choices": []}', Failed("all is lost")),
        (b'{"object": "error", "message": "bad", "code": 400}', Refused(Reason.REJECTED, "bad")),
        (
            b'{"choices": [{"finish_reason": "error", "message": {"content": ""}}]}',
            Failed("the engine failed while it answered"),
        ),
        (
            b'{"choices": [{"finish_reason": "stop"}, {"finish_reason": "error", "error": {"code": 429, "message": "m"}}]}',
            Busy("m", 7.0, 429),
        ),
        (b'{"error": ' + b"[" * 1000 + b"]" * 1000 + b"}", Failed('{"error": ' + "[" * 1000 + "]" * 990)),
    ],
)
def test_an_error_inside_a_200_is_an_error(body: bytes, outcome: SendResult) -> None:
    assert judge(200, body, {"retry-after": "7"}) == outcome


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": null, "data": []}',
        b'{"error": "", "data": []}',
        b'{"object": "list", "choices": [{"finish_reason": "stop"}]}',
        b'{"choices": ["error"]}',
        b'{"choices": "error"}',
    ],
)
def test_a_200_without_an_error_is_a_reply(body: bytes) -> None:
    assert isinstance(judge(200, body, {}), Replied)


CARD = {"id": "m", "object": "model", "root": "org/m", "parent": None, "max_model_len": 256}
"""As vLLM 0.32 describes its model in ``/v1/models``."""


def served(models: Any, name: str, root: str | None, length: int | None, tokens: int = 0) -> None:
    check_fit(read_served(models, "1.0", name=name), root=root, max_model_len=length, answer_tokens=tokens)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (("m", "org/m", 256), None),
        (("m", None, None), None),
        (("other", None, None), r"serves \['m'\], but the job asks for 'other'"),
        (("m", "org/other", None), "from 'org/m', but must serve it from 'org/other'"),
        (("m", "gs://models/m", 256), "NIGHTSHIFT_MODEL_ROOT"),
        (("m", "org/m", 512), r"takes 256 tokens \(max_model_len\), but the job asks for 512"),
    ],
)
def test_the_engine_must_serve_what_the_pod_was_ordered_to_serve(
    asked: tuple[str, str | None, int | None], problem: str | None
) -> None:
    with contextlib.nullcontext() if problem is None else pytest.raises(WrongEngine, match=problem):
        served({"data": [CARD]}, *asked)


def test_an_answer_leaves_room_for_a_prompt() -> None:
    served({"data": [CARD]}, "m", None, None, 255)
    served({"data": [{"id": "m"}]}, "m", None, None, 256)
    with pytest.raises(
        WrongEngine, match=r"may have 256 tokens \(request.max_tokens\), but prompt and answer together have 256"
    ):
        served({"data": [CARD]}, "m", None, None, 256)


def test_an_engine_says_where_its_model_is_from() -> None:
    """Of the longest input it may say nothing: then it refuses what is too long."""
    served({"data": [{"id": "m", "root": "org/m"}]}, "m", "org/m", 256)
    with pytest.raises(WrongEngine, match=r"serves 'm' and does not say from where \(root\), but must serve it from 'org/m'"):
        served({"data": [{"id": "m"}]}, "m", "org/m", 256)


@pytest.mark.parametrize("models", [{}, {"data": 7}, {"data": ["m"]}, {"data": [{}]}, []])
def test_an_answer_without_models_is_not_an_engines(models: object) -> None:
    with pytest.raises(WrongEngine, match="does not list models"):
        served(models, "m", None, None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": 1} {"b": 2}',
    ],
)
def test_a_200_that_is_not_json_is_a_failure_of_the_engine(body: bytes) -> None:
    outcome = judge(200, body, {})

    assert isinstance(outcome, Failed)
    assert outcome.message.startswith("200 with a body that is not JSON")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 1000 + b"]" * 1000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b'{"error":' + b"[" * 900 + b"]" * 900 + b"}",
        b"[" * 100_000,
    ],
)
def test_an_error_nested_deep_is_kept_as_text(body: bytes) -> None:
    outcome = judge(500, body, {})

    assert isinstance(outcome, Failed)
    assert len(outcome.message) <= len("500: ") + MESSAGE_MAX


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"message": "m"}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"error": null}', '{"error":null}'),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": null, "detail": "Not Found"}', "Not Found"),
        (
            b'{"detail": [{"loc": ["body", "messages", 0], "msg": "Field required"}, {"msg": "no"}, {"loc": 5, "msg": null}]}',
            "body.messages.0: Field required; no; None",
        ),
        (b'{"detail": [1]}', "[1]"),
        (b'{"error": {"code": 7}}', '{"code":7}'),
        (b'"m"', '"m"'),
        (b"plain \xff", "plain \ufffd"),
        (b'{"error": {"message": "' + b"m" * 5000 + b'"}}', "m" * MESSAGE_MAX),
        (b"m" * 50_000, "m" * MESSAGE_MAX),
        ("\u00e4".encode() * 5000, "\u00e4" * MESSAGE_MAX),
    ],
)
def test_the_text_of_an_error(body: bytes, message: str) -> None:
    assert judge(400, body, {}) == Refused(Reason.REJECTED, message)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:30 GMT", "date": "Sat, 21 Nov 2026 11:00:00 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT", "date": "Sat, 21 Nov 2026 11:00:30 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:30 -0000", "date": "Sat, 21 Nov 2026 11:00:00 GMT"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:30 GMT", "date": "yesterday"}, None),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:30 GMT"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert judge(429, b"", headers) == Busy("", seconds, 429)


def test_load_is_taken_over_all_engines() -> None:
    page = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a} 9"} 3.0
vllm:num_requests_running{engine="1",model_name="a} 9"} 4.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting{engine="1"} 1e1 1700000000000
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 500.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.5
vllm:num_preemptions_total{engine="0"} 2.0
vllm:num_preemptions_created{engine="0"} 1.7e+09
vllm:num_preemptions_total{engine="1"} 5.0
other:num_requests_running 7
"""

    assert parse_load(page) == Load(running=7.0, waiting=11.0, kv_cache=0.5, preemptions=7.0)


@pytest.mark.parametrize(
    ("page", "load"),
    [
        (b"vllm:num_requests_running 2", Load(2.0, 0.0, 0.0, 0.0)),
        (b"vllm:num_requests_waiting 2\n", Load(0.0, 2.0, 0.0, 0.0)),
        (b"vllm:num_requests_running 2\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc x\n", Load(2.0, 0.0, 0.0, 0.0)),
        (b"vllm:kv_cache_usage_perc 0.5\n", None),
        # Several API servers before the first request: counters only.
        (b'vllm:num_preemptions_total{engine="0"} 0.0\nvllm:request_success_total{engine="0"} 0.0\n', None),
        (b"# vllm:num_requests_running 2\n", None),
        (b"vllm:num_requests_running NaN\n", None),
        (b"", None),
        (b"\xff\x00", None),
    ],
)
def test_load_of_pages_that_say_less(page: bytes, load: Load | None) -> None:
    assert parse_load(page) == load


@pytest.mark.parametrize(
    ("url", "headers", "says"),
    [
        ("localhost:8000", {}, "must be http://HOST"),
        ("ftp://host", {}, "must be http://HOST"),
        ("http://", {}, "must be http://HOST"),
        ("http://user:hunter22@host", {}, "a user, password"),
        ("http://host/?a=1", {}, "a user, password, query"),
        ("http://host:99999", {}, "[Pp]ort"),
        ("http://host/a b", {}, "%20"),
        ("http://a..b", {}, "label"),
        ("http://host", {"Authorization": "hunter22\r\nX: y"}, "'Authorization' contains a character"),
        ("http://host", {"a b": "hunter22"}, "'a b' contains a character"),
        ("http://host", {"Content-Length": "5"}, "set by the client itself"),
    ],
)
def test_an_engine_that_cannot_be_asked_is_told_at_once(url: str, headers: dict[str, str], says: str) -> None:
    with pytest.raises(WrongEngine, match=says) as raised:
        EngineClient(url, "m", headers=headers)

    assert "hunter22" not in str(raised.value)


def test_no_secret_is_shown() -> None:
    engine: Any = EngineClient("http://[::1]:8000/base/", "m", headers={"Authorization": "Bearer hunter22"})

    assert repr(engine) == "<EngineClient 'm' <HttpClient http://[::1]:8000/base connections=0 idle=0>>"
