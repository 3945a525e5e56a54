"""The embedding task: rows to request bodies, replies to vectors."""

import base64
from array import array
from typing import Any

import orjson
import pytest

from nightshift.tasks.base import Answer, Filling, InvalidReply, Spoiled, WrongModel, load_kind
from tests.builders import a_spec, predictions

pytestmark = pytest.mark.unit


def encoded(*values: float) -> str:
    return base64.b64encode(array("f", values).tobytes()).decode()


def reply(*vectors: str) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


def test_a_row_becomes_its_text() -> None:
    kind = load_kind(a_spec(request__input="{{ name }}: {{ text }}"))

    assert kind.columns == ("name", "text")
    assert kind.render({"name": "a", "text": "b<c>\x00é😀"}, 0) == "a: b<c>\x00é😀"


def test_short_rows_share_a_request_by_their_length() -> None:
    planned, stated = load_kind(a_spec(request={"input": "{{ text }}"})), load_kind(a_spec())

    assert isinstance(planned, Filling)
    assert isinstance(stated, Filling)
    assert (planned.chars_per_request, planned.chars("four")) == (4096, 4)
    assert (stated.rows_per_request, stated.chars_per_request) == (4, None)


def test_the_request_holds_the_texts_in_order() -> None:
    path, body = load_kind(a_spec()).request(["x", "é"], 0)

    assert path == "/v1/embeddings"
    assert orjson.loads(body) == {"model": "m", "encoding_format": "base64", "input": ["x", "é"]}


def test_overlong_rows_are_cut_only_where_the_job_says_so() -> None:
    assert b"truncate_prompt_tokens" not in load_kind(a_spec()).request(["x"], 0)[1]
    assert orjson.loads(load_kind(a_spec(request__overlong="truncate")).request(["x"], 0)[1])["truncate_prompt_tokens"] == -1


def test_vectors_come_back_in_the_order_of_the_rows() -> None:
    shuffled = {
        "data": [{"index": 1, "embedding": encoded(2.0, 0.25)}, {"index": 0, "embedding": encoded(1.0, 0.5)}],
        "usage": {"prompt_tokens": 7},
    }

    answers = load_kind(a_spec()).answers(shuffled, ["x", "y"])

    assert [list(vector) for vector in predictions(answers)] == [[1.0, 0.5], [2.0, 0.25]]
    assert (answers.prompt_tokens, answers.output_tokens) == (7, 0)


def test_vectors_of_another_width_are_no_answer() -> None:
    """One model gives vectors of one width: in one reply, and in all replies of an attempt."""
    kind = load_kind(a_spec())
    with pytest.raises(InvalidReply, match="embeddings of 1 and of 2 numbers, equally many"):
        kind.answers(reply(encoded(1.0), encoded(1.0, 2.0)), ["x", "y"])
    kind.answers(reply(encoded(1.0), encoded(2.0)), ["x", "y"])
    with pytest.raises(InvalidReply, match="an embedding of 3 numbers, though one model made all, and most have 1"):
        kind.answers(reply(encoded(1.0, 2.0, 3.0)), ["y"])
    assert len(predictions(kind.answers(reply(encoded(3.0)), ["y"]))[0]) == 1


def test_an_odd_vector_that_comes_first_does_not_condemn_all_others() -> None:
    kind = load_kind(a_spec())
    good, odd = reply(encoded(1.0, 2.0)), reply(encoded(1.0, 2.0, 3.0))
    kind.answers(odd, ["x"])
    with pytest.raises(InvalidReply):
        kind.answers(good, ["y"])
    for _ in range(3):
        kind.answers(good, ["y"])
        with pytest.raises(InvalidReply, match="most have 2"):
            kind.answers(odd, ["x"])
        kind.answers(good, ["y"])


def test_the_width_that_the_job_states_is_checked_and_not_sent() -> None:
    """vLLM refuses ``dimensions`` for every model that is not a Matryoshka model, the model's own number too."""
    stated = load_kind(a_spec(request__dimensions=2))

    assert stated.request(["x"], 0) == load_kind(a_spec()).request(["x"], 0)
    assert len(predictions(stated.answers(reply(encoded(1.0, 2.0)), ["x"]))) == 1
    with pytest.raises(InvalidReply, match="an embedding of 3 numbers, though one model made all, and most have 2"):
        stated.answers(reply(encoded(1.0, 2.0, 3.0)), ["x"])
    with pytest.raises(WrongModel, match=r"have 3 numbers, but request.dimensions says 2\. Write 3 there"):
        load_kind(a_spec(request__dimensions=2)).answers(reply(encoded(1.0, 2.0, 3.0)), ["x"])


@pytest.mark.parametrize(
    "bad",
    [
        {},
        None,
        [],
        {"data": []},
        reply(encoded(1.0)),
        {"data": [{"index": 0, "embedding": encoded(1.0)}, {"index": 0, "embedding": encoded(1.0)}]},
        reply("%%%", "%%%"),
        reply(encoded(float("nan")), encoded(float("inf"))),
        {"data": [{"index": 0}, {"index": 1}]},
        {"data": [{"index": "first", "embedding": encoded(1.0)}, {"index": 1, "embedding": encoded(1.0)}]},
        {"data": [{"index": float("inf"), "embedding": encoded(1.0)}, {"index": 1, "embedding": encoded(1.0)}]},
        {"data": [1, None]},
        reply("\u00e9", "\u00e9"),
    ],
)
def test_a_reply_that_is_not_two_vectors_is_invalid(bad: Any) -> None:
    with pytest.raises(InvalidReply):
        load_kind(a_spec()).answers(bad, ["x", "y"])


@pytest.mark.parametrize(
    "bad",
    [
        *("%%%", "", "\u00e9", None, 7, base64.b64encode(b"12345").decode()),
        *(encoded(float("nan")), encoded(float("inf")), encoded(-float("inf"), 1.0), encoded(1.0), encoded(1.0, 2.0, 3.0)),
    ],
)
def test_a_spoiled_vector_costs_no_other_row(bad: Any) -> None:
    """The reply numbers its items, so it is known whose fault it is: the others need not be computed again."""
    good = encoded(1.0, 2.0)

    rows = load_kind(a_spec()).answers(reply(good, bad, good), ["x", "y", "z"]).rows

    assert [isinstance(row, Answer) for row in rows] == [True, False, True]
    assert isinstance(rows[1], Spoiled)
    assert rows[1].message
