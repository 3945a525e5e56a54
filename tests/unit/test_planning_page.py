"""docs/operate/capacity.md shows what the planner does."""

from __future__ import annotations

import re

import pytest

from nightshift.planner import sizing
from nightshift.planner.speed import CHARS_PER_TOKEN, INPUT_TOKENS, Basis, Speed
from nightshift.profiles import WORK_SECONDS_MIN
from nightshift.spec.limits import WORKERS_MAX
from tests.planning_examples import EXAMPLES, PAGE, with_examples

pytestmark = pytest.mark.unit

TEXT = PAGE.read_text()


def test_the_examples_are_what_the_planner_says() -> None:
    """If not: python -m tests.planning_examples --write"""
    assert with_examples(TEXT) == TEXT


def test_there_are_twelve() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^### \d+\. ", TEXT, re.MULTILINE)) == 12


def test_the_check_bites() -> None:
    assert with_examples(TEXT.replace("93 workers", "1 worker")) == TEXT
    with pytest.raises(ValueError, match="marks"):
        with_examples("# Planning\n")


def test_the_numbers_of_the_page() -> None:
    margins = {basis: Speed(1, basis, "", 0, "").margin for basis in Basis}

    assert {margins[Basis.ESTIMATED], margins[Basis.STATED]} == {0.7}
    assert margins[Basis.MEASURED] == 0.85
    assert "70% may be planned, 85% if the speed was measured" in " ".join(TEXT.split())
    assert WORK_SECONDS_MIN == 120
    assert "A deadline has to leave two minutes after start-up" in TEXT
    assert f"{CHARS_PER_TOKEN:g} characters are a token, and the log says why" in TEXT
    assert f"without\nrows, {INPUT_TOKENS:.0f} tokens are assumed" in TEXT
    assert f"and {WORKERS_MAX:,}." in TEXT
    assert f"a {sizing.CHUNKS_PER_WORKER}th of its working time" in TEXT
