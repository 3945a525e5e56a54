"""Requests to OpenAI's endpoints merged into one, and the reply divided. Pure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nightshift.batcher.endpoint import Asked, Endpoint, WrongReply, openai_error
from nightshift.batcher.routes import NAMES, Routes, error_body
from nightshift.batcher.usage import estimated, shares, summed

pytestmark = pytest.mark.unit


def endpoint(path: str = "/v1/embeddings", *, estimate: bool = False) -> Endpoint:
    found = Routes(estimate=estimate).find("POST", path)
    assert found is not None
    return found


def read(body: Any, path: str = "/v1/embeddings") -> Asked | None:
    return endpoint(path).read(body if isinstance(body, bytes) else json.dumps(body).encode())


def asked(body: dict[str, Any], path: str = "/v1/embeddings") -> Asked:
    found = read(body, path)
    assert found is not None
    return found


def merged(path: str, *bodies: dict[str, Any]) -> Any:
    return json.loads(endpoint(path).merge([asked(body, path) for body in bodies]))


def divided(path: str, bodies: list[dict[str, Any]], reply: Any, *, estimate: bool = False) -> list[Any]:
    text = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return [json.loads(part) for part in endpoint(path, estimate=estimate).split(text, [asked(body, path) for body in bodies])]


def vectors(*numbers: float, **more: Any) -> dict[str, Any]:
    return {"id": "embd-7", "data": [{"index": n, "embedding": [number]} for n, number in enumerate(numbers)], **more}


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        ("value", "items", "count"),
        [
            ("a text", b'"a text"', 1),
            (["a", "b"], b'"a","b"', 2),
            ([1, 2, 3], b"[1,2,3]", 1),
            ([[1, 2], [3]], b"[1,2],[3]", 2),
            ("", b'""', 1),
        ],
    )
    def test_texts_and_tokens_one_or_several(self, value: Any, items: bytes, count: int) -> None:
        found = asked({"model": "m", "input": value})

        assert (found.items, found.count) == ((items,), count)

    @pytest.mark.parametrize(
        "value",
        [None, [], [[]], 7, {"role": "user"}, ["a", 1], [1, "a"], [[1], "a"], [True, False], [1.5], [[1], [2.5]], [["a"]]],
    )
    def test_what_is_not_a_list_of_texts_or_tokens_goes_alone(self, value: Any) -> None:
        assert read({"model": "m", "input": value}) is None

    @pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b'{"input": "\\ud800"}', b"[" * 5000, b'{"input": NaN}'])
    def test_what_is_not_a_json_object_goes_alone(self, body: bytes) -> None:
        assert read(body) is None

    @pytest.mark.parametrize(
        ("number", "alone"),
        [
            ("18446744073709551615", False),
            ("-9223372036854775808", False),
            ("0.0001234567890123456789", False),
            ("18446744073709551616", True),
            ("-9223372036854775809", True),
            ("123456789012345678901234567890", True),
        ],
    )
    def test_a_number_that_could_not_be_copied_goes_alone(self, number: str, alone: bool) -> None:
        assert (read(b'{"input": "a", "x": %b}' % number.encode()) is None) is alone
        assert read(b'{"input": "call %b"}' % number.encode()) is not None, "in a text it is no number"

    def test_what_is_nested_too_deeply_to_be_written_goes_alone(self) -> None:
        deep = b'{"input": "a", "x": ' + b"[" * 600 + b"]" * 600 + b"}"

        assert read(deep) is None

    def test_equal_parameters_are_equal_in_any_order(self) -> None:
        one = asked({"model": "m", "input": "a", "dimensions": 8, "x": {"a": 1, "b": 2}})
        other = asked({"x": {"b": 2, "a": 1}, "dimensions": 8, "input": ["b", "c"], "model": "m"})

        assert one.shared == other.shared

    @pytest.mark.parametrize(
        "change", [{"model": "n"}, {"dimensions": 8}, {"user": "u"}, {"input": [1]}, {"priority": 1}, {"cache_salt": "s"}]
    )
    def test_requests_that_differ_in_anything_else_are_not_merged(self, change: dict[str, Any]) -> None:
        body = {"model": "m", "input": "a"}

        assert asked(body).shared != asked({**body, **change}).shared

    def test_one_true_and_one_point_zero_are_different_values(self) -> None:
        assert len({asked({"input": "a", "x": value}).shared for value in (1, 1.0, True, "1")}) == 4

    @pytest.mark.parametrize(
        "change",
        [
            {"encoding_format": "bytes"},
            {"encoding_format": None},
            {"messages": []},
            {"request_id": "r"},
            {"stream": True},
            {"task": "plugin"},
        ],
    )
    def test_embeddings_that_go_alone(self, change: dict[str, Any]) -> None:
        assert read({"model": "m", "input": "a", **change}) is None

    @pytest.mark.parametrize(
        "change",
        [
            {"best_of": 3},
            {"ec_transfer_params": {}},
            {"echo": True},
            {"kv_transfer_params": {"a": 1}},
            {"n": 2},
            {"n": 0},
            {"prompt_embeds": "x"},
            {"request_id": "r"},
            {"stream": True},
            {"stream_options": {"include_usage": True}},
            {"suffix": "end"},
            {"use_beam_search": True},
        ],
    )
    def test_completions_that_go_alone(self, change: dict[str, Any]) -> None:
        assert read({"model": "m", "prompt": "a", **change}, "/v1/completions") is None

    @pytest.mark.parametrize(
        "same", [{"n": 1, "stream": False, "echo": False}, {"n": None}, {"seed": 7, "logprobs": 2, "temperature": 0.5}]
    )
    def test_completions_with_ordinary_parameters_are_merged(self, same: dict[str, Any]) -> None:
        assert read({"model": "m", "prompt": "a", **same}, "/v1/completions") is not None


class TestScore:
    @pytest.mark.parametrize(
        ("one", "many"), [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
    )
    def test_requests_with_the_same_first_text_are_merged(self, one: str, many: str) -> None:
        bodies: list[dict[str, Any]] = [{"model": "m", one: "q", many: "a"}, {"model": "m", one: "q", many: ["b", "c"]}]

        assert merged("/score", *bodies) == {"model": "m", one: "q", many: ["a", "b", "c"]}

    def test_another_first_text_is_another_request(self) -> None:
        keys = {asked({"text_1": text, "text_2": "a"}, "/score").shared for text in ("q", "r", ["q"])}

        assert len(keys) == 3

    @pytest.mark.parametrize(
        "body",
        [
            {"text_1": ["q", "r"], "text_2": ["a", "b"]},
            {"text_1": "q"},
            {"text_2": "a"},
            {"text_1": "q", "text_2": []},
            {"text_1": {"content": []}, "text_2": "a"},
            {"text_1": "q", "text_2": [{"content": []}]},
            {"text_1": "q", "text_2": [[1, 2]]},
            {"queries": "q", "documents": "a", "items": "b"},
        ],
    )
    def test_what_goes_alone(self, body: dict[str, Any]) -> None:
        assert read(body, "/v1/score") is None


class TestMerging:
    @pytest.mark.parametrize(
        ("path", "field"),
        [("/v1/embeddings", "input"), ("/v1/completions", "prompt"), ("/classify", "input"), ("/pooling", "input")],
    )
    def test_the_items_stand_in_order_and_the_rest_is_what_they_share(self, path: str, field: str) -> None:
        bodies: list[dict[str, Any]] = [{"model": "m", field: "a", "x": [1]}, {field: ["b", "é\n"], "x": [1], "model": "m"}]

        assert merged(path, *bodies) == {"model": "m", "x": [1], field: ["a", "b", "é\n"]}

    def test_tokens(self) -> None:
        assert merged("/v1/embeddings", {"input": [1, 2]}, {"input": [[3], [4, 5]]}) == {"input": [[1, 2], [3], [4, 5]]}


class TestDividing:
    BODIES: tuple[dict[str, Any], ...] = ({"input": "a"}, {"input": ["b", "c"]})

    def test_each_gets_its_own_numbered_from_0_with_its_own_id(self) -> None:
        one, other = divided("/v1/embeddings", list(self.BODIES), vectors(1, 2, 3, model="m"))

        assert one == {"id": "embd-7-0", "model": "m", "data": [{"index": 0, "embedding": [1]}]}
        assert other == {
            "id": "embd-7-1",
            "model": "m",
            "data": [{"index": 0, "embedding": [2]}, {"index": 1, "embedding": [3]}],
        }

    def test_results_in_another_order_go_by_their_index(self) -> None:
        reply = vectors(1, 2, 3)
        reply["data"].reverse()

        one, other = divided("/v1/embeddings", list(self.BODIES), reply)
        assert [each["embedding"] for each in one["data"] + other["data"]] == [[1], [2], [3]]

    def test_results_without_index_go_by_their_place(self) -> None:
        one, other = divided("/v1/embeddings", list(self.BODIES), {"data": [{"v": 1}, {"v": 2}, {"v": 3}]})

        assert [each["v"] for each in one["data"] + other["data"]] == [1, 2, 3]

    @pytest.mark.parametrize(
        ("reply", "why"),
        [
            (vectors(1, 2), "2 results for 3 inputs"),
            (vectors(1, 2, 3, 4), "4 results for 3 inputs"),
            ({"data": None}, "no list of objects as 'data'"),
            ({"data": [1, 2, 3]}, "no list of objects"),
            ({"data": [{"index": 0}, {"index": 0}, {"index": 1}]}, "not numbered from 0 to 2"),
            ({"data": [{"index": 1}, {"index": 2}, {"index": 3}]}, "not numbered"),
            ({"data": [{"index": 0}, {"index": 1}, {}]}, "not numbered"),
            ({"data": [{"index": 0}, {"index": True}, {"index": 2}]}, "not numbered"),
            (b"[]", "not a JSON object"),
            (b"<html>", "not a JSON object"),
            (b'{"data": [{"index": 0}, {"index": 1}, {"index": 2, "n": 18446744073709551616}]}', "more than 64 bits"),
            (vectors(1, 2, 3, texts=["a", "b", "c"]), "'texts' may be about single items"),
        ],
    )
    def test_a_reply_that_does_not_fit_is_nobodys(self, reply: Any, why: str) -> None:
        with pytest.raises(WrongReply, match=why):
            divided("/v1/embeddings", list(self.BODIES), reply)

    def test_completions(self) -> None:
        choices = [{"index": n, "text": text, "finish_reason": "stop"} for n, text in enumerate("xyz")]
        reply = {"id": "cmpl-1", "object": "text_completion", "choices": choices, "usage": {"prompt_tokens": 3}}

        one, other = divided("/v1/completions", [{"prompt": "a"}, {"prompt": ["b", "c"]}], reply)
        assert ([each["text"] for each in one["choices"]], [each["text"] for each in other["choices"]]) == (["x"], ["y", "z"])
        assert [each["index"] for each in other["choices"]] == [0, 1]
        assert (one["object"], one["id"], other["id"]) == ("text_completion", "cmpl-1-0", "cmpl-1-1")


class TestInPieces:
    @pytest.mark.parametrize(
        ("value", "pieces"),
        [
            (["a", "b", "c"], [["a", "b"], ["c"]]),
            ([[1, 2], [3], [4, 5]], [[[1, 2], [3]], [[4, 5]]]),
            (["a", "b"], [["a", "b"]]),
        ],
    )
    def test_a_callers_own_list(self, value: Any, pieces: Any) -> None:
        whole = asked({"model": "m", "input": value})
        cut = endpoint().cut(whole, 2)

        assert [json.loads(endpoint().merge([piece])) for piece in cut] == [{"model": "m", "input": each} for each in pieces]
        assert [piece.count for piece in cut] == [len(each) for each in pieces]
        assert {piece.shared for piece in cut} == {whole.shared}, "so that they may share with others"

    def test_is_answered_as_a_whole(self) -> None:
        pieces = endpoint().cut(asked({"input": ["a", "b", "c"]}), 2)
        replies = [
            vectors(1, 2, model="m", usage={"prompt_tokens": 2, "total_tokens": 2, "prompt_tokens_details": None}),
            vectors(3, model="m", usage={"prompt_tokens": 5, "total_tokens": 5, "prompt_tokens_details": None}),
        ]

        whole = json.loads(endpoint().join([json.dumps(each).encode() for each in replies], pieces))
        assert whole == {
            "id": "embd-7",
            "model": "m",
            "usage": {"prompt_tokens": 7, "total_tokens": 7},
            "data": [{"index": n, "embedding": [n + 1]} for n in range(3)],
        }

    @pytest.mark.parametrize("reply", [vectors(3, 4), {"data": {}}, vectors(3, more=[1]), b"<html>"])
    def test_unless_a_reply_does_not_fit(self, reply: Any) -> None:
        pieces = endpoint().cut(asked({"input": ["a", "b", "c"]}), 2)
        text = reply if isinstance(reply, bytes) else json.dumps(reply).encode()

        with pytest.raises(WrongReply):
            endpoint().join([json.dumps(vectors(1, 2)).encode(), text], pieces)

    @pytest.mark.parametrize("usages", [[{"prompt_tokens": 1}, None], [{"prompt_tokens": 1}, {}], [{"a": 1}, {"b": 1}], [{}]])
    def test_without_tokens_if_a_piece_has_none(self, usages: list[Any]) -> None:
        assert summed(usages) is None


class TestUsage:
    REPLY = vectors(1, 2, usage={"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0})

    def test_the_sum_is_nobodys(self) -> None:
        answers = divided("/v1/embeddings", [{"input": "aa"}, {"input": "b"}], self.REPLY)

        assert ["usage" in each for each in answers] == [False, False]

    def test_an_estimate_adds_up_to_what_the_server_said(self) -> None:
        answers = divided("/v1/embeddings", [{"input": "a" * 18}, {"input": "b" * 8}], self.REPLY, estimate=True)

        assert [each["usage"]["prompt_tokens"] for each in answers] == [7, 3]
        assert answers[0]["usage"] == {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7}

    @pytest.mark.parametrize("usage", [None, [], {}, {"prompt_tokens": "3"}, {"prompt_tokens": True}, {"prompt_tokens": -1}])
    def test_no_estimate_without_a_sum(self, usage: Any) -> None:
        assert estimated(usage, [1, 1], [1, 1]) is None

    def test_output_tokens_go_by_the_size_of_the_outputs(self) -> None:
        found = estimated({"prompt_tokens": 4, "completion_tokens": 6}, [1, 1], [1, 5])

        assert found == [
            {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3},
            {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7},
        ]

    @pytest.mark.parametrize(
        ("total", "weights", "expected"),
        [(10, [1, 1, 1], [3, 4, 3]), (0, [1, 2], [0, 0]), (3, [0, 0], [2, 1]), (7, [1, 0], [7, 0]), (2, [3, 3, 3], [1, 0, 1])],
    )
    def test_shares(self, total: int, weights: list[int], expected: list[int]) -> None:
        assert shares(total, weights) == expected


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/embeddings"),
            ("POST", "/v1/embeddings/"),
            ("POST", "/v1/chat/completions"),
            ("POST", "/rerank"),
            ("POST", "/v1/models/m:explain"),
            ("POST", "/v2/models/m/generate"),
            ("POST", "/v1/models/a/b:predict"),
            ("POST", "/"),
        ],
    )
    def test_what_is_passed_through(self, method: str, path: str) -> None:
        assert Routes().find(method, path) is None

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/v1/models/m:predict", "predict"),
            ("/v1/models/m/versions/2:predict", "predict"),
            ("/v2/models/m/infer", "infer"),
            ("/v2/models/m/versions/2/infer", "infer"),
            ("/score", "score"),
        ],
    )
    def test_what_is_collected(self, path: str, name: str) -> None:
        assert endpoint(path).name == name

    def test_a_user_may_choose(self) -> None:
        routes = Routes(["embeddings", "infer"])

        found = [
            routes.find("POST", path) for path in ("/v1/embeddings", "/v2/models/m/infer", "/score", "/v1/models/m:predict")
        ]
        assert [each and each.name for each in found] == ["embeddings", "infer", None, None]

    def test_every_name_is_an_endpoint(self) -> None:
        paths = [
            "/v1/embeddings",
            "/v1/completions",
            "/classify",
            "/pooling",
            "/score",
            "/v1/models/m:predict",
            "/v2/models/m/infer",
        ]

        assert tuple(endpoint(path).name for path in paths) == NAMES

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/v1/embeddings", openai_error(502, "no")),
            ("/v1/models", openai_error(502, "no")),
            ("/v1/models/m:predict", b'{"error":"no"}'),
            ("/v2/models/m/infer", b'{"error":"no"}'),
        ],
    )
    def test_an_error_has_the_form_that_the_caller_expects(self, path: str, expected: bytes) -> None:
        assert error_body(path)(502, "no") == expected

    def test_openais_form(self) -> None:
        assert json.loads(openai_error(429, "later")) == {
            "error": {"message": "later", "type": "TooManyRequestsError", "param": None, "code": 429}
        }
