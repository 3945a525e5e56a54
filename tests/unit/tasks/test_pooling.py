"""The kinds that generate nothing: classify, score, rerank. Replies are as vLLM 0.32 writes them."""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa
import pytest

from nightshift.tasks.base import Answer, BadInput, Filling, InvalidReply, Spoiled, TaskKind, load_kind
from tests.builders import a_spec, predictions

pytestmark = pytest.mark.unit

USAGE = {"prompt_tokens": 12, "total_tokens": 12, "completion_tokens": 0, "prompt_tokens_details": None}
CLASSIFIED = {
    "id": "classify-1",
    "object": "list",
    "created": 1,
    "model": "m",
    "data": [
        {"index": 1, "label": "good", "probs": [0.25, 0.75], "num_classes": 2},
        {"index": 0, "label": "bad", "probs": [0.5, 0.5], "num_classes": 2},
    ],
    "usage": USAGE,
}
SCORED = {
    "id": "score-1",
    "object": "list",
    "data": [{"index": 0, "object": "score", "score": 0.5}, {"index": 1, "object": "score", "score": -2}],
    "usage": USAGE,
}
RERANKED = {
    "id": "score-1",
    "model": "m",
    "usage": {"prompt_tokens": 12, "total_tokens": 12},
    "results": [
        {"index": 1, "document": {"text": "b", "multi_modal": None}, "relevance_score": 0.75},
        {"index": 0, "document": {"text": "a", "multi_modal": None}, "relevance_score": 0.25},
    ],
}


def classify(**request: Any) -> TaskKind:
    return load_kind(a_spec(task="classify", request={"input": "{{ text }}", **request}))


def score(**request: Any) -> TaskKind:
    return load_kind(a_spec(task="score", request={"text_1": "q: {{ q }}", "text_2": "{{ d }}", **request}))


def rerank(**request: Any) -> TaskKind:
    return load_kind(a_spec(task="rerank", request={"query": "{{ q }}", "documents": "docs", **request}))


@pytest.mark.parametrize("kind", [classify(), score(), rerank()])
def test_they_need_a_pooling_server(kind: TaskKind) -> None:
    assert kind.server_args == ("--runner=pooling",)


class TestClassify:
    def test_request(self) -> None:
        path, body = classify().request([classify().render({"text": "x"}, 0), "y"], 0)

        assert (path, orjson.loads(body)) == ("/classify", {"model": "m", "input": ["x", "y"]})

    def test_groups(self) -> None:
        """By the length of the texts, and as many rows as the engine computes at once; or as the job says."""
        planned, stated = classify(), classify(rows_per_request=3)

        assert isinstance(planned, Filling)
        assert isinstance(stated, Filling)
        assert (planned.rows_per_request, planned.chars_per_request, planned.chars("four")) == (8, 4096, 4)
        assert (stated.rows_per_request, stated.chars_per_request) == (3, None)

    def test_overlong(self) -> None:
        assert orjson.loads(classify(overlong="truncate").request(["x"], 0)[1])["truncate_prompt_tokens"] == -1

    def test_answers(self) -> None:
        kind = classify()
        answers = kind.answers(CLASSIFIED, ["x", "y"])

        assert predictions(answers) == [
            {"label": "bad", "score": 0.5, "scores": [0.5, 0.5]},
            {"label": "good", "score": 0.75, "scores": [0.25, 0.75]},
        ]
        assert (answers.prompt_tokens, answers.output_tokens) == (12, 0)
        stored = pa.array(predictions(answers), kind.prediction_type)
        assert stored.to_pylist() == predictions(answers)

    def test_a_model_without_names_for_its_classes(self) -> None:
        reply = {"data": [{"index": 0, "label": None, "probs": [0.25, 0.75], "num_classes": 2}]}

        assert predictions(classify().answers(reply, ["x"]))[0]["label"] == "LABEL_1"

    @pytest.mark.parametrize(
        "item",
        [
            {},
            {"label": "a", "probs": []},
            {"label": "a", "probs": None},
            {"label": "a", "probs": ["0.5"]},
            {"label": "a", "probs": [float("nan")]},
            {"label": "a", "probs": [1e39]},
            {"label": "a", "probs": [True]},
            {"label": 1, "probs": [0.5]},
        ],
    )
    def test_a_reply_that_is_no_classification(self, item: dict[str, Any]) -> None:
        """Beside others it concerns its own row alone."""
        with pytest.raises(InvalidReply):
            classify().answers({"data": [{"index": 0, **item}]}, ["x"])
        items = [{"index": 1, **item}, {"index": 0, "label": "a", "probs": [0.5]}]
        good, spoiled = classify().answers({"data": items}, ["x", "y"]).rows
        assert good == Answer({"label": "a", "score": 0.5, "scores": [0.5]})
        assert isinstance(spoiled, Spoiled)


