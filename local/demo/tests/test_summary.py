"""Where the demo's last lines lead."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.demo import summary
from local.stack import Stack
from local.stack.stack import DEFAULT_STATE
from tests.builders import a_spec

pytestmark = pytest.mark.unit


def test_the_last_lines_say_that_the_stack_is_down_and_what_brings_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stack, "healthy", lambda self: False)

    first, *lines = summary.lead_on(a_spec(job="packages"), summary.Told(True, 1), Stack(DEFAULT_STATE))

    assert first.startswith("The stack is down again")
    assert [" ".join(line.split()) for line in lines] == [
        'your own question make search Q="parse yaml"',
        "the pages in Airflow make up",
        'its dead letter make up && eval "$(make env)" && .venv/bin/nightshift status packages --dead-letters',
        "a table of your own docs/use/tutorial.md",
    ]


def test_a_stack_that_stays_up_is_not_started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Stack, "healthy", lambda self: True)

    text = "\n".join(summary.lead_on(a_spec(job="packages"), summary.Told(True, 0), Stack(tmp_path)))

    assert "The stack is up" in text
    assert "make up" not in text
    assert f'make search STATE={tmp_path} Q="parse yaml"' in text
    assert "dead letter" not in text
