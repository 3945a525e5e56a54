"""What is said of a run with too many dead letters: how many, and what to do about their reasons."""

from __future__ import annotations

import re

import pytest

from nightshift.run.tolerance import BY_REASON, ToleranceExceeded, found, judge, what_to_do
from nightshift.spec.engine import Engine
from nightshift.tasks import TASK_KINDS, request_model
from nightshift.tasks.base import Reason

pytestmark = pytest.mark.unit


def test_each_reason_has_its_advice() -> None:
    assert set(BY_REASON) == set(Reason)


@pytest.mark.parametrize("kind", TASK_KINDS)
def test_each_key_that_is_advised_exists(kind: str) -> None:
    keys = set(request_model(kind).model_fields)
    advised = {words for advice in BY_REASON.values() for words in re.findall(r"request\.(\w+)", advice)}
    generates = "max_tokens" in keys

    assert advised - keys <= ({"overlong"} if generates else {"max_tokens", "truncated"} | ({"overlong"} - keys)), kind
    if not generates:
        assert "overlong" in keys, "the advice excepts only kinds that write text"
    assert {words for advice in BY_REASON.values() for words in re.findall(r"engine\.(\w+)", advice)} <= set(
        Engine.model_fields
    )


def test_the_most_frequent_reasons_say_what_to_do() -> None:
    reasons = {"rejected": 2, "too_long": 25, "bad_input": 1}
    with pytest.raises(ToleranceExceeded) as raised:
        judge(28, 6, found(28, 60, reasons), what_to_do("10%", reasons))

    said = str(raised.value)
    assert said.startswith("28 of 60 rows are dead letters (25 too_long, 2 rejected, 1 bad_input); the job tolerates 6 (")
    assert "too_long: let the query shorten the texts, raise engine.max_model_len, or write request.overlong: truncate" in said
    assert "rejected: correct" in said
    assert "bad_input:" not in said


def test_without_known_reasons_it_says_what_is_right_for_all() -> None:
    assert found(16, 60, {}, or_more=True) == "16 or more of 60 rows are dead letters"
    assert ". Nothing is published. Trigger the DAG with redo" in what_to_do("10%", {})