class TestScore:
    def test_a_payload_is_a_pair(self) -> None:
        assert score().columns == ("d", "q")
        assert score().render({"q": "x", "d": "y"}, 0) == ("q: x", "y")

    def test_both_texts_fill_a_request(self) -> None:
        kind = score()

        assert isinstance(kind, Filling)
        assert kind.chars(("two", "four")) == 7

    def test_either_text_may_be_missing(self) -> None:
        with pytest.raises(BadInput, match="nothing"):
            score().render({"q": "x", "d": None}, 0)

    def test_request(self) -> None:
        path, body = score().request([("a", "b"), ("c", "d")], 0)

        assert (path, orjson.loads(body)) == ("/score", {"model": "m", "text_1": ["a", "c"], "text_2": ["b", "d"]})

    def test_any_part_of_a_group_is_a_request_of_its_own(self) -> None:
        """So a group that the engine refuses can be bisected."""
        assert orjson.loads(score().request([("c", "d")], 0)[1]) == {"model": "m", "text_1": ["c"], "text_2": ["d"]}

    def test_answers(self) -> None:
        answers = score().answers(SCORED, [("a", "b"), ("c", "d")])

        assert predictions(answers) == [0.5, -2.0]
        assert score().prediction_type == pa.float32()
        assert answers.prompt_tokens == 12

    @pytest.mark.parametrize("value", [None, "0.5", float("inf"), True, [0.5]])
    def test_a_reply_that_is_no_score(self, value: Any) -> None:
        """Beside others it concerns its own row alone."""
        with pytest.raises(InvalidReply):
            score().answers({"data": [{"index": 0, "score": value}]}, [("a", "b")])
        items = [{"index": 1, "score": value}, {"index": 0, "score": 2}]
        good, spoiled = score().answers({"data": items}, [("a", "b"), ("c", "d")]).rows
        assert good == Answer(2.0)
        assert isinstance(spoiled, Spoiled)


class TestRerank:
    def test_a_payload_is_a_query_and_its_documents(self) -> None:
        assert rerank().columns == ("docs", "q")
        assert rerank().render({"q": "x", "docs": ["a", b"b", None, 3]}, 0) == ("x", ["a", "b", "", "3"])

    @pytest.mark.parametrize(
        ("documents", "message"),
        [
            (None, "are NULL"),
            ([], "no documents"),
            ("a", "is not an array"),
            ([b"\xff"], "not UTF-8"),
            (["\ud800"], "cannot be encoded"),
            ([{"title": "a"}], "where text is expected"),
        ],
    )
    def test_rows_without_documents(self, documents: Any, message: str) -> None:
        with pytest.raises(BadInput, match=message):
            rerank().render({"q": "x", "docs": documents}, 0)

    def test_request(self) -> None:
        path, body = rerank(overlong="truncate").request([("x", ["a", "b"])], 0)

        assert path == "/rerank"
        assert orjson.loads(body) == {"model": "m", "truncate_prompt_tokens": -1, "query": "x", "documents": ["a", "b"]}

    def test_scores_come_back_in_the_order_of_the_documents(self) -> None:
        answers = rerank().answers(RERANKED, [("x", ["a", "b"])])

        assert predictions(answers) == [[0.25, 0.75]]
        assert rerank().prediction_type == pa.list_(pa.float32())
        assert (rerank().rows_per_request, answers.prompt_tokens) == (1, 12)

    def test_a_document_without_a_score(self) -> None:
        with pytest.raises(InvalidReply, match="asked for 3 answers, got 2"):
            rerank().answers(RERANKED, [("x", ["a", "b", "c"])])


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        {},
        {"data": None, "results": {}},
        {"data": [], "results": []},
        {"data": [1, 2], "results": [None, 1]},
        {"data": [{"index": 0}, {"index": 0}], "results": [{"index": 1}, {"index": 2}]},
        {"data": [{"index": "a"}, {"index": 0}], "results": [{}, {}]},
    ],
)
@pytest.mark.parametrize(
    ("kind", "payloads"), [(classify(), ["x", "y"]), (score(), [("a", "b")] * 2), (rerank(), [("x", ["a", "b"])])]
)
def test_a_reply_without_an_answer_for_each(kind: TaskKind, payloads: list[Any], reply: Any) -> None:
    with pytest.raises(InvalidReply):
        kind.answers(reply, payloads)
