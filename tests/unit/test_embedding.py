"""The embedding task: rows to request bodies, replies to vectors."""

import base64
from array import array
from typing import Any

import pytest

from nightshift.tasks.base import BadInput, InvalidReply, load
from tests.builders import a_spec

pytestmark = pytest.mark.unit


def encoded(*values: float) -> str:
    return base64.b64encode(array("f", values).tobytes()).decode()


def reply(*vectors: str) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


def test_a_row_becomes_its_text_and_null_reads_as_empty() -> None:
    kind = load(a_spec(request__input="{{ name }}: {{ text }}"))

    assert kind.columns == ("name", "text")
    assert kind.render({"name": "a", "text": "b<c>\x00é😀"}) == "a: b<c>\x00é😀"
    assert kind.render({"name": "a", "text": None}) == "a: "


def test_what_a_template_calls_is_no_column() -> None:
    kind = load(a_spec(request__input="{% for n in range(2) %}{{ text }}{% endfor %}"))

    assert kind.columns == ("text",)
    assert kind.render({"text": "ab"}) == "abab"


@pytest.mark.parametrize("text", ["", "  \n", None])
def test_nothing_to_say_is_bad_input(text: str | None) -> None:
    with pytest.raises(BadInput, match="nothing"):
        load(a_spec()).render({"text": text})


@pytest.mark.parametrize(
    ("template", "value", "message"),
    [
        ("{{ 1 / n }}", 0, "division by zero"),
        ("{{ n | dictsort }}", 7, "no attribute 'items'"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(n) }}", 1, "recursion"),
    ],
)
def test_a_template_that_fails_on_a_row_is_bad_input(template: str, value: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(a_spec(request__input=template)).render({"n": value})


def test_templates_cannot_leave_their_sandbox() -> None:
    with pytest.raises(BadInput, match="unsafe"):
        load(a_spec(request__input="{{ text.__class__.__mro__ }}")).render({"text": "x"})


def test_overlong_rows_are_cut_only_where_the_job_says_so() -> None:
    assert "truncate_prompt_tokens" not in load(a_spec()).body(["x"])
    assert load(a_spec(request__overlong="truncate")).body(["x"])["truncate_prompt_tokens"] == -1


def test_vectors_come_back_in_the_order_of_the_rows() -> None:
    shuffled = {"data": [{"index": 1, "embedding": encoded(2.0)}, {"index": 0, "embedding": encoded(1.0, 0.5)}]}

    answers = load(a_spec()).answers(shuffled, 2)

    assert [list(answer.prediction) for answer in answers] == [[1.0, 0.5], [2.0]]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"data": []},
        reply(encoded(1.0)),
        {"data": [{"index": 0, "embedding": encoded(1.0)}, {"index": 0, "embedding": encoded(1.0)}]},
        reply(encoded(1.0), "%%%"),
        reply(encoded(1.0), ""),
        reply(encoded(1.0), base64.b64encode(b"12345").decode()),
        reply(encoded(1.0), encoded(float("nan"))),
        reply(encoded(1.0), encoded(float("inf"))),
        {"data": [{"index": 0}, {"index": 1}]},
        {"data": [{"index": "first", "embedding": encoded(1.0)}, {"index": 1, "embedding": encoded(1.0)}]},
        {"data": [{"index": float("inf"), "embedding": encoded(1.0)}, {"index": 1, "embedding": encoded(1.0)}]},
        {"data": [1, None]},
        reply(encoded(1.0), "\u00e9"),
    ],
)
def test_a_reply_that_is_not_two_vectors_is_invalid(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidReply):
        load(a_spec()).answers(bad, 2)
