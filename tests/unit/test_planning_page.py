"""docs/operate/capacity.md and docs/examples/plans.txt show what the planner does."""

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
    prose = " ".join((PAGE.parents[1] / "operate/capacity.md").read_text().split())

    assert margins[Basis.ESTIMATED] == margins[Basis.STATED]
    assert f"{margins[Basis.ESTIMATED]:.0%} may be planned, {margins[Basis.MEASURED]:.0%} if" in prose
    assert WORK_SECONDS_MIN == 120
    assert "leave two minutes after start-up" in prose
    assert f"{CHARS_PER_TOKEN:g} characters count as a token" in prose
    assert f"{INPUT_TOKENS:.0f} tokens are assumed" in prose
    assert f"and {WORKERS_MAX:,}." in prose
    assert f"a {sizing.CHUNKS_PER_WORKER}th of its working time" in prose
