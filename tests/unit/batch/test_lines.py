"""Lines of batch files: what is sent for each, and what is said of those that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nightshift.batch.lines import ENDPOINTS, STREAM, parse_line
from nightshift.batch.task_kind import BatchLines, Whole
from nightshift.tasks.base import BadInput, InvalidReply, NotDone
from tests.builders import predictions

pytestmark = pytest.mark.unit

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": 3}


def line(**changes: Any) -> bytes:
    request = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY, **changes}
    return json.dumps({name: value for name, value in request.items() if value is not ...}).encode()


def test_a_good_line_is_sent_as_it_is() -> None:
    parsed = parse_line(line(), 1)

    assert (parsed.custom_id, parsed.path, parsed.error) == ("a", "/v1/chat/completions", None)
    assert json.loads(parsed.body) == BODY


@pytest.mark.parametrize("url", ENDPOINTS)
def test_every_endpoint(url: str) -> None:
    assert parse_line(line(url=url), 1).path == url


def test_score_and_rerank_below_any_path_as_vllm_takes_them() -> None:
    assert parse_line(line(url="/any/thing/score"), 1).path == "/score"
    assert parse_line(line(url="/any/rerank"), 1).path == "/rerank"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/embeddings", "/v1/embeddings"),
        ("/responses", "/v1/responses"),
        ("chat/completions", "/v1/chat/completions"),
        ("v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/score/", "/score"),
        ("/rerank", "/rerank"),
        ("/x/rerank/", "/rerank"),
    ],
)
def test_azures_paths_and_slashes_mean_the_path_that_the_server_has(url: str, path: str) -> None:
    assert parse_line(line(url=url), 1).path == path


@pytest.mark.parametrize("url", ["/v2/chat/completions", "/chat", "/v1", "/", "", "/x/chat/completions", "/v1/v1/embeddings"])
def test_a_path_that_could_be_another_is_refused(url: str) -> None:
    assert (parse_line(line(url=url), 1).error or "").startswith("URL ")


def test_the_model_can_be_replaced_and_given() -> None:
    assert json.loads(parse_line(line(), 1, "other").body)["model"] == "other"
    assert json.loads(parse_line(line(body={"input": "x"}), 1, "other").body) == {"input": "x", "model": "other"}


@pytest.mark.parametrize(
    ("raw", "custom_id", "said"),
    [
        (b"{", "", "line 7: it is not JSON"),
        (b"[1]", "", "line 7: it must be a JSON object, not a list"),
        (b'"\xff"', "", "line 7: it is not UTF-8"),
        ('{"custom_id": "a"}'.encode("utf-16-le"), "", "line 7: it is not JSON"),
        ('{"custom_id": "ä"}'.encode("utf-16-le"), "", "line 7: it is not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, "", "line 7: it is nested too deeply"),
        (line(custom_id=...), "", "line 7: custom_id is missing"),
        (line(custom_id=12), "12", "line 7: custom_id must be a string, not a number"),
        (line(custom_id="x\ud800"), "x?", "line 7: custom_id contains half a surrogate pair"),
        (line(custom_id="x" * 5000), "x" * 4096, "line 7: custom_id has more than 4096"),
        (line(method=...), "a", "method is missing"),
        (line(method="GET"), "a", "method must be POST, not 'GET'"),
        (line(url=...), "a", "url is missing"),
        (line(url=5), "a", "url must be a string"),
        (line(url="/shutdown"), "a", "URL '/shutdown' was used. Supported endpoints: "),
        (line(url="/v1/audio/transcriptions"), "a", "URL '/v1/audio/transcriptions' was used."),
        (line(url="/x/chat/completions?/../score#"), "a", "URL "),
        (line(body=...), "a", "body is missing"),
        (line(body="text"), "a", "body must be an object, not a string"),
        (line(body={**BODY, "stream": True}), "a", STREAM),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(raw: bytes, custom_id: str, said: str) -> None:
    parsed = parse_line(raw, 7)

    assert parsed.custom_id == custom_id
    assert parsed.error is not None
    assert parsed.error.startswith(said)


def test_what_strict_json_lacks_reaches_the_server_as_it_stands() -> None:
    assert parse_line(line(body={"temperature": float("nan")}), 1).body == b'{"temperature": NaN}'
    assert parse_line(line(body={"prompt": "half \ud83d"}), 1).body == b'{"prompt": "half \\ud83d"}'


NUMBERS = b'{"seed": 98765432109876543210, "most": %d, "long": %b, "exact": 1.00, "far": 1e400, "n": {"x": -0.10}}' % (
    2**256 - 1,
    b"7" * 5000,
)


@pytest.mark.parametrize(
    "body",
    [
        NUMBERS,
        b'{ "a" :\t[1, {"body": {}}] ,"escaped" : "\\"}, \\ud83d", "u": "\\u00fc\xc3\xbc" }',
        b'{"temperature": NaN, "most": -Infinity, "n": 98765432109876543210}',
        b'{"twice": 1, "twice": 2}',
        b"{}",
    ],
)
def test_the_body_is_sent_as_its_own_bytes(body: bytes) -> None:
    raw = b'\t{"custom_id" : "a", "b\\u006fdy": {"an": 0}, "method":"POST","url":"/score","body" : %b , "x": [1]} \r\n'

    parsed = parse_line(raw % body, 1)

    assert (parsed.body, parsed.error) == (body, None)
    assert parse_line(b"\xef\xbb\xbf" + raw % body, 1).body == body, "of several files that were joined"


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"{}", b'{"model": "\\u00fc\\""}'),
        (b"{ }", b'{"model": "\\u00fc\\""}'),
        (NUMBERS, b'{"model": "\\u00fc\\"", ' + NUMBERS[1:]),
        (b'{"x": {"model": 1}, "model" : "m" , "y": 2}', b'{"x": {"model": 1}, "model" : "\\u00fc\\"" , "y": 2}'),
        (b'{"model": null, "mod\\u0065l": 2}', b'{"model": "\\u00fc\\"", "mod\\u0065l": "\\u00fc\\""}'),
    ],
)
def test_another_model_changes_nothing_else_of_the_body(body: bytes, sent: bytes) -> None:
    raw = b'{"custom_id": "a", "method": "POST", "url": "/score", "body": %b}' % body

    assert parse_line(raw, 1, '\u00fc"').body == sent


def test_the_kind_sends_the_line_and_keeps_the_whole_reply() -> None:
    kind = BatchLines()
    reply = {
        "choices": [{"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "x": [0.1, None, "ü"],
    }
    payload = kind.render({"path": "/score", "body": b"{}", "error": None}, 0)

    text = json.dumps(reply, indent=1).encode()

    answers = kind.answers(Whole(reply, text), [payload])

    assert kind.request([payload], 0) == ("/score", b"{}")
    assert predictions(answers) == [text.replace(b"\n", b" ")]
    assert (answers.prompt_tokens, answers.output_tokens) == (3, 4)


def test_numbers_of_a_reply_stay_whole() -> None:
    text = b'{"id": 123456789012345678901234567890, "x": 1.50, "usage": {"input_tokens": 5, "output_tokens": 6}}'

    answers = BatchLines().answers(Whole(json.loads(text), text), [("/v1/responses", b"{}")])

    assert predictions(answers) == [text]
    assert (answers.prompt_tokens, answers.output_tokens) == (5, 6), "as /v1/responses calls them"


def test_the_kind_refuses_bad_lines_replies_that_are_none_and_aborted_ones() -> None:
    kind = BatchLines()

    with pytest.raises(BadInput, match="url is missing"):
        kind.render({"path": "", "body": b"", "error": "url is missing"}, 0)
    with pytest.raises(InvalidReply):
        kind.answers([1], [None])
    with pytest.raises(NotDone):
        kind.answers(Whole({"choices": [{"finish_reason": "stop"}, {"finish_reason": "abort"}]}, b"{}"), [None])


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled", "completed", "incomplete"])
def test_a_response_that_holds_no_answer_is_none(status: str) -> None:
    reply = Whole({"object": "response", "status": status, "error": None, "output": []}, b"{}")

    if status in ("completed", "incomplete"):
        assert len(predictions(BatchLines().answers(reply, [None]))) == 1
    else:
        with pytest.raises(InvalidReply, match=f"the response is {status}"):
            BatchLines().answers(reply, [None])
