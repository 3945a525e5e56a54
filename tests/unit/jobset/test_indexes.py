"""Completion indexes as Kubernetes writes them."""

from __future__ import annotations

import random

import pytest

from nightshift.jobset.verdict import indexes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("", ()),
        ("0", (0,)),
        ("1,3-5,7", (1, 3, 4, 5, 7)),
        ("0,1", (0, 1)),
        ("0-2", (0, 1, 2)),
        ("9,10,12-14", (9, 10, 12, 13, 14)),
    ],
)
def test_both_ways(text: str, numbers: tuple[int, ...]) -> None:
    assert indexes.parse(text) == numbers
    assert indexes.write(numbers) == text


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-2-3", "1;2"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list of indexes like '1,3-5,7'"):
        indexes.parse(text)


def test_any_set_comes_back() -> None:
    chance = random.Random(5)
    for _ in range(300):
        numbers = [chance.randrange(40) for _ in range(chance.randrange(25))]
        assert indexes.parse(indexes.write(numbers)) == tuple(sorted(set(numbers)))
