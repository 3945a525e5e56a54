"""What the seal counts of answers: those that hold nothing, and the most frequent one."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from nightshift.run.answers.tally import Tally

pytestmark = pytest.mark.unit

TEXT = pa.string()
CLASS = pa.struct([("label", pa.string()), ("score", pa.float32())])
TYPED = pa.struct(
    [("name", pa.string()), ("number", pa.int64()), ("parts", pa.list_(pa.string())), ("in", pa.struct([("a", TEXT)]))]
)
VECTOR = pa.list_(pa.float32())


def tallied(values: list[Any], kind: pa.DataType, batch: int = 8) -> Tally:
    """In batches, as chunks are read, and in chunks of four batches."""
    chunks = []
    for at in range(0, len(values), 4 * batch):
        one = Tally()
        for start in range(at, min(at + 4 * batch, len(values)), batch):
            one.add(pa.array(values[start : start + batch], kind))
        chunks.append(one.trimmed())
    return Tally.of(chunks)


@pytest.mark.parametrize(
    ("values", "kind", "empty", "equal"),
    [
        pytest.param(["yes"] * 99 + ["no"], TEXT, 0, 99, id="texts"),
        pytest.param(["", " \n\t", None, "x"] * 10, TEXT, 20, 10, id="blank texts and dead letters"),
        pytest.param([{"label": "a", "score": n / 100} for n in range(50)], CLASS, 0, 50, id="a label with many scores"),
        pytest.param([0.5] * 30 + [0.25] * 2, pa.float32(), 0, 30, id="numbers"),
        pytest.param([[0.5, 1.0]] * 40, VECTOR, 0, 40, id="vectors"),
        pytest.param([[0.5, n / 4] for n in range(40)], VECTOR, 0, 1, id="vectors that begin alike"),
        pytest.param([[0.5], [0.5, 1.0], [0.5, 1.0, 2.0], None] * 10, VECTOR, 0, 10, id="vectors of several lengths"),
        pytest.param([["a", "b"], ["a", "c"], ["a"]] * 9, pa.list_(TEXT), 0, 9, id="lists of texts that begin alike"),
        pytest.param([[]] * 3 + [[1.0]] * 4, VECTOR, 3, 4, id="empty vectors"),
        pytest.param([{"name": "x", "number": 1, "parts": ["a"], "in": None}] * 9, TYPED, 0, 9, id="typed answers"),
        pytest.param([{"name": None, "number": None, "parts": [], "in": None}] * 9, TYPED, 9, 9, id="typed answers of NULLs"),
        pytest.param([{"name": None, "number": None, "parts": ["a"], "in": None}] * 9, TYPED, 0, 9, id="a list is something"),
        pytest.param([{"name": None, "number": None, "parts": None, "in": {"a": "x"}}] * 9, TYPED, 0, 9, id="so is a struct"),
        pytest.param([True] * 5 + [False] * 4, pa.bool_(), 0, 5, id="of yes and no"),
        pytest.param([], TEXT, 0, 0, id="no answers"),
        pytest.param([None] * 9, TEXT, 0, 0, id="dead letters alone"),
        pytest.param([str(n) for n in range(100)], TEXT, 0, 1, id="all different"),
    ],
)
def test_what_is_counted(values: list[Any], kind: pa.DataType, empty: int, equal: int) -> None:
    found = tallied(values, kind)

    assert (found.empty, found.equal, found.known) == (empty, equal, True)


def test_what_nearly_all_rows_have_is_counted_exactly_wherever_it_is() -> None:
    rng = random.Random(1)
    values = ["the same"] * 950 + [f"other {n}" for n in range(50)]
    rng.shuffle(values)

    assert tallied(values, TEXT, batch=16).equal == 950


def test_the_count_is_never_too_high() -> None:
    rng = random.Random(2)
    values = [rng.choice("abcdefgh") for _ in range(500)]

    assert 0 < tallied(values, TEXT).equal <= max(values.count(each) for each in "abcdefgh")


def test_answers_of_another_kind_are_not_counted() -> None:
    found = tallied([[[1.0]]] * 4, pa.list_(pa.list_(pa.float32())))

    assert not found.known
