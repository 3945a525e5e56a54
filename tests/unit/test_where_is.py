"""The questions of where_is.yaml have answers that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.test_architecture import PLUGINS

pytestmark = pytest.mark.unit

QUESTIONS = yaml.safe_load((Path(__file__).parent / "where_is.yaml").read_text())


def test_there_are_sixty() -> None:
    assert len({each["question"] for each in QUESTIONS}) == 60


def test_each_answer_is_a_file() -> None:
    assert [each["answer"] for each in QUESTIONS if not (PLUGINS / "nightshift" / each["answer"]).is_file()] == []
